//! The guard of several held locks.

use std::fmt;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use crate::acquiring::AcquiredGuard;
use crate::body::{self, BodyGuard, GuardSlot};
use crate::clock::BootInstant;
use crate::engine::handoff::Hold;
use crate::engine::{Releasing, both};
use crate::error::{LockError, LostReason};
use crate::guard::LockGuard;
use crate::maybe_ready::MaybeReady;
use crate::reentrancy::Scope;
use crate::telemetry::{AcquiredBy, HoldSpan, spans_are_enabled};

/// Several held locks. Dropping it releases all of them in the background.
///
/// If one of the locks is lost, the guard is no longer [held](Self::is_held), and the code that uses it
/// has to stop. [`LockSet::run`](crate::LockSet::run) and annotated functions
/// stop their bodies.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// let guard = client.lock_all(["account:7", "account:3", "account:7"]).acquire().await?;
/// assert_eq!(guard.keys().collect::<Vec<_>>(), ["account:3", "account:7"]);
/// assert!(guard.is_held());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the locks are released when the guard is dropped"]
pub struct LockSetGuard {
    /// In the order of their keys. At least one.
    guards: Box<[LockGuard]>,
    /// How long the call waited.
    waited: Duration,
}

impl LockSetGuard {
    pub(super) fn new(mut guards: Vec<LockGuard>) -> Self {
        guards.sort_unstable_by(|one, other| one.key().cmp(other.key()));
        Self { guards: guards.into(), waited: Duration::ZERO }
    }

    /// The keys in the store, including the namespace, in their order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.guards.iter().map(LockGuard::key)
    }

    /// Extends the fixed leases of all locks; see [`LockGuard::extend`]. Costs one round trip for each lock, one
    /// after the other. After an error, the leases of some locks may have been extended.
    ///
    /// Cancel safe: if the future is dropped, some leases may have been extended.
    ///
    /// # Errors
    ///
    /// As for [`LockGuard::extend`], for the first lock that fails.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let set = LockClient::memory().lock_all(["a", "b"]).lease(Duration::from_secs(5));
    /// let guard = set.acquire().await?;
    /// guard.extend(Duration::from_secs(60)).await?;
    /// assert!(guard.remaining() > Duration::from_secs(50));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn extend(&self, lease: Duration) -> Result<(), LockError> {
        for guard in &self.guards {
            guard.extend(lease).await?;
        }
        Ok(())
    }

    /// Whether all locks are held, as far as this process knows; see [`LockGuard::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(LockGuard::is_held)
    }

    /// The time until the earliest deadline; zero after a lock is lost. See [`LockGuard::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(LockGuard::remaining).min().unwrap_or_default()
    }

    /// How long the call waited for all locks; see [`LockGuard::waited`].
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How long all locks have been held together, until one was lost; see [`LockGuard::held_for`].
    #[must_use]
    pub fn held_for(&self) -> Duration {
        self.guards.iter().map(LockGuard::held_for).min().unwrap_or_default()
    }

    /// Resolves with the reason when one of the locks is lost, and never otherwise; see [`LockGuard::lost`]. The error of
    /// [`release`](Self::release) then names the key.
    ///
    /// Cancel safe: dropping the future has no effect on the locks.
    pub async fn lost(&self) -> LostReason {
        first_of(self.guards.iter().map(LockGuard::lost)).await
    }

    /// Returns one fencing token for all keys: a number that is higher than the tokens of all earlier
    /// holds of each of the keys, and lower than those of all later ones. See
    /// [`LockGuard::fencing_token`].
    ///
    /// Costs two round trips at the first call, with a request for each key. `fencing_token` of a
    /// nested guard on one of the keys then returns this number or a higher one.
    ///
    /// Cancel safe: dropping the future has no effect on the locks.
    ///
    /// # Errors
    ///
    /// As for [`LockGuard::fencing_token`].
    pub async fn fencing_token(&self) -> Result<u64, LockError> {
        let holds: Vec<&Hold> = self.guards.iter().map(LockGuard::hold).collect();
        match self.guards.first() {
            Some(first) => first.engine().fencing_token_of(&holds).await,
            None => Ok(0),
        }
    }

    /// Verifies all locks in a transaction of the program, with one statement for each. See [`LockGuard::verify_in`].
    ///
    /// Cancel safe for the locks. The transaction has to be rolled back then.
    ///
    /// # Errors
    ///
    /// As for [`LockGuard::verify_in`], for the first lock that is not held any more.
    #[cfg(feature = "postgres")]
    pub async fn verify_in<T: crate::store::LockTransaction>(
        &self,
        transaction: &mut T,
    ) -> Result<(), LockError> {
        for guard in &self.guards {
            guard.verify_in(transaction).await?;
        }
        Ok(())
    }

    /// Releases the locks, and waits for the store's confirmation. Costs one round trip for all of
    /// them, or for those on each node of a cluster. See [`LockGuard::release`].
    ///
    /// Cancel safe: if the future is dropped, the release continues in the background.
    ///
    /// # Errors
    ///
    /// As for [`LockGuard::release`]: a loss, or else the first error. The other locks are still released.
    pub async fn release(self) -> Result<(), LockError> {
        BodyGuard::close(&self, true).await.map_err(|error| *error)
    }

    /// Ends the shares of this guard, and returns the holds.
    fn disarmed(&self) -> Vec<Hold> {
        self.guards.iter().map(LockGuard::disarmed).collect()
    }
}

