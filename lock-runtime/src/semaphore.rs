//! A semaphore.

use crate::error::LockError;
use crate::guard::LockGuard;
use crate::lock::Lock;
use crate::permits::Permits;

/// A counting semaphore: over all processes, its holders together have at most `limit` permits. Created by
/// [`LockClient::semaphore`](crate::LockClient::semaphore).
///
/// [`permits`](Self::permits) returns a [`Lock`] with all its options and methods, and all its promises:
/// the body of a holder is dropped when its permits are lost, and the permits of a holder that dies are free
/// at the end of its own lease. All permits of one guard are acquired, renewed, lost and released together.
///
/// **Order.** Permits are granted in the order in which the processes ask for them. The first one that
/// waits holds the others back until there are enough permits for it, so a call for many permits is not
/// overtaken by calls for few. The calls of one process have an order of their own, and pass permits on
/// among themselves up to the [`handoff_limit`](crate::LockClientBuilder::handoff_limit) while other
/// processes wait. A call whose process is suspended or unreachable when it is its turn delays the others
/// for at most 3 s. A call whose process receives no messages polls, and holds nobody back.
///
/// **Limit.** The limit is part of each request, and not stored on its own. So it can be changed at any time
/// and needs no migration: while processes disagree, for example during a deployment, each call counts by
/// its own limit. It is granted if the permits that are held, including its own, do not exceed that limit. A
/// call with a lower limit then waits for longer, and holds back those behind it. The client logs a warning
/// when a call has to wait and a holder has another limit, once for each key (up to 100 keys).
///
/// **Cost.** As for another lock: one round trip for a call that need not wait, and one for its release,
/// however many permits it acquires. Passing permits on inside a process costs none. The work of the server does
/// not depend on the number of permits.
///
/// **Nested use.** In the body of a holder, a call for at most as many permits shares the hold. A call for
/// more is [`LockError::WouldDeadlock`]: two holders that wait for more of what they have wait for each
/// other.
///
/// There are no fencing tokens, because there is no order among several holders. The semaphore has a layout
/// of its own in the store. While it is held, a [`Lock`] or a [read-write lock](crate::ReadWriteLock) of the
/// same key fails with [`LockError::WrongFormat`], and the other way round. Semaphores of other libraries
/// are not known.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// let exports = client.semaphore("exports", 3);
/// let large = exports.permits(2).acquire().await?;
/// let small = exports.acquire().await?;
/// assert!(exports.try_acquire().await?.is_none());
/// large.release().await?;
/// assert!(exports.permits(2).try_acquire().await?.is_some());
/// # drop(small);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a semaphore does nothing until permits are acquired"]
pub struct Semaphore {
    lock: Lock,
    limit: u32,
}

impl Semaphore {
    pub(crate) fn new(lock: Lock, limit: u32) -> Self {
        Self { lock, limit }
    }

    /// Sets the template of the key under which the semaphore is measured; see [`Lock::template`].
    pub fn template(self, template: &'static str) -> Self {
        Self { lock: self.lock.template(template), ..self }
    }

    /// The lock whose holder has this number of permits, from 1 to 1,000 and not above the limit. Other
    /// numbers are a [`LockError::Config`] of the call that acquires them.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let exports = LockClient::memory().semaphore("exports", 10);
    /// let large = exports.permits(5).wait(Duration::from_secs(60));
    /// large.run(async { /* at most two of these at a time */ }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn permits(&self, count: u32) -> Lock {
        self.lock.clone().permits(Permits::new(count, self.limit))
    }

    /// Waits for one permit: short for `permits(1).acquire()`.
    ///
    /// Cancel safe, like [`Lock::acquire`].
    ///
    /// # Errors
    ///
    /// As for [`Lock::acquire`], and [`LockError::Config`] if the limit is 0, or if the client's wire format
    /// is not [`Token`](crate::WireFormat::Token).
    pub async fn acquire(&self) -> Result<LockGuard, LockError> {
        self.permits(1).acquire().await
    }

    /// Makes one attempt to acquire one permit: short for `permits(1).try_acquire()`. Returns `None` if no permit is free, or
    /// if other calls wait. Costs one round trip.
    ///
    /// Cancel safe, like [`Lock::try_acquire`].
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire), without [`LockError::Busy`].
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>, LockError> {
        self.permits(1).try_acquire().await
    }

    /// Runs `body` while it holds one permit: short for `permits(1).run(body)`.
    ///
    /// Cancel safe, like [`Lock::run`].
    ///
    /// # Errors
    ///
    /// As for [`Lock::run`] and [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let exports = LockClient::memory().semaphore("exports", 3);
    /// assert_eq!(exports.run(async { 7 }).await?, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn run<F: Future>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<F::Output, LockError>> + use<F> {
        self.permits(1).run(body)
    }
}
