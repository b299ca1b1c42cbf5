//! The guard of a held lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::branches::BranchTurn;
use crate::clock::BootInstant;
use crate::engine::extend::LeaseExtension;
use crate::engine::handoff::Hold;
use crate::engine::lease::deadline;
use crate::engine::{Engine, Releasing};
use crate::error::{LockError, LostReason};
use crate::lock_mode::LockMode;
use crate::maybe_ready::MaybeReady;
use crate::options::{check_quarantine, check_shortest, check_span};
use crate::permits::Permits;
use crate::read_write_hold::ReadWriteHold;
use crate::runtime;
use crate::safeguard::Safeguard;
use crate::store::contract::Mode;
use crate::telemetry::AcquiredBy;

/// A held lock. Dropping it releases the lock in the background.
///
/// When the lock is lost, the guard does not stop the code that uses it. That code has to check
/// [`is_held`](Self::is_held), or wait for [`lost`](Self::lost). [`Lock::run`](crate::Lock::run)
/// and annotated functions stop their bodies. A guard acts on its own hold only: after a loss, it
/// can neither renew nor release the lock of a later holder.
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
    acquired_by: AcquiredBy,
    /// Whether other calls of this process may get the lock without the store.
    hands_off: bool,
    /// Whether the guard's share of the hold has not ended.
    open: AtomicBool,
    /// The turn of a branch of the enclosing body.
    turn: Option<Box<BranchTurn>>,
}

impl LockGuard {
    pub(crate) fn new(engine: Arc<Engine>, hold: Hold, acquired_by: AcquiredBy) -> Self {
        Self { engine, hold, acquired_by, hands_off: true, open: AtomicBool::new(true), turn: None }
    }

    /// The same guard, which keeps the turn of a branch.
    pub(crate) fn in_turn(self, turn: BranchTurn) -> Self {
        let mut guard = self;
        guard.turn = Some(Box::new(turn));
        guard
    }

    /// Whether it keeps the turn of a branch.
    pub(crate) fn is_in_turn(&self) -> bool {
        self.turn.is_some()
    }

    /// The same guard, whose release always frees the key in the store.
    pub(crate) fn without_hand_off(mut self) -> Self {
        self.hands_off = false;
        self
    }