impl GuardSlot<LockSetGuard> {
    /// Creates an empty slot for the guard of several locks.
    #[must_use]
    pub const fn of_set() -> Self {
        Self::empty()
    }
}

impl AcquiredGuard for LockSetGuard {
    fn key(&self) -> &str {
        self.guards.first().map_or("", LockGuard::key)
    }

    #[cfg(feature = "testing")]
    fn observe(&self) {
        self.guards.iter().for_each(|guard| body::observe(guard, self.waited));
    }

    fn acquired_by(&self) -> AcquiredBy {
        // The way that takes the longest counts for the set.
        self.guards.iter().map(LockGuard::acquired_by).max().unwrap_or(AcquiredBy::Reentry)
    }

    fn waited_since(&mut self, began: BootInstant) -> Duration {
        self.waited = BootInstant::now().since(began);
        self.waited
    }
}

/// What the first of these yields that does.
async fn first_of<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> T {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    poll_fn(|cx| {
        let first = all.iter_mut().find_map(|one| match one.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        });
        first.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

impl BodyGuard for LockSetGuard {
    fn loss(&self) -> Option<LockError> {
        self.guards.iter().find_map(BodyGuard::loss)
    }

    async fn lost(&self) -> LockError {
        first_of(self.guards.iter().map(BodyGuard::lost)).await
    }

    fn scope(&self) -> Option<Scope> {
        Scope::of_several(&self.guards)
    }

    fn close(&self, may_hand_off: bool) -> Releasing<'_> {
        match self.guards.first() {
            Some(first) => first.engine().release_set(self.disarmed(), may_hand_off),
            None => MaybeReady::ready(Ok(())),
        }
    }

    fn close_unawaited(&self) -> Releasing<'_> {
        let waits: Vec<_> = self.guards.iter().map(LockGuard::close_unawaited).collect();
        MaybeReady::pending(async move {
            let mut result = Ok(());
            for wait in waits {
                result = both(result, wait.await);
            }
            result
        })
    }

    fn begin_span(&self) -> Option<HoldSpan> {
        let first = self.guards.first()?;
        let keys = || self.keys().collect::<Vec<_>>().join(" ");
        let (waited, by) = (self.waited, self.acquired_by().as_str());
        spans_are_enabled().then(|| body::span(first, &keys(), (waited, by))).flatten()
    }

    fn describe(&self, span: &HoldSpan) {
        if let Some(token) = self.guards.iter().find_map(|guard| guard.hold().known_fence()) {
            span.fenced(token);
        }
    }

    fn end_trace(&self) {
        self.guards.iter().for_each(BodyGuard::end_trace);
    }
}

impl fmt::Debug for LockSetGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockSetGuard")
            .field("keys", &self.keys().collect::<Vec<_>>())
            .field("is_held", &self.is_held())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
