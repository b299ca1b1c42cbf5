//! Reading all locks from the store.

use std::fmt;
use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use crate::connected::Connected;
use crate::error::LockError;
use crate::join::join_all;
use crate::key;
use crate::lock_state::{LockState, StoredLayout};
use crate::store::scanning::ScanPosition;

/// The most keys that are inspected at the same time.
const AT_ONCE: usize = 100;

/// How many times longer than a step the pause after it is.
const PAUSE: u32 = 10;

/// A scan of the store for locks; see [`LockAdmin::scan`](super::LockAdmin::scan).
///
/// The server has to look at all of its keys, also at those that are no locks, because it has no index of locks: it takes
/// about half a second of its time for a million keys. The scan therefore goes in steps of a thousand keys, one at a
/// time, with pauses that are ten times as long, so that other clients hardly notice it.
///
/// A key that is there for the whole scan is found; one that comes or goes in the meantime may be found. In a cluster, the
/// masters are scanned one after the other; a key whose slot is moved meanwhile may be missed.
///
/// Needs the permission for `SCAN`. Its user sees the names of all keys of the server that match.
pub struct LockScan {
    connected: Arc<Connected>,
    /// With the namespace.
    pattern: String,
    /// `None` at the end.
    position: Option<ScanPosition>,
    /// When the next step may begin.
    not_before: Instant,
    pause: u32,
    others: bool,
}

impl LockScan {
    pub(super) fn new(connected: &Arc<Connected>, pattern: &str) -> Self {
        let namespace = &connected.namespace;
        let pattern = match &**namespace {
            "" => pattern.to_owned(),
            namespace => format!("{}:{pattern}", escaped(namespace)),
        };
        Self {
            connected: Arc::clone(connected),
            pattern,
            position: Some(ScanPosition::default()),
            not_before: Instant::now(),
            pause: PAUSE,
            others: false,
        }
    }

    /// Sets how many times longer than a step the pause after it is; 10 by default. With 0, the server has no other
    /// work than the scan and its other clients.
    #[must_use]
    pub fn pause(mut self, times: u32) -> Self {
        self.pause = times;
        self
    }

    /// Sets whether strings are found that no client of this library has written: tokens of other libraries, and any
    /// other text. They are not by default.
    #[must_use]
    pub fn others(mut self, others: bool) -> Self {
        self.others = others;
        self
    }

    /// The locks of the next step, which may be none. `None` at the end.
    ///
    /// Costs one round trip, and a few for every hundred keys that match. After an error, the next call repeats the step.
    ///
    /// Cancel safe: the next call repeats the step.
    ///
    /// # Errors
    ///
    /// * [`LockError::Unavailable`]: the store has not answered.
    /// * [`LockError::Denied`]: the user may not use `SCAN`, or may not read a key.
    /// * [`LockError::Config`]: the store has no keys that could be scanned, or there is no tokio runtime with timers.
    /// * [`LockError::ShutDown`].
    pub async fn next(&mut self) -> Result<Option<Vec<LockState>>, LockError> {
        let Some(position) = self.position.clone() else { return Ok(None) };
        sleep_until(self.not_before).await;
        let began = Instant::now();
        let mut page = self.connected.scan(position, &self.pattern).await?;
        page.keys.retain(|key| !key::is_reserved(key));
        let mut locks = Vec::new();
        for keys in page.keys.chunks(AT_ONCE) {
            let inspections = keys.iter().map(|key| self.connected.inspect(key));
            for state in join_all(inspections).await {
                let state = state?;
                let is_wanted =
                    |state: &LockState| self.others || state.layout != StoredLayout::OtherToken;
                locks.extend(state.filter(is_wanted));
            }
        }
        self.position = page.next;
        self.not_before = Instant::now() + began.elapsed() * self.pause;
        Ok(Some(locks))
    }
}

/// A text that a glob matches literally.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '^' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

impl fmt::Debug for LockScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockScan").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_matched_literally() {
        assert_eq!(escaped(r"a*b?[c]^\d"), r"a\*b\?\[c\]\^\\d");
    }
}
