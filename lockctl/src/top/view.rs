//! What `top` shows.

use std::time::SystemTime;

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};

use crate::exit::Failure;
use crate::listed_lock::{HEADER, ListedLock, RowOrder};
use crate::output::records::{cell, rfc3339};
use crate::output::text::harmless;

/// The rows that a page has.
const PAGE: usize = 10;

const HELP: &str = "q quit  k key  a age  l left  w waiting  space only waiting";

/// The rows, and how they are shown.
#[derive(Debug)]
pub(super) struct TopView {
    /// All rows of the last answer, in the order that is shown.
    rows: Vec<ListedLock>,
    /// The places of the rows that are shown.
    shown: Vec<usize>,
    unanswered: Option<u64>,
    /// When the last answer came; empty before the first one.
    updated: String,
    /// Why there is no newer answer.
    problem: Option<String>,
    order: RowOrder,
    only_waiting: bool,
    /// The place of the selected row among those that are shown.
    selected: Option<usize>,
    /// The first row that has room on the screen.
    first: usize,
}

impl Default for TopView {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            shown: Vec::new(),
            unanswered: None,
            updated: String::new(),
            problem: None,
            order: RowOrder::Key,
            only_waiting: false,
            selected: None,
            first: 0,
        }
    }
}

impl TopView {
    /// Shows an answer. After a failure, the last rows stay.
    pub(super) fn update(&mut self, answer: Result<(Vec<ListedLock>, Option<u64>), Failure>) {
        match answer {
            Ok((rows, unanswered)) => {
                let selected = self.selected_lock();
                (self.rows, self.unanswered) = (rows, unanswered);
                self.arrange(selected.as_ref());
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
            KeyCode::Char('k') => self.change(|view| view.order = RowOrder::Key),
            KeyCode::Char('a') => self.change(|view| view.order = RowOrder::Age),
            KeyCode::Char('l') => self.change(|view| view.order = RowOrder::Left),
            KeyCode::Char('w') => self.change(|view| view.order = RowOrder::Waiting),
            KeyCode::Char(' ') => self.change(|view| view.only_waiting = !view.only_waiting),
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
        let last = self.shown.len().checked_sub(1);
        self.selected = last.map(|last| self.selected.map_or(0, next).min(last));
    }

    /// Changes which rows are shown, or their order. The selected lock stays selected.
    fn change(&mut self, change: impl FnOnce(&mut Self)) {
        let selected = self.selected_lock();
        change(self);
        self.arrange(selected.as_ref());
    }

    /// The key of the selected row, and the id of its client.
    fn selected_lock(&self) -> Option<(String, Option<String>)> {
        let row = &self.rows[*self.shown.get(self.selected?)?];
        Some(identity(row))
    }

    /// Sorts and selects the rows, once for each change.
    fn arrange(&mut self, selected: Option<&(String, Option<String>)>) {
        self.order.sort(&mut self.rows);
        let is_shown = |row: &ListedLock| row.waiting > Some(0) || !self.only_waiting;
        let places = (0..self.rows.len()).filter(|at| is_shown(&self.rows[*at]));
        self.shown = places.collect();
        let is_selected = |at: &usize| Some(&identity(&self.rows[*at])) == selected;
        let found = self.shown.iter().position(is_selected);
        // If the lock is gone, the row that has its place is selected.
        let last = self.shown.len().checked_sub(1);
        self.selected =
            found.or_else(|| self.selected.zip(last).map(|(selected, last)| selected.min(last)));
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let areas = [1, 0, 2, 1].map(|lines| match lines {
            0 => Constraint::Fill(1),
            lines => Constraint::Length(lines),
        });
        let [top, middle, below, bottom] = Layout::vertical(areas).areas(frame.area());
        let selected = self.selected.and_then(|at| self.shown.get(at));
        let details = selected.map(|at| details(&self.rows[*at]));
        frame.render_widget(self.status(), top);
        // Without the header.
        let room = usize::from(middle.height.saturating_sub(1));
        if let Some(selected) = self.selected {
            let lowest = (selected + 1).saturating_sub(room);
            self.first = self.first.clamp(lowest, selected.max(lowest));
        }
        self.first = self.first.min(self.shown.len().saturating_sub(room));
        let visible = self.shown.iter().skip(self.first).take(room).map(|at| &self.rows[*at]);
        let row = |row: &ListedLock| Row::new(row.cells().map(|cell| harmless(&cell)));
        let widths = [
            Constraint::Fill(3),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Length(7),
            Constraint::Fill(3),
            Constraint::Fill(2),
        ];
        let table = Table::new(visible.map(row), widths)
            .header(Row::new(HEADER).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let highlighted = self.selected.and_then(|at| at.checked_sub(self.first));
        let mut state = TableState::new().with_selected(highlighted);
        frame.render_stateful_widget(table, middle, &mut state);
        frame.render_widget(Paragraph::new(details.unwrap_or_default()), below);
        frame.render_widget(Line::from(HELP), bottom);
    }

    /// The first line.
    fn status(&self) -> Line<'static> {
        if let Some(problem) = &self.problem {
            let text = harmless(problem);
            return Line::styled(text, Style::new().add_modifier(Modifier::BOLD));
        }
        if self.updated.is_empty() {
            return Line::from("asking the clients");
        }
        let waiting: u64 = self.shown.iter().filter_map(|at| self.rows[*at].waiting).sum();
        let silent = match self.unanswered {
            Some(0) => String::new(),
            Some(count) => format!(", clients without an answer: {count}"),
            None => ", clients without an answer: unknown".to_owned(),
        };
        Line::from(format!(
            "locks: {}, waiting calls: {waiting}{silent}  {}",
            self.shown.len(),
            self.updated
        ))
    }
}

/// What a row is about: its key, and the id of its client.
fn identity(row: &ListedLock) -> (String, Option<String>) {
    (row.key.clone(), row.holder.as_ref().and_then(|holder| holder.id.clone()))
}

/// The two lines about the selected row.
fn details(row: &ListedLock) -> String {
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

    fn row(key: &str, waiting: u64) -> ListedLock {
        ListedLock::without_holder(key.to_owned(), waiting)
    }

    /// The lines of a terminal.
    fn lines(view: &mut TopView) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(80, 8)).expect("no terminal is needed");
        terminal.draw(|frame| view.draw(frame)).expect("no terminal is needed");
        let cells = terminal.backend().buffer().content().chunks(80);
        let line = |cells: &[ratatui::buffer::Cell]| {
            cells.iter().map(ratatui::buffer::Cell::symbol).collect()
        };
        cells.map(line).map(|line: String| line.trim_end().to_owned()).collect()
    }

