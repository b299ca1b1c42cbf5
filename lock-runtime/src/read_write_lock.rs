//! A read-write lock.

use crate::lock::Lock;
use crate::lock_mode::LockMode;

/// A read-write lock: at a time, it has any number of readers, or one writer. Created by
/// [`LockClient::read_write`](crate::LockClient::read_write).
///
/// [`read`](Self::read) and [`write`](Self::write) return a [`Lock`] with all its options and methods,
/// and all its promises: the body of a reader is dropped when its lock is lost, a reader that dies
/// leaves after its own lease, and so on.
///
/// **Order.** Calls get the lock in the order in which their processes ask for it, as with the `RwLock` of tokio. A reader that
/// comes while a writer waits, waits behind it; the readers between two writers have the lock together. The writers of one
/// process may pass the lock on among themselves within their turn, up to the
/// [`handoff_limit`](crate::LockClientBuilder::handoff_limit). A call whose process is suspended or unreachable when it is its
/// turn delays the others for at most 3 s.
///
/// **Cost.** The first reader of a process costs one round trip. While it has the lock, the other readers of
/// the process join it without a round trip, and all of them lose the lock together if it is lost. While
/// other processes wait, readers that come later join within the `handoff_limit`, and then wait behind them.
/// Readers whose `lease`, `max_hold` or `acknowledged_by` differs from that of the first one do not share its
/// hold; with a `max_hold`, also of the client, no reader does. A writer costs as much as another lock.
///
/// **Nested use.** In the body of a writer, readers and writers of the same key share its hold. In the body
/// of a reader, readers do. A writer in the body of a reader would wait for itself and is
/// [`LockError::WouldDeadlock`](crate::LockError::WouldDeadlock);
/// [`try_upgrade`](crate::ReadWriteHold::try_upgrade) the guard of the reader instead, or release it first.
/// Guards that a task has acquired outside of a body are not nested: a task that holds the guard of a reader
/// and acquires the lock for a reader once more may wait behind a writer, which waits for the first guard.
///
/// The lock has a layout of its own in the store: it excludes neither the [`Lock`]s of the same key, which
/// are [`LockError::WrongFormat`](crate::LockError::WrongFormat) while it is held, nor read-write locks of
/// other libraries.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// let catalog = client.read_write("catalog");
/// let reader = catalog.read().acquire().await?;
/// assert!(catalog.read().try_acquire().await?.is_some());
/// assert!(catalog.write().try_acquire().await?.is_none());
/// reader.release().await?;
/// catalog.write().run(async { /* no reader runs meanwhile */ }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct ReadWriteLock {
    lock: Lock,
}

impl ReadWriteLock {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock }
    }

    /// Sets the template of the key under which the lock is measured; see [`Lock::template`].
    pub fn template(self, template: &'static str) -> Self {
        Self { lock: self.lock.template(template) }
    }

    /// The lock for a reader. It cannot have a [`min_hold`](Lock::min_hold), because readers do not exclude each
    /// other.
    pub fn read(&self) -> Lock {
        self.lock.clone().mode(LockMode::Read)
    }

    /// The lock for a writer.
    pub fn write(&self) -> Lock {
        self.lock.clone().mode(LockMode::Write)
    }
}
