//! The state of a client, for gauges and diagnosis.

/// The state of a client at one moment, and counters of problems, for gauges and diagnosis. See
/// [`LockClient::stats`](crate::LockClient::stats).
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// let guard = client.lock("report").acquire().await?;
/// assert!(!client.stats().is_idle());
/// guard.release().await?;
/// assert!(client.stats().is_idle());
/// assert_eq!(client.stats().lost, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ClientStats {
    /// The number of locks that are held now. Re-entrant holds of a lock count once.
    pub held: usize,
    /// The number of locks that linger now: they are kept for the next call after their release.
    pub lingering: usize,
    /// The number of keys that calls of this client hold, acquire, release or wait for now.
    pub keys: usize,
    /// The number of calls that now wait in the client's local queues, behind other calls of the
    /// same client.
    pub queued: usize,
    /// The number of background releases and of undos of unanswered requests that are in progress
    /// now.
    pub releasing: usize,
    /// The number of locks that were lost since the client was created, for any
    /// [reason](crate::LostReason). This includes losses that only the release noticed, after which
    /// the caller got the body's result.
    pub lost: u64,
    /// The number of log events of this process, over all clients, that were dropped because the
    /// `tracing` subscriber was too slow.
    pub dropped_events: u64,
}

impl ClientStats {
    /// Whether the client has no held locks, no waiting calls, and no releases in progress.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let Self { held, lingering, keys, queued, releasing, lost: _, dropped_events: _ } = *self;
        [held, lingering, keys, queued, releasing].iter().all(|count| *count == 0)
    }
}
