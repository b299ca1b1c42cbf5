//! What the commands print: a table for people, or JSON for programs, once or again and again.

pub(crate) mod records;
pub(crate) mod table;
pub(crate) mod text;

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use self::records::rfc3339;
use self::table::Table;
use self::text::is_hidden;
use crate::exit::{Code, Failure};
use crate::messages::Messages;
use crate::span;

/// How to print.
#[derive(Debug, Args)]
pub(crate) struct OutputOptions {
    /// The format of the output
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Table)]
    output: OutputFormat,
    /// Print again and again, every two seconds or after this time
    #[arg(
        long,
        value_name = "TIME",
        value_parser = span::parse_pause,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2s"
    )]
    watch: Option<Duration>,
}

/// A format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// For people
    Table,
    /// One object with a version, on one line
    Json,
    /// One object for each row, each on a line, and one for answers that are missing
    Ndjson,
}

/// What a command has found.
pub(crate) trait Listing: Serialize {
    /// A row, as programs read it.
    type Row: Serialize;

    fn rows(&self) -> &[Self::Row];

    /// The number of clients that have not answered, if it is known. Zero where none were asked.
    fn unanswered(&self) -> Option<u64> {
        Some(0)
    }

    /// What a table without rows says instead.
    fn nothing(&self) -> Option<String> {
        None
    }

    fn table(&self) -> Table;
}

/// What is missing from the rows: the last line of them, if anything is.
#[derive(Serialize)]
struct MissingAnswers {
    unanswered: Option<u64>,
}

/// An object with the version of its fields, and the time at which they were read.
#[derive(Serialize)]
struct Versioned<'a, T> {
    v: u32,
    at: &'a str,
    #[serde(flatten)]
    found: &'a T,
}

impl OutputOptions {
    /// Prints what is read, once or again and again. While it watches, a store that does not answer is only
    /// reported.
    pub(crate) async fn print<R: Listing>(
        &self,
        messages: Messages,
        mut read: impl AsyncFnMut() -> Result<R, Failure>,
    ) -> Result<(), Failure> {
        let is_table = self.output == OutputFormat::Table;
        let clears = self.watch.is_some() && is_table && io::stdout().is_terminal();
        loop {
            // Messages about this reading are shown below its table.
            Messages::hold(clears);
            match read().await {
                Ok(found) => {
                    if clears {
                        written(io::stdout(), "\x1b[H\x1b[2J")?;
                    }
                    let text = self.text(&found)?;
                    if is_table { write(&text)? } else { written(io::stdout(), &text)? }
                }
                Err(failure) if self.watch.is_some() && failure.code == Code::Unavailable => {
                    messages.warning(failure);
                }
                Err(failure) => return Err(failure),
            }
            Messages::hold(false);
            let Some(pause) = self.watch else { return Ok(()) };
            tokio::time::sleep(pause).await;
            // Nothing may have been written since the reader has gone.
            if reader_has_gone() {
                return Err(gone());
            }
        }
    }

    fn text<R: Listing>(&self, found: &R) -> Result<String, Failure> {
        let at = rfc3339(SystemTime::now());
        match self.output {
            OutputFormat::Table => Ok(match found.nothing().filter(|_| found.rows().is_empty()) {
                Some(nothing) => nothing + "\n",
                None => found.table().to_string(),
            }),
            OutputFormat::Json => line(&at, found),
            OutputFormat::Ndjson => {
                let rows = found.rows().iter().map(|row| line(&at, row));
                let unanswered = found.unanswered();
                let missing = (unanswered != Some(0)).then_some(MissingAnswers { unanswered });
                rows.chain(missing.iter().map(|missing| line(&at, missing))).collect()
            }
        }
    }
}

fn line<T: Serialize>(at: &str, found: &T) -> Result<String, Failure> {
    let text = serde_json::to_string(&Versioned { v: 1, at, found });
    let text = text.map_err(|error| Failure::internal("write JSON", error))?;
    Ok(visible_json(&text) + "\n")
}

/// The same JSON. Characters that could hide or reorder a part of the line, or control a terminal, are written as
/// `\u` and four digits.
fn visible_json(text: &str) -> String {
    use std::fmt::Write;

    let mut visible = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) {
            // They only occur in strings.
            for unit in c.encode_utf16(&mut [0; 2]) {
                // A text takes anything.
                let _ = write!(visible, "\\u{unit:04x}");
            }
        } else {
            visible.push(c);
        }
    }
    visible
}

/// Writes to the output, with colours if they are wanted.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    written(anstream::stdout(), text)
}

fn written(mut output: impl Write, text: &str) -> Result<(), Failure> {
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(gone()),
        Err(error) => Err(Failure::internal("write the output", error)),
        Ok(()) => Ok(()),
    }
}

/// A reader that has seen enough is the end of the command, and no failure.
fn gone() -> Failure {
    Failure::new(Code::ReaderGone, "the reader of the output has gone")
}

/// Whether the output is a pipe that nobody reads.
fn reader_has_gone() -> bool {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A failure is noticed when something is written.
    poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_escaped_in_json() {
        let hostile = "a\u{7f}\u{9b}\u{202e}\u{e0001}é你";
        let text = visible_json(&serde_json::to_string(hostile).expect("a text"));
        assert_eq!(text, r#""a\u007f\u009b\u202e\udb40\udc01é你""#);
        assert_eq!(serde_json::from_str::<String>(&text).expect("JSON"), hostile);
    }
}
