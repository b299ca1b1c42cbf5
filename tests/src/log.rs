//! What was logged, of all threads of the test process.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tracing_subscriber::filter::LevelFilter;

static LINES: OnceLock<Mutex<Vec<u8>>> = OnceLock::new();

/// Starts to keep the log of the process, from `TRACE` on. Again and again: nothing happens.
///
/// Tests share it, so each looks for what only it can have caused: a key or a port of its own.
pub fn keep_log() {
    LINES.get_or_init(|| {
        let log = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_ansi(false)
            .with_writer(|| Writer);
        // Another one can have been installed only by a test's own mistake.
        log.try_init().expect("no other subscriber");
        Mutex::default()
    });
}

/// The lines that were logged so far and contain all of `words`.
#[must_use]
pub fn logged(words: &[&str]) -> Vec<String> {
    let log = String::from_utf8_lossy(&lines()).into_owned();
    let matching = log.lines().filter(|line| words.iter().all(|word| line.contains(word)));
    matching.map(ToOwned::to_owned).collect()
}

fn lines() -> MutexGuard<'static, Vec<u8>> {
    let lines = LINES.get().expect("`keep_log` was called first");
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Writer;

impl Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Nothing is logged before `keep_log` has set it, and nothing that early is looked for.
        if let Some(lines) = LINES.get() {
            lines.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
