//! When a call returns after its body has ended.

/// Whether [`Lock::run`](crate::Lock::run) and annotated functions wait for the release of their
/// lock.
///
/// For annotated functions, see the option [`release`](macro@crate::distributed_lock#release).
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError, ReleaseMode};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// let lock = client.lock("session:7").release(ReleaseMode::Background);
/// lock.run(async { /* … */ }).await?;
/// // Waits until all releases are complete.
/// client.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ReleaseMode {
    /// The call returns when the store has confirmed the release, so that the lock is free by then.
    /// If the store does not confirm it, the call logs a warning and returns the body's output, and
    /// the release continues in the background. This is the default.
    #[default]
    Awaited,
    /// The call returns when its body has ended, and the release is on its way. This saves one of
    /// the two round trips of a call.
    ///
    /// The release is sent at once. It is repeated until the store answers or the lease has ended,
    /// also if the runtime of the call ends, and [`shutdown`](crate::LockClient::shutdown) waits
    /// for it. The next call of this process on the key waits for it as well. If the process is
    /// killed at that moment, the lock is free at the end of its lease.
    Background,
}
