//! Captures the log of all threads of the test process.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tracing_subscriber::filter::LevelFilter;

static LINES: OnceLock<Mutex<Vec<String>>> = OnceLock::new();

/// The log of the process from a starting point on, at level `TRACE` and above.
///
/// All tests of a process share the log. A test therefore searches for text that only it can have
/// caused, such as a key or a port of its own.
#[derive(Debug, Clone, Copy)]
pub struct CapturedLog {
    /// The number of lines before the starting point.
    start: usize,
}

impl CapturedLog {
    /// The log from now on.
    #[must_use]
    pub fn here() -> Self {
        Self::of_level(LevelFilter::TRACE)
    }

    /// The same with warnings and errors only, for processes with libraries that log each message.
    /// A process uses one of both.
    #[must_use]
    pub fn warnings() -> Self {
        Self::of_level(LevelFilter::WARN)
    }

    fn of_level(level: LevelFilter) -> Self {
        LINES.get_or_init(|| {
            let log = tracing_subscriber::fmt()
                .with_max_level(level)
                .with_ansi(false)
                .with_writer(|| Writer);
            // Nothing else in this process installs a subscriber, except a test by mistake.
            log.try_init().expect("no other subscriber");
            Mutex::default()
        });
        Self { start: lines().len() }
    }

    /// The lines that contain all of `words`.
    #[must_use]
    pub fn lines(&self, words: &[&str]) -> Vec<String> {
        let lines = lines();
        let matching = lines[self.start..].iter();
        matching.filter(|line| words.iter().all(|word| line.contains(word))).cloned().collect()
    }
}

fn lines() -> MutexGuard<'static, Vec<String>> {
    let lines = LINES.get().expect("`CapturedLog::here` was called before");
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Writer;

impl Write for Writer {
    /// Each call gets one whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Lines that are logged while the subscriber is being installed are dropped.
        if let Some(lines) = LINES.get() {
            let text = String::from_utf8_lossy(line).into_owned();
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
