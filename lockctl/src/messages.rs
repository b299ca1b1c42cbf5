//! What is told on stderr.

use std::fmt;
use std::io::{IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use tracing_subscriber::filter::LevelFilter;

use crate::options::GlobalOptions;

/// How much is told on stderr.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Messages {
    quiet: bool,
    verbose: bool,
}

impl Messages {
    /// Also decides on the colours of both outputs, and on the log of the library.
    pub(crate) fn new(options: &GlobalOptions) -> Self {
        if options.no_color {
            anstream::ColorChoice::Never.write_global();
        }
        if options.verbose > 1 {
            let level = if options.verbose > 2 { LevelFilter::DEBUG } else { LevelFilter::INFO };
            let log = tracing_subscriber::fmt().with_max_level(level);
            // Colours belong to terminals only, and the log cannot tell.
            log.with_ansi(false).with_writer(std::io::stderr).init();
        }
        Self { quiet: options.quiet, verbose: options.verbose > 0 }
    }

    /// Why the command fails. Always told.
    pub(crate) fn error(text: impl fmt::Display) {
        let style = AnsiColor::Red.on_default().bold();
        Self::line(style, "error: ", text);
    }

    /// What the caller should know although the command does not fail.
    pub(crate) fn warning(self, text: impl fmt::Display) {
        if !self.quiet {
            let style = AnsiColor::Yellow.on_default().bold();
            Self::line(style, "warning: ", text);
        }
    }

    /// What a curious caller wants to know.
    pub(crate) fn detail(self, text: impl fmt::Display) {
        if self.verbose {
            Self::line(Style::new(), "", text);
        }
    }

    /// Asks, on a line of its own that the answer ends.
    pub(crate) fn question(text: impl fmt::Display) {
        let mut stderr = anstream::stderr();
        let _ = write!(stderr, "lockctl: {text}").and_then(|()| stderr.flush());
    }

    /// How far something is that takes long. Only terminals show it, on one line.
    pub(crate) fn progress(self, text: impl fmt::Display) {
        if !self.quiet && std::io::stderr().is_terminal() {
            let _ = write!(std::io::stderr(), "\r\x1b[Klockctl: {text}");
        }
    }

    /// Removes the last progress.
    pub(crate) fn end_progress(self) {
        if !self.quiet && std::io::stderr().is_terminal() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn line(style: Style, kind: &str, text: impl fmt::Display) {
        let mut stderr = anstream::stderr();
        // Nothing can be done about a closed stderr, and a command that runs must not end because of it.
        let _ = writeln!(stderr, "lockctl: {style}{kind}{style:#}{text}");
    }
}
