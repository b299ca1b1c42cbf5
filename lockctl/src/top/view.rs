//! What `top` shows.

use std::time::SystemTime;

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};

use crate::exit::Failure;
use crate::lock_row::{HEADER, LockRow, RowOrder};
use crate::output::records::{cell, rfc3339};
use crate::output::text::harmless;

/// The rows that a page has.
const PAGE: usize = 10;

const HELP: &str = "q quit  k key  a age  l left  w waiting  space only waiting";

/// The rows, and how they are shown.
#[derive(Debug)]
pub(super) struct View {
    /// All rows of the last answer.
    rows: Vec<LockRow>,
    unanswered: Option<usize>,
    /// When the last answer came; empty before the first one.
    updated: String,
    /// Why there is no newer answer.
    problem: Option<String>,
    order: RowOrder,
    only_waiting: bool,
    /// The selected row among those that are shown.
    table: TableState,
}

impl Default for View {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            unanswered: None,
            updated: String::new(),
            problem: None,
            order: RowOrder::Key,
            only_waiting: false,
            table: TableState::default(),
        }
    }
}

impl View {
    /// Shows an answer. After a failure, the last rows stay.
    pub(super) fn update(&mut self, answer: Result<(Vec<LockRow>, Option<usize>), Failure>) {
        match answer {
            Ok((rows, unanswered)) => {
                (self.rows, self.unanswered) = (rows, unanswered);
                self.updated = rfc3339(SystemTime::now());
                self.problem = None;
            }
            Err(error) => self.problem = Some(error.to_string()),
        }
    }

    /// Reacts to a key. Returns whether it ends the program.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        // Some terminals also report the release.
        if key.kind == KeyEventKind::Release {
            return false;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return true,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('k') => self.order = RowOrder::Key,
            KeyCode::Char('a') => self.order = RowOrder::Age,
            KeyCode::Char('l') => self.order = RowOrder::Left,
            KeyCode::Char('w') => self.order = RowOrder::Waiting,
            KeyCode::Char(' ') => self.only_waiting = !self.only_waiting,
            KeyCode::Down => self.select(|at| at.saturating_add(1)),
            KeyCode::Up => self.select(|at| at.saturating_sub(1)),
            KeyCode::PageDown => self.select(|at| at.saturating_add(PAGE)),
            KeyCode::PageUp => self.select(|at| at.saturating_sub(PAGE)),
            _ => {}
        }
        false
    }

    /// Moves the selection; the first key of all selects the first row.
    fn select(&mut self, next: impl FnOnce(usize) -> usize) {
        let last = self.shown().len().saturating_sub(1);
        self.table.select(Some(self.table.selected().map_or(0, next).min(last)));
    }

    /// The rows that are shown, in their order.
    fn shown(&self) -> Vec<LockRow> {
        let mut rows = self.rows.clone();
        rows.retain(|row| row.waiting > 0 || !self.only_waiting);
        self.order.sort(&mut rows);
        rows
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let areas = [1, 0, 2, 1].map(|lines| match lines {
            0 => Constraint::Fill(1),
            lines => Constraint::Length(lines),
        });
        let [top, middle, below, bottom] = Layout::vertical(areas).areas(frame.area());
        let shown = self.shown();
        // The row may be gone.
        let selected = self.table.selected().map(|at| at.min(shown.len().saturating_sub(1)));
        self.table.select(selected.filter(|_| !shown.is_empty()));
        let details = self.table.selected().and_then(|at| shown.get(at)).map(details);
        frame.render_widget(self.status(&shown), top);
        let row = |row: &LockRow| Row::new(row.cells().map(|cell| harmless(&cell)));
        let widths = [
            Constraint::Fill(3),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Fill(3),
            Constraint::Fill(2),
        ];
        let table = Table::new(shown.iter().map(row), widths)
            .header(Row::new(HEADER).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, middle, &mut self.table);
        frame.render_widget(Paragraph::new(details.unwrap_or_default()), below);
        frame.render_widget(Line::from(HELP), bottom);
    }

    /// The first line.
    fn status(&self, shown: &[LockRow]) -> Line<'static> {
        if let Some(problem) = &self.problem {
            let text = harmless(problem);
            return Line::styled(text, Style::new().add_modifier(Modifier::BOLD));
        }
        if self.updated.is_empty() {
            return Line::from("asking the clients");
        }
        let waiting: u64 = shown.iter().map(|row| row.waiting).sum();
        let silent = match self.unanswered {
            Some(0) => String::new(),
            Some(count) => format!(", clients without an answer: {count}"),
            None => ", clients without an answer: unknown".to_owned(),
        };
        Line::from(format!(
            "locks: {}, waiting calls: {waiting}{silent}  {}",
            shown.len(),
            self.updated
        ))
    }
}

