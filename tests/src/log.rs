//! What was logged, of all threads of the test process.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tracing_subscriber::filter::LevelFilter;

/// Line by line.
static LINES: OnceLock<Mutex<Vec<String>>> = OnceLock::new();

/// The log of the process from some moment on, from level `TRACE` on.
///
/// Tests share it, so each looks for what only it can have caused: a key or a port of its own.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    /// How many lines there were before.
    start: usize,
}

impl Log {
    /// From now on.
    #[must_use]
    pub fn here() -> Self {
        LINES.get_or_init(|| {
            let log = tracing_subscriber::fmt()
                .with_max_level(LevelFilter::TRACE)
                .with_ansi(false)
                .with_writer(|| Writer);
            // Another one can have been installed only by a test's own mistake.
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
    let lines = LINES.get().expect("a log begins by `here`");
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Writer;

impl Write for Writer {
    /// Is given whole lines.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // What is logged while the subscriber is being installed has no place yet.
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
