//! Tables without borders, as wide as the terminal.

use std::fmt;
use std::io::{self, IsTerminal};

use anstyle::Style;
use rustix::termios::tcgetwinsize;

use super::text::{cut, harmless, width};

/// The least number of columns that a shortened cell has.
const NARROWEST: usize = 8;

/// Between two columns.
const GAP: &str = "  ";

/// A table: a line for each row.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    /// The columns that may be shortened, the first one first.
    flexible: &'static [usize],
    /// The number of columns of the terminal. `None` for whole lines.
    columns: Option<usize>,
}

impl Table {
    /// For the output of this process.
    pub(crate) fn new(header: &[&str], flexible: &'static [usize]) -> Self {
        let stdout = io::stdout();
        let size = if stdout.is_terminal() { tcgetwinsize(&stdout).ok() } else { None };
        let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        let header = header.iter().map(|cell| (*cell).to_owned()).collect();
        Self { header, rows: Vec::new(), flexible, columns }
    }

    /// Adds a row. Texts may come from other clients.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| harmless(&cell)).collect());
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.header.iter().map(|cell| width(cell)).collect();
        for row in &self.rows {
            for (cell, widest) in row.iter().zip(&mut widths) {
                *widest = width(cell).max(*widest);
            }
        }
        let total = widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1);
        let mut excess = self.columns.map_or(0, |columns| total.saturating_sub(columns));
        for column in self.flexible {
            let Some(width) = widths.get_mut(*column) else { continue };
            let less = excess.min(width.saturating_sub(NARROWEST));
            *width -= less;
            excess -= less;
        }
        widths
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let bold = Style::new().bold();
        let write = |f: &mut fmt::Formatter<'_>, cells: &[String], style: Style| {
            let mut line = String::new();
            for (cell, columns) in cells.iter().zip(&widths) {
                let cell = cut(cell, *columns);
                let padding = " ".repeat(columns.saturating_sub(width(&cell)));
                line.extend([&*cell, &padding, GAP]);
            }
            writeln!(f, "{style}{}{style:#}", line.trim_end())
        };
        if self.header.iter().any(|cell| !cell.is_empty()) {
            write(f, &self.header, bold)?;
        }
        self.rows.iter().try_for_each(|row| write(f, row, Style::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: Option<usize>) -> String {
        let mut table = Table::new(&["KEY", "HOLDER", "LEFT"], &[1, 0]);
        table.columns = columns;
        table.row(["order:7", "web-3 (pid 4711, shop 1.4.2)", "12.3s"].map(str::to_owned));
        table.row(["report\n", "你好", "5m12s"].map(str::to_owned));
        anstream::adapter::strip_str(&table.to_string()).to_string()
    }

    #[test]
    fn whole_lines_are_written_to_pipes() {
        let expected = "\
KEY       HOLDER                        LEFT
order:7   web-3 (pid 4711, shop 1.4.2)  12.3s
report\\n  你好                          5m12s
";
        assert_eq!(table(None), expected);
    }

    #[test]
    fn long_cells_are_cut_for_terminals() {
        let expected = "\
KEY       HOLDER         LEFT
order:7   web-3 (pid 4…  12.3s
report\\n  你好           5m12s
";
        assert_eq!(table(Some(30)), expected);
        let narrow = table(Some(10));
        assert!(narrow.contains("order:7") && narrow.contains("web-3 (…  12.3s"), "{narrow}");
    }
}