    fn keys(view: &mut TopView) -> Vec<String> {
        let rows = lines(view).into_iter().skip(2).take(3);
        rows.filter_map(|line| line.split_whitespace().next().map(ToOwned::to_owned)).collect()
    }

    fn press(view: &mut TopView, code: KeyCode) -> bool {
        view.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn rows_are_sorted_and_filtered_by_keys() {
        let mut view = TopView::default();
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
    fn the_selected_lock_stays_selected_when_rows_come_and_go() {
        let mut view = TopView::default();
        view.update(Ok((vec![row("b", 0), row("d", 0)], Some(0))));
        press(&mut view, KeyCode::Down);
        press(&mut view, KeyCode::Down);
        assert_eq!(lines(&mut view)[5], "d");
        view.update(Ok((vec![row("a", 0), row("b", 0), row("c", 0), row("d", 9)], Some(0))));
        assert_eq!(lines(&mut view)[5], "d");
        press(&mut view, KeyCode::Char('w'));
        assert_eq!(lines(&mut view)[5], "d");
        view.update(Ok((vec![row("a", 0), row("b", 0)], Some(0))));
        assert_eq!(lines(&mut view)[5], "a", "the row in its place");
    }

    #[test]
    fn only_rows_with_room_are_drawn_and_the_selected_one_is_among_them() {
        let mut view = TopView::default();
        let rows = (0..1000).map(|number| row(&format!("k{number:03}"), 0)).collect();
        view.update(Ok((rows, Some(0))));
        press(&mut view, KeyCode::Down);
        for _ in 0..50 {
            press(&mut view, KeyCode::PageDown);
        }
        assert_eq!(
            (lines(&mut view)[5].as_str(), keys(&mut view)),
            ("k500", vec!["k498".into(), "k499".into(), "k500".into()])
        );
        press(&mut view, KeyCode::Up);
        assert_eq!(keys(&mut view), ["k498", "k499", "k500"]);
        for _ in 0..60 {
            press(&mut view, KeyCode::PageUp);
        }
        assert_eq!(keys(&mut view), ["k000", "k001", "k002"]);
    }

    #[test]
    fn the_last_rows_stay_during_an_outage() {
        let mut view = TopView::default();
        view.update(Ok((vec![row("a", 0)], Some(0))));
        view.update(Err(Failure::new(Code::Unavailable, "no answer")));
        assert_eq!(lines(&mut view)[0], "no answer");
        assert_eq!(keys(&mut view), ["a"]);
    }

    #[test]
    fn three_keys_end_the_program() {
        let mut view = TopView::default();
        assert!(press(&mut view, KeyCode::Char('q')) && press(&mut view, KeyCode::Esc));
        assert!(view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!press(&mut view, KeyCode::Char('c')));
    }
}
