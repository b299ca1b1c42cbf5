//! When a call returns after its body has ended.

/// Whether `Lock::run` and annotated functions wait for the release of their
/// lock.
///
/// For annotated functions, see the option `release`.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError, ReleaseMode};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// let lock = client.lock("session:7").release_mode(ReleaseMode::Background);
/// lock.run(async { /* … */ }).await?;
/// // Waits until all releases are complete.
/// client.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ReleaseMode {
    /// The call returns when the store has confirmed the release, or when the lock was handed off to
    /// another task of the client. If the store does not confirm it, the call logs a warning and
    /// returns the body's output, and the release continues in the background. This is the default.
    #[default]
    Awaited,
    /// The call returns when its body has ended, and the release is on its way. This saves one of
    /// the two round trips of a call. While 1,000 releases of the client are on their way, calls
    /// wait for their own.
    ///
    /// The release is repeated until the store answers or the lease has ended, even if the runtime
    /// of the call ends, and `LockClient::shutdown` waits for it. The next call
    /// of the client on the key waits for it, within its own wait; with a wait of zero, it may find
    /// the lock busy.
    ///
    /// If the process ends before the release has been sent, the lock is free only at the end of
    /// its lease. A program that ends after its last call has to call `shutdown` first.
    Background,
}
