//! A held lock, in its holder's hands.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::BootInstant;
use crate::engine::lease::Hold;
use crate::engine::{Engine, Releasing};
use crate::error::{LockError, LostReason};
use crate::eventually::Eventually;
use crate::protection::Protection;

/// A held lock. Dropping it releases the lock in the background.
///
/// The guard knows whether the lock is still held; code that it guards has to ask, or to
/// [wait for the loss](Self::lost). [`Lock::run`](crate::Lock::run) and annotated functions do that
/// by themselves. A guard acts on its own hold only: once that is lost, it can neither renew nor
/// release what somebody else has taken since.
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
/// assert_eq!(guard.key(), "report");
/// assert!(guard.is_held());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    engine: Arc<Engine>,
    hold: Hold,
    /// Shares the hold of an enclosing body.
    reentrant: bool,
    /// Whether the hold is still this guard's to end.
    open: AtomicBool,
}

/// A guard to come. Its error is boxed, because this lies in the future of every annotated function.
pub(crate) type Acquiring = Eventually<'static, Result<LockGuard, Box<LockError>>>;

impl LockGuard {
    pub(crate) fn new(engine: Arc<Engine>, hold: Hold, reentrant: bool) -> Self {
        Self { engine, hold, reentrant, open: AtomicBool::new(true) }
    }

    /// The key as the store knows it, namespace included.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold.key()
    }

    /// Whether the lock is held at this moment, as far as this process can know: its deadline has not
    /// passed and no loss was heard of. That a store has forgotten the key is heard of by the next
    /// renewal.
    ///
    /// Costs one reading of the clock. The answer may be out of date as soon as it is given: a
    /// process can be paused at any point.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.is_valid(BootInstant::now())
    }

    /// How long the lock is held if it is not renewed; zero once it is lost.
    ///
    /// The store keeps the key a little longer: 1 % of the lease and 2 ms are left for clocks that
    /// run at different speeds.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.deadline().since(BootInstant::now())
    }

    /// Resolves when the lock is lost, with the reason; never if it is not.
    ///
    /// Inside a tokio runtime with timers the deadline is noticed by a timer of this future, and
    /// everything else when the background threads of the client hear of it.
    ///
    /// Cancel safe: dropping the future loses nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError, LostReason};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let guard = client.lock("report").lease(Duration::from_millis(50)).acquire().await?;
    /// assert_eq!(guard.lost().await, LostReason::LeaseOver);
    /// assert!(!guard.is_held());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) -> LostReason {
        self.hold.lost().await
    }

    /// The fencing token of this hold: a number that rises from holder to holder of the key, to be
    /// sent along with every write and every read that a write depends on, so that the resource can refuse those of a holder who is late.
    ///
    /// The store gives it only while the lock is held, in one atomic step, as the higher one of its
    /// last token plus one and its clock in µs. So tokens rise strictly per key: over releases,
    /// expiry, failed holders, a store that lost its data, and a clock that is set back on a store
    /// which kept them. Only a store that loses its data *and* whose clock is behind by more than
    /// the time since the last token may repeat one; a replica that takes over without having heard
    /// of that token, and whose clock is behind, is such a store.
    ///
    /// One round trip the first time; all guards of a hold share one token, re-entrant ones too. A
    /// request that the store does not answer is repeated while the lock is held, for the client's
    /// wait at the most. A store that is out of memory gives none, although it renews locks.
    ///
    /// Cancel safe: dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if the lock is not held any more, [`LockError::Unavailable`] if the store
    /// gave none in time (the lock is still held then), [`LockError::Denied`],
    /// [`LockError::WrongFormat`] if something else is kept where the store keeps its last token.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let guard = client.lock("account:7").acquire().await?;
    /// let first = guard.fencing_token().await?;
    /// guard.release().await?;
    ///
    /// let guard = client.lock("account:7").acquire().await?;
    /// let second = guard.fencing_token().await?;
    /// // UPDATE account SET balance = ?, fence = :second WHERE id = 7 AND fence <= :second
    /// // No row changed: the write was refused.
    /// assert!(second > first);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn fencing_token(&self) -> Result<u64, LockError> {
        self.engine.fencing_token(&self.hold).await
    }

    /// Releases the lock and waits until the store has confirmed it. One round trip; none for a
    /// guard that shares its hold with others: the last of them frees the lock, also if that is a
    /// guard which has left the body. If other tasks of this client wait for the key, the first of them gets
    /// the lock instead, mostly without the store; that the store has lost the lock by then is told to the one
    /// who has it at the next renewal.
    ///
    /// Cancel safe: dropped half-way, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if the lock had been lost before (at once; what may be left of it in the
    /// store is freed in the background), [`LockError::Unavailable`] if the store
    /// did not confirm; the release then goes on in the background until the lease is over.
    pub async fn release(self) -> Result<(), LockError> {
        self.close(true).await.map_err(|error| *error)
    }

    /// Releases the lock, once; dropping the guard then does nothing more.
    ///
    /// Unless it `may_pass_on` the lock to another task of this process, the store is asked.
    pub(crate) fn close(&self, may_pass_on: bool) -> Releasing<'_> {
        self.open.store(false, Ordering::Relaxed);
        self.engine.release(&self.hold, may_pass_on)
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn is_reentrant(&self) -> bool {
        self.reentrant
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if *self.open.get_mut() && Protection::ReleaseOnDrop.is_on() {
            self.engine.release_in_background(&self.hold);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &self.key())
            .field("is_held", &self.is_held())
            .field("remaining", &self.remaining())
            .field("reentrant", &self.reentrant)
            .finish_non_exhaustive()
    }
}
