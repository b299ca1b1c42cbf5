//! Releases that nobody awaits: of guards that were dropped, of releases that failed, and the
//! undoing of requests whose answer was never seen.
//!
//! Each is a compare-and-delete of one token, so it can be repeated freely and can never touch a
//! successor's hold. It is tried until the store gives a definite answer, or until the key must
//! have expired by itself.
//!
//! An undo must not overtake what it undoes. It is sent on two lanes at once: on that of the
//! original request, which the store serves in order, and on the keeper's, which works even if the
//! original lane is dead or its runtime blocked. The original may still be held up somewhere, even
//! if something was freed: that may have been another try of the same acquisition, or its hold. So
//! the undo is sent once more after a while; what arrives even later ends with its lease.
//!
//! Keeps the promises that nothing leaks, and that what is unknown is cleaned up.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::Semaphore;

use super::backoff::Backoff;
use super::gate::Pass;
use super::lease::Lease;
use crate::clock::BootInstant;
use crate::store::{Lane, LockStore, Released, StoreError, Token};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, time};

/// The first and the longest pause between two tries.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));

/// How many release requests may be under way.
const AT_ONCE: usize = 500;

/// One thing to release.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) key: Arc<str>,
    pub(crate) token: Token,
    /// When the key has expired by itself.
    pub(crate) gone_by: BootInstant,
    /// Until when the key is to stay, so that it is left to expire instead.
    pub(crate) kept_until: BootInstant,
    pub(crate) cause: Cause,
    /// Given back after the first answer to the keeper, whatever it is: from then on others of this
    /// process can do no worse by trying for themselves.
    pub(crate) pass: Option<Pass>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A hold has ended.
    Ended,
    /// A request, sent from this runtime if from any, may have taken effect unseen.
    Unanswered(Option<runtime::Id>),
}

/// The releases of one client that wait for the keeper, and the count of those under way.
#[derive(Debug, Default)]
pub(crate) struct Releaser {
    queue: Mutex<Vec<Release>>,
    /// Queued or under way.
    open: AtomicUsize,
    /// Of the requests that may be under way.
    slots: Slots,
}

/// Keeps a burst of releases from getting in the way of the renewals, which share their connection.
#[derive(Debug)]
struct Slots(Semaphore);

impl Default for Slots {
    fn default() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }
}

