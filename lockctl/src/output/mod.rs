//! What the commands print: a table for people, or JSON for programs, once or again and again.

pub(crate) mod records;
pub(crate) mod table;
pub(crate) mod text;

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use serde::Serialize;

use self::records::rfc3339;
use self::table::Table;
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
        value_parser = span::parse,
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
    /// One object for each row, each on a line
    Ndjson,
}

/// What a command has found.
pub(crate) trait Listing: Serialize {
    /// A row, as programs read it.
    type Row: Serialize;

    fn rows(&self) -> &[Self::Row];

    fn table(&self) -> Table;
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
        let is_terminal = io::stdout().is_terminal();
        loop {
            match read().await {
                Ok(found) => {
                    let text = self.text(&found)?;
                    let clears = self.watch.is_some() && is_terminal;
                    let clear = if clears { "\x1b[H\x1b[2J" } else { "" };
                    write(&format!("{clear}{text}"))?;
                }
                Err(failure) if self.watch.is_some() && failure.code == Code::Unavailable => {
                    messages.warning(failure);
                }
                Err(failure) => return Err(failure),
            }
            let Some(pause) = self.watch else { return Ok(()) };
            tokio::time::sleep(pause).await;
        }
    }

    fn text<R: Listing>(&self, found: &R) -> Result<String, Failure> {
        let at = rfc3339(SystemTime::now());
        match self.output {
            OutputFormat::Table => Ok(found.table().to_string()),
            OutputFormat::Json => line(&at, found),
            OutputFormat::Ndjson => found.rows().iter().map(|row| line(&at, row)).collect(),
        }
    }
}

fn line<T: Serialize>(at: &str, found: &T) -> Result<String, Failure> {
    let text = serde_json::to_string(&Versioned { v: 1, at, found });
    text.map(|text| text + "\n").map_err(|error| Failure::internal("write JSON", error))
}

/// Writes to the output. A reader that has seen enough is no failure, but the end.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    let mut output = anstream::stdout();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::internal("write the output", error)),
        Ok(()) => Ok(()),
    }
}
