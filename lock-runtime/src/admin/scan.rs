//! Reading all locks from the store.

use std::fmt;
use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use crate::connected::Connected;
use crate::error::LockError;
use crate::join::join_all;
use crate::key;
use crate::lock_state::{LockState, StoredLayout};
use crate::runtime;
use crate::store::scanning::ScanPosition;

/// The most keys that are inspected at the same time.
const AT_ONCE: usize = 100;

/// How many times longer than a step the pause after it is.
const PAUSE: u32 = 10;

/// A scan of the store for locks; see [`LockAdmin::scan`](super::LockAdmin::scan).
///
/// A Redis server has to look at all of its keys, also at those that are no locks, because it has no index of locks: the
/// server needs about 0.5 s of CPU time for a million keys. The scan therefore goes in steps of 250 keys, one at
/// a time, with pauses that are ten times as long, so that other clients hardly notice it. PostgreSQL and etcd have an
/// index, so they look only at keys that begin with the part of the pattern before its first special character.
///
/// A key that is there for the whole scan is found; one that comes or goes in the meantime may be found. A lock may be
/// found twice, because the server may name a key twice. In a cluster, the masters are scanned one after the other; a
/// key whose slot is moved meanwhile may be missed.
///
/// Needs the permission for `SCAN` in Redis, and in etcd the one to read all keys with that beginning. Its user sees the
/// names of all keys that match.
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
    /// How many keys were left out.
    unreadable: u64,
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
            unreadable: 0,
        }
    }

    /// Sets how many times longer than a step the pause after it is; 10 by default. With 0, the scan does not
    /// pause.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::connect("redis://127.0.0.1:6379").await?;
    /// // At night, when there are few other clients.
    /// let mut scan = LockAdmin::new(&client).scan("*").pause(1);
    /// while let Some(locks) = scan.next().await? {
    ///     println!("{} locks", locks.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn pause(mut self, times: u32) -> Self {
        self.pause = times;
        self
    }

    /// Sets whether strings are found that no client of this library has written: tokens of other libraries, and in Redis any
    /// other text. They are not by default.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::connect("redis://127.0.0.1:6379").await?;
    /// let mut scan = LockAdmin::new(&client).scan("*").others(true);
    /// while let Some(locks) = scan.next().await? {
    ///     for lock in locks {
    ///         println!("{}: {}", lock.key, lock.layout.as_str());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn others(mut self, others: bool) -> Self {
        self.others = others;
        self
    }

    /// The number of keys so far that the user may not read. They are left out: they are those of other programs, for
    /// example, if the client has no namespace. A key that the server has named twice counts twice.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// The locks of the next step, which may be none. `None` at the end.
    ///
    /// Costs one round trip, one for every hundred keys that match, and one for every hundred clients among the
    /// holders; two in PostgreSQL; in etcd one, and one for each lease of the keys. After an error, the next call repeats
    /// the step.
    ///
    /// Cancel safe: the next call repeats the step, after a pause for the part that was done.
    ///
    /// # Errors
    ///
    /// * [`LockError::Unavailable`]: the store has not answered.
    /// * [`LockError::Denied`]: the user may not use `SCAN`, or not read all keys with that beginning in etcd.
    /// * [`LockError::Config`]: the store has no keys that could be scanned, or there is no tokio runtime with timers.
    /// * [`LockError::ShutDown`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_runtime::admin::LockAdmin;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::connect("redis://127.0.0.1:6379").await?;
    /// let mut scan = LockAdmin::new(&client).scan("order:*");
    /// let mut count = 0;
    /// while let Some(locks) = scan.next().await? {
    ///     count += locks.len();
    /// }
    /// println!("{count} locks, {} keys cannot be read", scan.unreadable());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn next(&mut self) -> Result<Option<Vec<LockState>>, LockError> {
        runtime::checked()?;
        let Some(position) = self.position.clone() else { return Ok(None) };
        sleep_until(self.not_before).await;
        let connected = &self.connected;
        let _pause = PauseAfterStep::of(&mut self.not_before, self.pause);
        let mut page = connected.scan(position, &self.pattern).await?;
        page.keys.retain(|key| !key::is_reserved(key));
        let (mut locks, mut denied) = (page.locks, 0);
        for keys in page.keys.chunks(AT_ONCE) {
            for read in join_all(keys.iter().map(|key| connected.read_lock(key))).await {
                match read {
                    Ok(lock) => locks.extend(lock),
                    Err(LockError::Denied { .. }) => denied += 1,
                    Err(error) => return Err(error),
                }
            }
        }
        locks.retain(|lock| self.others || lock.layout != StoredLayout::OtherToken);
        connected.name_holders(&mut locks).await?;
        self.unreadable += denied;
        self.position = page.next;
        Ok(Some(locks))
    }
}

/// Sets when the next step may begin, also if this one fails or is cancelled.
struct PauseAfterStep<'a> {
    began: Instant,
    not_before: &'a mut Instant,
    times: u32,
}

impl<'a> PauseAfterStep<'a> {
    fn of(not_before: &'a mut Instant, times: u32) -> Self {
        Self { began: Instant::now(), not_before, times }
    }
}

impl Drop for PauseAfterStep<'_> {
    fn drop(&mut self) {
        *self.not_before = Instant::now() + self.began.elapsed() * self.times;
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
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;
    use crate::client::LockClient;

    /// The option that a scan without a usable runtime asks to change.
    fn refused(outcome: Poll<Result<Option<Vec<LockState>>, LockError>>) -> &'static str {
        match outcome {
            Poll::Ready(Err(LockError::Config { option, .. })) => option,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_scan_without_a_runtime_or_without_timers_is_an_error() {
        let mut scan = LockScan::new(LockClient::memory().connected(), "*");
        let outcome = pin!(scan.next()).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(refused(outcome), "runtime");
        let without_timers = tokio::runtime::Builder::new_current_thread().build();
        let outcome = without_timers.expect("a runtime").block_on(scan.next());
        assert_eq!(refused(Poll::Ready(outcome)), "runtime");
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_step_begins_after_a_pause_also_if_a_step_was_cancelled() {
        let mut not_before = Instant::now();
        let step = PauseAfterStep::of(&mut not_before, PAUSE);
        tokio::time::advance(Duration::from_millis(3)).await;
        drop(step);
        assert_eq!(not_before - Instant::now(), Duration::from_millis(30));
    }

    #[test]
    fn a_namespace_is_matched_literally() {
        assert_eq!(escaped(r"a*b?[c]^\d"), r"a\*b\?\[c\]\^\\d");
    }
}
