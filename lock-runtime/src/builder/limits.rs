//! The limits of a client.

use std::time::Duration;

use super::LockClientBuilder;
use crate::engine::fairness::limit::HandoffLimit;

impl LockClientBuilder {
    /// Limits how long this process may hand a lock off among its own tasks while other processes
    /// wait: for this many holds or for this time, whichever ends first. 32 holds and 50 ms by
    /// default.
    ///
    /// A hand-off usually costs the store nothing. At the limit, the lock goes to the process that
    /// has waited longest (in the wire formats `Redisson` and `Timestamp`, to any of them). If no
    /// other process is known to wait, the hand-offs continue, for at most a second in total.
    /// Processes with this library are known to wait; clients that poll are not. With zero holds or
    /// zero time, each holder releases the key, and the next one acquires it anew.
    ///
    /// The time is at most 1 s. For a longer time, [`connect`](Self::connect) returns
    /// [`LockError::Config`](crate::LockError::Config).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// // Few holds at a time, so that other processes wait briefly.
    /// let client = LockClient::builder()
    ///     .url("memory:")
    ///     .handoff_limit(4, Duration::from_millis(5))
    ///     .connect()
    ///     .await?;
    /// client.lock("report").run(async { /* … */ }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn handoff_limit(mut self, holds: u32, time: Duration) -> Self {
        self.handoff_limit = HandoffLimit { holds, time };
        self
    }

    /// Sets the largest number of keys that one call may lock together, from 1 to 1,024. 64 by
    /// default. See [`LockClient::lock_all`](crate::LockClient::lock_all).
    ///
    /// A server runs the request for all keys of a call without interruption, so other clients wait
    /// meanwhile: a few microseconds for each key.
    ///
    /// # Errors
    ///
    /// [`connect`](Self::connect) returns [`LockError::Config`](crate::LockError::Config) if the
    /// number is not in this range.
    ///
    /// # Example
    ///
    /// ```
    /// # async fn example() -> Result<(), lock_runtime::LockError> {
    /// use lock_runtime::LockClient;
    ///
    /// let client = LockClient::builder().url("memory:").max_keys(200).connect().await?;
    /// let seats = (1..=100).map(|seat| format!("seat:{seat}"));
    /// client.lock_all(seats).run(async { /* … */ }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = Some(max_keys);
        self
    }

    /// Sets the wait from which a call is logged, with the level `WARN`: when it has got the lock or has failed,
    /// with its key, template and function, and with the holder if it was busy. From 10 ms to 7 days, or `None` for
    /// never. 2 s by default.
    ///
    /// # Errors
    ///
    /// [`connect`](Self::connect) returns [`LockError::Config`](crate::LockError::Config) if the time is not in
    /// this range.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example() -> Result<(), lock_runtime::LockError> {
    /// use lock_runtime::LockClient;
    /// use std::time::Duration;
    ///
    /// let builder = LockClient::builder().url("memory:").slow_wait(Duration::from_secs(10));
    /// let client = builder.slow_hold(Duration::from_secs(60)).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn slow_wait(mut self, threshold: impl Into<Option<Duration>>) -> Self {
        self.slow.wait = threshold.into();
        self
    }

    /// Sets how long a lock may be held before that is logged, with the level `WARN`: once for each hold, with its
    /// key, template and function, at the next renewal or at the end of the hold. From 10 ms to 7 days, or `None`
    /// (the default) for half of the [`max_hold`](Self::max_hold) of the lock, if it has one. A threshold that no
    /// hold reaches turns the warning off.
    ///
    /// # Errors
    ///
    /// As for [`slow_wait`](Self::slow_wait).
    pub fn slow_hold(mut self, threshold: impl Into<Option<Duration>>) -> Self {
        self.slow.hold = threshold.into();
        self
    }

    /// Logs two keys that bodies lock in both orders, with the level `WARN` and both functions: such bodies wait
    /// for each other if they meet. Each pair is logged once. Off by default. Test clients
    /// (`LockClient::testing`) look for them unless this is `false`, and panic.
    ///
    /// Only bodies count, of annotated functions and of `run`, and not guards. Bodies under a common exclusive lock
    /// never meet, so their orders do not count. Costs a mutex and a few allocations for each nested call. The
    /// client remembers 10,000 pairs, and ignores further ones.
    pub fn deadlock_warnings(mut self, deadlock_warnings: bool) -> Self {
        self.finds_orders = Some(deadlock_warnings);
        self
    }
}
