//! How much a client has on its hands, and what it has lost.

/// What a client has on its hands at one moment, and counts of what should not happen, for gauges
/// and for looking into trouble; see [`LockClient::stats`](crate::LockClient::stats).
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
    /// Locks that are held now. Re-entrant holds share one.
    pub held: usize,
    /// Keys that somebody of this client holds, asks for or waits for now.
    pub keys: usize,
    /// Calls that wait now for somebody of the same client.
    pub queued: usize,
    /// Releases that nobody awaits, and requests that are being undone, now.
    pub releasing: usize,
    /// Locks that were lost since the client was made, for whatever
    /// [reason](crate::LostReason): also those whose holder got its result all the same, because the
    /// loss was found only by the release.
    pub lost: u64,
    /// Log events of this process, of all its clients, that were dropped because the `tracing`
    /// subscriber was too slow for them.
    pub dropped_events: u64,
}

impl ClientStats {
    /// Whether the client has nothing on its hands: no lock, no call that waits, no release.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let Self { held, keys, queued, releasing, lost: _, dropped_events: _ } = *self;
        [held, keys, queued, releasing].iter().all(|count| *count == 0)
    }
}
