//! What only the guard of a read-write lock can do.

use std::fmt;
use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::handoff::Hold;
use crate::error::LockError;

/// The hold of a reader or a writer, whose mode can change. See [`LockGuard::read_write`](crate::LockGuard::read_write).
#[derive(Clone, Copy)]
#[must_use = "the mode changes by its methods"]
pub struct ReadWriteHold<'a> {
    engine: &'a Arc<Engine>,
    hold: &'a Hold,
}

impl<'a> ReadWriteHold<'a> {
    pub(crate) fn new(engine: &'a Arc<Engine>, hold: &'a Hold) -> Self {
        Self { engine, hold }
    }

    /// Makes a writer of a reader, if it is the only reader and nobody waits for the lock. Returns whether
    /// the guard is that of a writer now. The lock is held all the time. Costs one round trip, or none if
    /// other readers of this process share the hold.
    ///
    /// Two readers that both waited for their upgrade would wait for each other, so there is no waiting
    /// upgrade: after `false`, release the guard, acquire the lock for a writer, and check again what the
    /// reader has found. After a [`downgrade`](Self::downgrade) without an answer, the result is `false` for
    /// the rest of the hold.
    ///
    /// Cancel safe: the guard is that of a reader until the future is complete. If it is dropped, or after
    /// [`LockError::Unavailable`], the store may exclude other readers until the guard is released.
    ///
    /// # Errors
    ///
    /// * [`LockError::Lost`]: the lock is no longer held.
    /// * [`LockError::Unavailable`]: the store has not answered in time. The guard is still that of a
    ///   reader.
    /// * [`LockError::Config`]: another change of the mode is in progress, or there is no tokio runtime with timers and,
    ///   for Redis, I/O here.
    /// * [`LockError::Denied`], [`LockError::ShutDown`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError, LockMode};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let guard = client.read_write("catalog").read().acquire().await?;
    /// assert!(guard.read_write().expect("a read-write lock").try_upgrade().await?);
    /// guard.read_write().expect("a read-write lock").downgrade().await?;
    /// assert_eq!(guard.mode(), Some(LockMode::Read));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_upgrade(self) -> Result<bool, LockError> {
        self.engine.try_upgrade(self.hold).await
    }

    /// Makes a reader of a writer, and lets in the readers that wait, up to the first writer in the order of arrival.
    /// No other writer can come in between. Costs one round trip.
    ///
    /// Cancel safe: the guard is that of a reader as soon as the future is polled. If it is dropped, or
    /// after [`LockError::Unavailable`], the store may exclude other readers until the guard is released or
    /// this method is called again.
    ///
    /// # Errors
    ///
    /// As for [`try_upgrade`](Self::try_upgrade), and [`LockError::Config`] if nested guards share the
    /// hold.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let catalog = LockClient::memory().read_write("catalog");
    /// let guard = catalog.write().acquire().await?;
    /// guard.read_write().expect("a read-write lock").downgrade().await?;
    /// assert!(catalog.read().try_acquire().await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn downgrade(self) -> Result<(), LockError> {
        self.engine.downgrade(self.hold).await
    }
}

impl fmt::Debug for ReadWriteHold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.hold.lease().mode();
        f.debug_struct("ReadWriteHold").field("key", self.hold.key()).field("mode", &mode).finish()
    }
}