impl Releaser {
    /// There will be something to release; to be reported by [`done`](Self::done).
    pub(crate) fn begin(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn push(&self, release: Release) {
        self.begin();
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push(release);
    }

    /// Takes what is queued; each is to be reported by [`done`](Self::done).
    pub(crate) fn take(&self) -> Vec<Release> {
        std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn done(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many are queued or under way.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl Release {
    /// Of a hold that has ended. If a request of its acquisition may still take effect, that would
    /// take the key once more, so it is undone as well.
    pub(crate) fn of(lease: &Lease, pass: Option<Pass>) -> Self {
        let doubt = lease.doubt();
        Self {
            key: Arc::clone(lease.shared_key()),
            token: lease.token().clone(),
            gone_by: lease.gone_by(),
            kept_until: lease.kept_until(),
            cause: doubt.map_or(Cause::Ended, |runtime| Cause::Unanswered(Some(runtime))),
            pass,
        }
    }

    /// Does it. Runs on the keeper's runtime.
    pub(crate) async fn carry_out(mut self, store: &dyn LockStore, releaser: &Releaser) {
        let mut failures = 0_u32;
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let mut swept = false;
        loop {
            let answer = {
                // Never closed, so there is nothing to be refused.
                let _slot = releaser.slots.0.acquire().await;
                self.try_once(store).await
            };
            if answer.is_ok() && failures > 0 {
                tracing::info!(key = &*self.key, failures, "background release works again");
            }
            let pause = match answer {
                Ok(_) if self.cause != Cause::Ended && !swept => {
                    swept = true;
                    PAUSES.1
                }
                Ok(_) => return,
                Err(StoreError::Denied(cause)) => {
                    tracing::error!(key = &*self.key, %cause, "may not release, it ends with its lease");
                    return;
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    if failures == 1 {
                        tracing::warn!(
                            key = &*self.key,
                            %error,
                            "could not release in the background, trying again until the lease is over"
                        );
                    } else {
                        tracing::debug!(key = &*self.key, %error, failures, "could not release");
                    }
                    backoff.pause()
                }
            };
            let left = self.gone_by.since(BootInstant::now());
            if left.is_zero() {
                return;
            }
            time::sleep(pause.min(left)).await;
        }
    }

    async fn try_once(&mut self, store: &dyn LockStore) -> Result<Released, StoreError> {
        let mut pass = self.pass.take();
        let keep = self.kept_until.since(BootInstant::now());
        let on = |lane| store.release(&self.key, &self.token, keep, lane);
        // The other lane may be stuck, and nobody is to wait for that.
        let beside = async {
            let answer = on(Lane::Keeper).await;
            if let (Ok(Released::Freed { others }), Some(pass)) = (&answer, &mut pass) {
                pass.freed(*others);
            }
            drop(pass);
            answer
        };
        match self.cause {
            Cause::Ended | Cause::Unanswered(None) => beside.await,
            Cause::Unanswered(Some(runtime)) => {
                let (behind, beside) = tokio::join!(on(Lane::Runtime(runtime)), beside);
                match (behind, beside) {
                    (Ok(freed @ Released::Freed { .. }), _) => Ok(freed),
                    (_, beside) => beside,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::faulty::{Fault, FaultyStore};
    use crate::store::{Attempt, Claim, MemoryStore, Patience, Trace};

    const LEASE: Duration = Duration::from_secs(10);

    fn release(token: &Token, cause: Cause) -> Release {
        let gone_by = BootInstant::now().after(LEASE);
        let (key, token, kept_until) = (Arc::from("k"), token.clone(), BootInstant::PAST);
        Release { key, token, gone_by, kept_until, cause, pass: None }
    }

    async fn acquire(store: &dyn LockStore, token: &Token) -> Result<Attempt, StoreError> {
        let claim = Claim { key: "k", token, lease: LEASE, fresh: true };
        store.try_acquire(claim, Patience::of(LEASE), &Trace::default()).await
    }

    #[tokio::test]
    async fn it_is_tried_until_the_store_answers() {
        let (store, token) =
            (FaultyStore::new(MemoryStore::new()), Token::random().expect("random"));
        acquire(&store, &token).await.expect("free");
        store.next_releases([Fault::Refuse, Fault::Refuse]);
        release(&token, Cause::Ended).carry_out(&store, &Releaser::default()).await;
        let other = Token::random().expect("random");
        assert_eq!(acquire(&store, &other).await, Ok(Attempt::Granted));
    }

    #[tokio::test]
    async fn a_successor_is_left_alone() {
        let (store, stale) =
            (FaultyStore::new(MemoryStore::new()), Token::random().expect("random"));
        let holder = Token::random().expect("random");
        acquire(&store, &holder).await.expect("free");
        release(&stale, Cause::Ended).carry_out(&store, &Releaser::default()).await;
        let other = Token::random().expect("random");
        assert!(matches!(acquire(&store, &other).await, Ok(Attempt::Busy(_))));
    }

    /// Undoes a request that arrives while that is under way, and sees to it that the key is free.
    async fn undo_against_a_late_try(store: &FaultyStore, token: &Token) {
        let (undo, releaser) = (release(token, Cause::Unanswered(None)), Releaser::default());
        let late = async {
            tokio::task::yield_now().await;
            acquire(store, token).await.expect("free");
        };
        tokio::join!(undo.carry_out(store, &releaser), late);
        let other = Token::random().expect("random");
        assert_eq!(acquire(store, &other).await, Ok(Attempt::Granted));
    }

    #[tokio::test]
    async fn an_undo_catches_what_arrives_after_it() {
        let (store, token) =
            (FaultyStore::new(MemoryStore::new()), Token::random().expect("random"));
        undo_against_a_late_try(&store, &token).await;
    }

    #[tokio::test]
    async fn an_undo_that_freed_one_try_catches_another_that_comes_late() {
        let (store, token) =
            (FaultyStore::new(MemoryStore::new()), Token::random().expect("random"));
        acquire(&store, &token).await.expect("free");
        undo_against_a_late_try(&store, &token).await;
    }

    #[tokio::test]
    async fn it_ends_with_the_lease_at_the_latest() {
        let (store, token) =
            (FaultyStore::new(MemoryStore::new()), Token::random().expect("random"));
        store.next_releases(std::iter::repeat_n(Fault::Refuse, 1000));
        let mut release = release(&token, Cause::Ended);
        let lease = Duration::from_millis(100);
        release.gone_by = BootInstant::now().after(lease);
        let end = release.gone_by;
        release.carry_out(&store, &Releaser::default()).await;
        assert!(BootInstant::now() >= end);
    }
}