/// The two lines about the selected row.
fn details(row: &LockRow) -> String {
    let fence = cell(row.fencing_token.as_ref());
    let since = cell(row.since.as_ref());
    let mode = cell(row.mode.as_ref());
    let permits = cell(row.permits.as_ref());
    let key = harmless(&row.key);
    format!("{key}\nsince {since}  fence {fence}  mode {mode}  permits {permits}")
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::exit::Code;

    fn row(key: &str, waiting: u64) -> LockRow {
        LockRow::without_holder(key.to_owned(), waiting)
    }

    /// The lines of a terminal.
    fn lines(view: &mut View) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(80, 8)).expect("no terminal is needed");
        terminal.draw(|frame| view.draw(frame)).expect("no terminal is needed");
        let cells = terminal.backend().buffer().content().chunks(80);
        let line = |cells: &[ratatui::buffer::Cell]| {
            cells.iter().map(ratatui::buffer::Cell::symbol).collect()
        };
        cells.map(line).map(|line: String| line.trim_end().to_owned()).collect()
    }

    fn keys(view: &mut View) -> Vec<String> {
        let rows = lines(view).into_iter().skip(2).take(3);
        rows.filter_map(|line| line.split_whitespace().next().map(ToOwned::to_owned)).collect()
    }

    fn press(view: &mut View, code: KeyCode) -> bool {
        view.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn rows_are_sorted_and_filtered_by_keys() {
        let mut view = View::default();
        assert_eq!(lines(&mut view)[0], "asking the clients");
        view.update(Ok((vec![row("b", 2), row("a", 0), row("c", 3)], Some(1))));
        assert!(
            lines(&mut view)[0]
                .starts_with("locks: 3, waiting calls: 5, clients without an answer: 1")
        );
        assert_eq!(keys(&mut view), ["a", "b", "c"]);
        press(&mut view, KeyCode::Char('w'));
        assert_eq!(keys(&mut view), ["c", "b", "a"]);
        press(&mut view, KeyCode::Char(' '));
        assert_eq!(keys(&mut view), ["c", "b"]);
        press(&mut view, KeyCode::Down);
        press(&mut view, KeyCode::PageDown);
        assert_eq!(lines(&mut view)[5], "b", "the details of the last row");
        view.update(Ok((vec![row("hostile\u{1b}", 1)], Some(0))));
        assert!(lines(&mut view)[5].starts_with(r"hostile\u{1b}"), "the row was gone");
    }

    #[test]
    fn the_last_rows_stay_during_an_outage() {
        let mut view = View::default();
        view.update(Ok((vec![row("a", 0)], Some(0))));
        view.update(Err(Failure::new(Code::Unavailable, "no answer")));
        assert_eq!(lines(&mut view)[0], "no answer");
        assert_eq!(keys(&mut view), ["a"]);
    }

    #[test]
    fn three_keys_end_the_program() {
        let mut view = View::default();
        assert!(press(&mut view, KeyCode::Char('q')) && press(&mut view, KeyCode::Esc));
        assert!(view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!press(&mut view, KeyCode::Char('c')));
    }
}
