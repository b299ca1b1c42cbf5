//! Writing to stderr without waiting for its reader.
//!
//! A reader that pauses, such as a pager, blocks whoever writes to its pipe. The loop that watches a lock and the
//! threads that renew it must never be blocked. They put their texts into a queue, and a thread of its own writes them.
//! What does not fit into the queue is dropped, and the number of dropped texts is written later.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most bytes that wait.
const CAPACITY: usize = 256 * 1024;

/// The time for the last texts at the end of the process.
const LAST_TEXTS: Duration = Duration::from_secs(1);

/// The queue of this process.
pub(super) static STDERR: TextQueue = TextQueue::new();

/// The texts that wait for stderr.
pub(super) struct TextQueue {
    state: Mutex<WaitingTexts>,
    /// The state has changed.
    changed: Condvar,
}

struct WaitingTexts {
    texts: VecDeque<String>,
    /// The number of bytes of all texts in the queue.
    bytes: usize,
    /// The number of texts that had no room since the last report of it.
    dropped: u64,
    /// Whether the thread has been started.
    has_writer: bool,
    /// Whether the thread is writing a text that has left the queue.
    is_writing: bool,
    /// Whether the texts stay in the queue for now.
    is_held: bool,
}

impl TextQueue {
    const fn new() -> Self {
        let state = WaitingTexts {
            texts: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            has_writer: false,
            is_writing: false,
            is_held: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Adds a text, which may contain colours. Never waits for the reader.
    pub(super) fn push(&'static self, text: String) {
        let mut state = self.lock();
        if !state.push(text) {
            return;
        }
        if !state.has_writer {
            let writer = std::thread::Builder::new().name("lockctl-stderr".to_owned());
            // Without the thread, the texts are lost, which is no reason to end a command.
            state.has_writer = writer.spawn(|| self.write_all()).is_ok();
        }
        self.changed.notify_all();
    }

    /// Keeps the texts in the queue, or writes them again.
    pub(super) fn hold(&self, is_held: bool) {
        self.lock().is_held = is_held;
        self.changed.notify_all();
    }

    /// Waits until all texts are written, for a limited time: their reader may never read them.
    pub(super) fn flush(&self) {
        self.hold(false);
        let is_busy = |state: &mut WaitingTexts| {
            state.has_writer && (state.is_writing || !state.texts.is_empty())
        };
        // Nothing can be done about texts that are not written in time.
        let _ = self.changed.wait_timeout_while(self.lock(), LAST_TEXTS, is_busy);
    }

    /// What the thread does.
    fn write_all(&self) {
        loop {
            let text = self.next();
            // Nothing can be done about a closed stderr.
            let _ = anstream::stderr().write_all(text.as_bytes());
            self.lock().is_writing = false;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> String {
        let must_wait = |state: &mut WaitingTexts| state.is_held || state.texts.is_empty();
        let state = self.changed.wait_while(self.lock(), must_wait);
        state.unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// No code panics while it has the state, so it is consistent in any case.
    fn lock(&self) -> MutexGuard<'_, WaitingTexts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingTexts {
    /// Returns whether there was room.
    fn push(&mut self, text: String) -> bool {
        if self.bytes + text.len() > CAPACITY {
            self.dropped += 1;
            return false;
        }
        self.bytes += text.len();
        self.texts.push_back(text);
        true
    }

    /// The next text of a queue that has one. All texts before the dropped ones come first.
    fn pop(&mut self) -> String {
        self.is_writing = true;
        let mut text = self.texts.pop_front().unwrap_or_default();
        self.bytes -= text.len();
        if self.texts.is_empty() && self.dropped > 0 {
            let dropped = std::mem::take(&mut self.dropped);
            // A text takes anything.
            let _ = writeln!(text, "lockctl: {dropped} messages were dropped");
        }
        text
    }
}

/// The log of the library, whose threads must not be blocked either.
pub(super) struct LogWriter;

impl Write for LogWriter {
    /// A whole event.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        // The log contains texts of servers and of other clients.
        let lines = text.lines().map(|line| super::printable(line) + "\n");
        STDERR.push(lines.collect());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_without_room_are_counted() {
        let queue = TextQueue::new();
        let mut state = queue.lock();
        let long = "a".repeat(CAPACITY / 2);
        assert!(state.push(long.clone()) && state.push(long.clone()));
        assert!(!state.push("b".to_owned()) && !state.push("c".to_owned()));
        assert_eq!(state.pop(), long);
        assert!(state.push("d\n".to_owned()));
        assert_eq!(state.pop(), long);
        assert_eq!(state.pop(), "d\nlockctl: 2 messages were dropped\n");
        assert_eq!((state.bytes, state.dropped), (0, 0));
    }
}