    /// The key in the store, including the namespace.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold.key()
    }

    /// Whether the lock is held, as far as this process knows: its deadline has not passed, and no
    /// loss has been noticed. A renewed lock whose key was deleted in the store is noticed at the
    /// next renewal; a fixed lease is not checked before its release.
    ///
    /// Reads the clock, and costs no round trip. The answer may be outdated immediately, because a
    /// process can be paused at any point.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.is_valid(BootInstant::now())
    }

    /// The time until the deadline, which each renewal extends; zero after the lock is lost. Costs
    /// no round trip.
    ///
    /// The deadline counts from just before the last successful request was sent. A lock that was
    /// passed on by another process has at most 3 s until its first renewal. The deadline is earlier
    /// than the end of the lease by 1 % of the lease and 2 ms, because clocks may run at different
    /// speeds. With a `max_hold`, the deadline is no later than the end of that time.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.deadline().since(BootInstant::now())
    }

    /// How long the call waited for the lock, from its beginning to its result; zero if the result was known
    /// at once. Guards that share a hold have the time of the call that has acquired it. Costs no round trip.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.hold.waited()
    }

    /// How long the lock has been held: from just before the request was sent that acquired it, or from the
    /// hand-off. It ends with the loss of the lock. Guards that share a hold share this time. Reads the
    /// clock, and costs no round trip.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let guard = LockClient::memory().lock("report").acquire().await?;
    /// assert!(guard.waited() < guard.held_for() + guard.remaining());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn held_for(&self) -> Duration {
        self.hold.held_for()
    }

    /// Extends a fixed lease: it ends this time from now, from 10 ms to 7 days, unless it would end later
    /// anyway. Guards that share the hold are extended as well. Costs one round trip, or none if the lease is
    /// long enough. A lock without a fixed lease is renewed by the client, and cannot be extended.
    ///
    /// Cancel safe: if the future is dropped, the deadline stays as it is, and the key may stay in the store
    /// for the longer time unless it is released.
    ///
    /// # Errors
    ///
    /// * [`LockError::Lost`]: the lock is no longer held.
    /// * [`LockError::Unavailable`]: the store has not answered. The lock is held until its earlier deadline.
    /// * [`LockError::Config`]: the time is not in the range, longer than the client's
    ///   [`quarantine`](crate::LockClientBuilder::quarantine) or shorter than 100 ms with a quorum, the lock is renewed, or
    ///   there is no tokio runtime with timers and, for Redis, I/O here.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let lock = LockClient::memory().lock("import").lease(Duration::from_secs(5));
    /// let guard = lock.acquire().await?;
    /// guard.extend(Duration::from_secs(60)).await?;
    /// assert!(guard.remaining() > Duration::from_secs(50));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), LockError> {
        check_span("lease", lease)?;
        check_quarantine(self.engine.config().quarantine, "lease", lease)?;
        check_shortest(lease, self.hold.lease().store().capabilities().shortest_lease)?;
        runtime::checked()?;
        if self.hold.is_renewed() {
            let problem =
                "the lock is renewed until it is released; only a fixed lease is extended";
            return Err(LockError::config("lease", problem));
        }
        if let Some(loss) = self.hold.loss() {
            return Err(loss);
        }
        // The deadline is earlier than the end of the lease.
        if deadline(BootInstant::now(), lease) <= self.hold.deadline() {
            return Ok(());
        }
        let acknowledged_by = self.hold.lease().acknowledged_by();
        let extension =
            LeaseExtension { term: Some(lease), min_hold: Duration::ZERO, acknowledged_by };
        self.engine.extend(&self.hold, extension).await
    }

    /// Resolves with the reason when the lock is lost, and never otherwise: not after the lock was
    /// released through another guard of the same hold.
    ///
    /// Inside a tokio runtime with timers, the future has its own timer for the deadline. The
    /// client's background threads report all other losses. Costs no round trip.
    ///
    /// Cancel safe: dropping the future has no effect on the lock.
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

    /// Returns the fencing token of this hold: a number that is higher than the tokens of all
    /// earlier holds of the key. Send it with every write, and with every read that a write depends
    /// on, so that the resource can reject the requests of a late holder.
    ///
    /// The store issues a token only while the lock is held. In one atomic step, it takes the
    /// higher of its last token plus one and its clock in µs. The tokens of a key therefore rise
    /// strictly, also after releases, expired leases and failed holders, after a loss of the
    /// store's data, and after the clock of a store that has kept its data was set back. A token
    /// can repeat only if the store loses its data *and* its clock is behind by more than the time
    /// since the last token. For example, a replica may take over without having received the last
    /// token, and its clock may be behind.
    ///
    /// The first call for a hold costs one round trip. All guards of the hold, including re-entrant
    /// ones, share its token. (To request the token of a [set](crate::LockSetGuard::fencing_token) that
    /// contains the key may raise this token.) A request without an answer is repeated while the lock is held, for
    /// at most the client's `wait`, or one response timeout if that is longer. A store that is out
    /// of memory issues no tokens, although it renews locks (except in the wire format
    /// [`Timestamp`](crate::WireFormat::Timestamp)).
    ///
    /// Cancel safe: dropping the future has no effect on the lock.
    ///
    /// # Errors
    ///
    /// * [`LockError::Lost`]: the lock is no longer held.
    /// * [`LockError::Unavailable`]: the store has not issued a token in time, or the clocks of the servers of a quorum
    ///   differ too much. The lock is still held.
    /// * [`LockError::Denied`]: the user lacks a permission.
    /// * [`LockError::WrongFormat`]: the key of the last fencing token holds another value.
    /// * [`LockError::Config`]: the guard is that of a reader or has permits, the store issues no tokens, or there is no tokio
    ///   runtime with timers and, for Redis, I/O here.
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

    /// The mode of a [read-write lock](crate::ReadWriteLock); `None` for other locks. Costs no round trip.
    #[must_use]
    pub fn mode(&self) -> Option<LockMode> {
        match self.hold.lease().mode() {
            Mode::Exclusive | Mode::Permits(_) => None,
            Mode::Read => Some(LockMode::Read),
            Mode::Write => Some(LockMode::Write),
        }
    }

    /// The permits of a [semaphore](crate::Semaphore) that the guard holds; `None` for other locks. A guard
    /// of a nested call returns those of the enclosing hold, which it shares. Costs no round trip.
    #[must_use]
    pub fn permits(&self) -> Option<Permits> {
        match self.hold.lease().mode() {
            Mode::Permits(permits) => Some(permits),
            Mode::Exclusive | Mode::Read | Mode::Write => None,
        }
    }

    /// What only the guard of a [read-write lock](crate::ReadWriteLock) can do: change its mode. `None` for other locks. Costs
    /// no round trip.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// assert!(client.read_write("catalog").read().acquire().await?.read_write().is_some());
    /// assert!(client.lock("report").acquire().await?.read_write().is_none());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn read_write(&self) -> Option<ReadWriteHold<'_>> {
        self.mode().map(|_| ReadWriteHold::new(&self.engine, &self.hold))
    }

    /// Releases the lock, and waits for the store's confirmation. Costs one round trip.
    ///
    /// If several guards share a hold, only the last one frees the lock, even if that guard was
    /// moved out of the body. Releasing the others costs no round trip. If other tasks of this
    /// client wait for the key, the lock is handed off to the first of them, usually without a
    /// round trip, and with [`linger`](crate::Lock::linger), it is kept for the next call. If the
    /// store has lost the lock by then, the next renewal notices the loss, and the holder at that
    /// time gets the error.
    ///
    /// Cancel safe: if the future is dropped, the release continues in the background.
    ///
    /// # Errors
    ///
    /// * [`LockError::Lost`]: the lock had been lost before. If this process has already noticed
    ///   the loss, the error is returned immediately, and a key that may be left in the store is
    ///   freed in the background.
    /// * [`LockError::Unavailable`]: the store has not confirmed the release, which continues in
    ///   the background until the lease ends.
    /// * [`LockError::Denied`]: the store denied the release, which is repeated in the background
    ///   until the lease ends.
    pub async fn release(self) -> Result<(), LockError> {
        self.close(true).await.map_err(|error| *error)
    }

    /// Releases the lock. Dropping the guard then has no effect.
    ///
    /// If `may_hand_off` is false, the key is freed in the store, also if other tasks of this
    /// process wait for it.
    pub(crate) fn close(&self, may_hand_off: bool) -> Releasing<'_> {
        self.open.store(false, Ordering::Relaxed);
        self.engine.release(&self.hold, may_hand_off && self.hands_off)
    }

    /// The hold, which the caller releases. Dropping the guard then has no effect.
    pub(crate) fn disarmed(&self) -> Hold {
        self.open.store(false, Ordering::Relaxed);
        self.hold.clone()
    }

    /// Releases the lock without waiting for the store, unless very many releases are in progress.
    /// Dropping the guard then has no effect.
    pub(crate) fn close_unawaited(&self) -> Releasing<'_> {
        if !self.engine.may_release_unawaited() || !self.hands_off {
            return self.close(true);
        }
        self.open.store(false, Ordering::Relaxed);
        if !Safeguard::ReleaseOnDrop.is_on() {
            return MaybeReady::ready(Ok(()));
        }
        self.engine.release_unawaited(&self.hold)
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn acquired_by(&self) -> AcquiredBy {
        self.acquired_by
    }

    /// Whether the guard shares the hold of an enclosing body.
    pub(crate) fn is_reentrant(&self) -> bool {
        self.acquired_by == AcquiredBy::Reentry
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if *self.open.get_mut() && Safeguard::ReleaseOnDrop.is_on() {
            self.engine.release_in_background(&self.hold, self.hands_off);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &self.key())
            .field("is_held", &self.is_held())
            .field("remaining", &self.remaining())
            .field("reentrant", &self.is_reentrant())
            .finish_non_exhaustive()
    }
}
