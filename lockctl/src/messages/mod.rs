//! Messages on stderr.

mod stderr;

use std::fmt;
use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};
use tracing_subscriber::filter::LevelFilter;

use self::stderr::{LogWriter, STDERR};
use crate::options::GlobalOptions;
use crate::output::text::printable;

/// Returns to the start of the line, and erases it.
const ERASED_LINE: &str = "\r\x1b[K";

/// Which messages are written.
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
            log.with_ansi(false).with_writer(|| LogWriter).init();
        }
        Self { quiet: options.quiet, verbose: options.verbose > 0 }
    }

    /// Shows what the page of `serve` changes, and for whom it refuses to, unless the whole log is shown.
    #[cfg(feature = "serve")]
    pub(crate) fn show_actions(self, options: &GlobalOptions) {
        use tracing_subscriber::filter::Targets;
        use tracing_subscriber::prelude::*;

        if !self.quiet && options.verbose < 2 {
            let log = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| LogWriter);
            let actions = Targets::new().with_target("lock_dashboard", LevelFilter::INFO);
            tracing_subscriber::registry().with(log.with_filter(actions)).init();
        }
    }

    /// Why the command fails. Always written.
    pub(crate) fn error(text: impl fmt::Display) {
        let style = AnsiColor::Red.on_default().bold();
        Self::line(style, "error: ", text);
    }

    /// Why nothing was done about a lock that is busy, which the exit code tells as well.
    pub(crate) fn refusal(self, text: impl fmt::Display) {
        if !self.quiet {
            Self::error(text);
        }
    }

    /// What the caller should know although the command does not fail.
    pub(crate) fn warning(self, text: impl fmt::Display) {
        if !self.quiet {
            let style = AnsiColor::Yellow.on_default().bold();
            Self::line(style, "warning: ", text);
        }
    }

    /// What the caller asked for, such as the address of a page.
    #[cfg(any(feature = "postgres", feature = "serve"))]
    pub(crate) fn note(self, text: impl fmt::Display) {
        if !self.quiet {
            Self::line(Style::new(), "", text);
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
        STDERR.push(format!("lockctl: {}", printable(&text.to_string())));
        Self::flush();
    }

    /// How far something is that takes long. Only terminals show it, on one line.
    pub(crate) fn progress(self, text: impl fmt::Display) {
        if !self.quiet && std::io::stderr().is_terminal() {
            STDERR.push(format!("{ERASED_LINE}lockctl: {text}"));
        }
    }

    /// Removes the last progress.
    pub(crate) fn end_progress(self) {
        if !self.quiet && std::io::stderr().is_terminal() {
            STDERR.push(ERASED_LINE.to_owned());
        }
    }

    /// Keeps messages for later, or writes them again.
    pub(crate) fn hold(is_held: bool) {
        STDERR.hold(is_held);
    }

    /// Waits until everything is written, for a limited time.
    pub(crate) fn flush() {
        STDERR.flush();
    }

    fn line(style: Style, kind: &str, text: impl fmt::Display) {
        // Most texts contain keys, or what a server or another client has written.
        let text = printable(&text.to_string());
        STDERR.push(format!("lockctl: {style}{kind}{style:#}{text}\n"));
    }
}
