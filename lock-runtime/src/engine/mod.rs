//! The machinery that one client owns.
//!
//! A call goes to the [`gate`] of its key, then as its [`contender`] to the store; what it gets is
//! a [`lease`]. The [`keeper`] thread watches over all leases ([`watchdog`]) and does the releases
//! that nobody awaits ([`releaser`]).

mod backoff;
mod budget;
pub(crate) mod contender;
mod fencing;
mod gate;
mod keeper;
pub(crate) mod lease;
#[cfg(all(test, lock_shuttle))]
mod models;
mod releaser;
#[cfg(test)]
mod tests;
mod watchdog;

use std::sync::Arc;
use std::time::Duration;

use self::gate::{Gates, News, Pass};
use self::keeper::Keeper;
use self::lease::{Lease, Leave};
use self::releaser::Release;
use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::eventually::Eventually;
use crate::protection::Protection;
use crate::stats::ClientStats;
use crate::store::{Lane, LockStore, Released, Renewal, Renewed, StoreError};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Notify, time};
use crate::wait::Wait;

/// How long [`Engine::shut_down`] waits for the last releases.
const LAST_RELEASES: Duration = Duration::from_secs(5);

/// What a client was configured with, checked.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Stands before every key, with a `:` between; empty for none.
    pub(crate) namespace: String,
    /// The lease of locks that name none; renewed at a third of it.
    pub(crate) watchdog: Duration,
    /// After how long renewed locks that do not say otherwise are given up.
    pub(crate) max_hold: Option<Duration>,
    /// The wait of locks that name none.
    pub(crate) wait: Wait,
    /// How long the store may take for one answer.
    pub(crate) response_timeout: Duration,
}

pub(crate) struct Engine {
    config: Config,
    store: Arc<dyn LockStore>,
    gates: Arc<Gates>,
    keeper: Keeper,
    /// No more locks; set once, at shutdown.
    closed: AtomicBool,
    /// Told when `closed` is set.
    closing: Notify,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.describe(&mut f.debug_struct("Engine"))
    }
}

impl Engine {
    pub(crate) fn start(config: Config, store: Arc<dyn LockStore>) -> Arc<Self> {
        let keeper = Keeper::start(Arc::clone(&store));
        let gates = Arc::default();
        let (closed, closing) = (AtomicBool::new(false), Notify::new());
        Arc::new(Self { config, store, gates, keeper, closed, closing })
    }

    /// What is worth knowing of it in a log.
    pub(crate) fn describe(&self, f: &mut std::fmt::DebugStruct<'_, '_>) -> std::fmt::Result {
        f.field("namespace", &self.config.namespace)
            .field("watchdog", &self.config.watchdog)
            .field("wait", &self.config.wait)
            .field("stats", &self.stats())
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }

    /// How much of everything there is.
    pub(crate) fn stats(&self) -> ClientStats {
        ClientStats {
            held: self.keeper.holding(),
            keys: self.gates.keys(),
            queued: self.gates.queued(),
            releasing: self.keeper.releasing(),
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    fn store(&self) -> &dyn LockStore {
        &*self.store
    }

    fn gates(&self) -> &Arc<Gates> {
        &self.gates
    }

    fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Resolves when the engine is shut down.
    async fn closing(&self) {
        let closing = self.closing.notified();
        if !self.closed.load(Ordering::Acquire) {
            closing.await;
        }
    }

    /// Whether the keeper thread runs; asked for a key, or before there is any.
    pub(crate) fn is_kept(&self, key: Option<&str>) -> Result<(), LockError> {
        self.keeper.failure().map_or(Ok(()), |failure| {
            let (key, waited) = (key.map(ToOwned::to_owned), Duration::ZERO);
            Err(LockError::Unavailable { key, waited, cause: failure.to_owned() })
        })
    }

    /// Whether locks can be taken at all.
    pub(crate) fn admit(&self, key: &str) -> Result<(), LockError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(LockError::ShutDown);
        }
        self.is_kept(Some(key))
    }

    /// One holder of `lease` is done; the last one frees the key. One round trip.
    ///
    /// Dropped half-way, or without an answer, it goes on in the background.
    pub(crate) async fn release(&self, lease: &Arc<Lease>) -> Result<(), LockError> {
        let (lost, mut unfinished) = self.end_or_lost(lease);
        let Some(unfinished) = &mut unfinished else {
            return lost.map_or(Ok(()), |lost| Err(*lost));
        };
        let started = BootInstant::now();
        let keep = lease.kept_until().since(started);
        unfinished.open = Protection::ReleaseGoesOn.is_on();
        let mut answer = self.store.release(lease.key(), lease.token(), keep, Lane::Caller);
        if let (Eventually::Pending(_), Some(pass)) = (&answer, &unfinished.pass) {
            // Nobody has it any more, and whether it is free nobody knows yet.
            pass.tell(&News::Asking(started));
        }
        let answer = (&mut answer).await;
        unfinished.open &= answer.is_err();
        match answer {
            Ok(Released::Freed) => lost.map_or(Ok(()), |lost| Err(*lost)),
            Ok(Released::Gone) => {
                Err(*lost.unwrap_or_else(|| lease.lost_to(LostReason::Gone).into()))
            }
            Ok(Released::Taken) => {
                Err(*lost.unwrap_or_else(|| lease.lost_to(LostReason::Taken).into()))
            }
            Err(StoreError::Denied(cause)) => Err(LockError::Denied { cause }),
            Err(error) => Err(LockError::Unavailable {
                key: Some(lease.key().to_owned()),
                waited: BootInstant::now().since(started),
                cause: format!("{error}; the release goes on in the background"),
            }),
        }
    }

    /// One holder of `lease` is done; the last one has the key freed in the background.
    ///
    /// A store that needs no time for it is asked at once.
    pub(crate) fn release_in_background(&self, lease: &Arc<Lease>) {
        let Some(mut unfinished) = self.end(lease) else { return };
        let keep = lease.kept_until().since(BootInstant::now());
        let answer = self.store.release(lease.key(), lease.token(), keep, Lane::Keeper);
        unfinished.open = !matches!(answer, Eventually::Ready(Some(Ok(_))));
        if let (true, Some(pass)) = (unfinished.open, &unfinished.pass) {
            pass.tell(&News::Asking(BootInstant::now()));
        }
    }

    /// Ends a hold, and tells of its loss if there was one; boxed, because that lies in the future of
    /// every annotated function.
    fn end_or_lost<'a>(
        &'a self,
        lease: &'a Arc<Lease>,
    ) -> (Option<Box<LockError>>, Option<Unfinished<'a>>) {
        let lost = lease.loss();
        let unfinished = self.end(lease);
        // It may have been lost between the two.
        (lost.or_else(|| lease.ended_by()).map(Box::new), unfinished)
    }

    /// From here on no renewal is sent, and the key will be freed whatever happens.
    fn end<'a>(&'a self, lease: &'a Arc<Lease>) -> Option<Unfinished<'a>> {
        let Leave::Release(pass) = lease.leave() else { return None };
        self.keeper.forget(lease);
        Some(Unfinished { keeper: &self.keeper, lease, pass, open: true })
    }

    /// Makes a fixed lease last for `term` from now, or without one has the store keep the key for
    /// `min_hold`, which gives the holder no more time. One round trip.
    pub(crate) async fn extend(
        &self,
        lease: &Arc<Lease>,
        term: Option<Duration>,
        min_hold: Duration,
    ) -> Result<(), LockError> {
        let sent = BootInstant::now();
        if let Some(asked) = lease.about_to_extend(sent, term, min_hold) {
            let renewal = [Renewal { key: lease.key(), token: lease.token(), lease: asked }];
            let answer = self.store.renew(&renewal).await.into_iter().next();
            match answer {
                Some(Ok(Renewed::Extended)) => {
                    lease.keep_for(sent, min_hold);
                    if term.is_some() {
                        lease.extended(sent, term);
                        self.keeper.replan(lease);
                    }
                }
                Some(Ok(Renewed::Gone)) => self.keeper.lose(lease, LostReason::Gone),
                Some(Ok(Renewed::Taken)) => self.keeper.lose(lease, LostReason::Taken),
                failed => {
                    let cause = match failed {
                        Some(Err(error)) => error.to_string(),
                        _ => "the store gave no answer".into(),
                    };
                    return Err(LockError::Unavailable {
                        key: Some(lease.key().to_owned()),
                        waited: BootInstant::now().since(sent),
                        cause,
                    });
                }
            }
        }
        lease.loss().map_or(Ok(()), Err)
    }

    /// Lets nobody in any more, waits up to `grace` for the holders to finish, ends the holds of
    /// those that have not, and waits for the last releases.
    ///
    /// Returns how many locks are not known to be released by then; what can be done for them goes
    /// on.
    pub(crate) async fn shut_down(&self, grace: Duration) -> usize {
        self.closed.store(true, Ordering::Release);
        self.closing.notify_waiters();
        self.gates.close();
        // A key's pass is out from before the first request about it until after the last.
        let is_idle = || self.open() == 0;
        if !settled(grace, is_idle).await {
            for lease in self.keeper.held() {
                self.keeper.lose(&lease, LostReason::ShutDown);
            }
            settled(LAST_RELEASES, is_idle).await;
        }
        self.open()
    }

    /// How many locks are held or being released.
    fn open(&self) -> usize {
        // One that a shutdown has taken is in no schedule any more, but its pass is out.
        self.gates.keys().max(self.keeper.holding() + self.keeper.releasing())
    }
}

/// Waits up to `patience` until something is so; looks now and then, which only shutdowns do.
async fn settled(patience: Duration, is_so: impl Fn() -> bool) -> bool {
    let end = time::Instant::now() + patience;
    while !is_so() {
        if time::Instant::now() >= end {
            return false;
        }
        time::sleep(Duration::from_millis(2)).await;
    }
    true
}

/// A release that has begun; goes on in the background unless it was answered.
#[derive(Debug)]
struct Unfinished<'a> {
    keeper: &'a Keeper,
    lease: &'a Arc<Lease>,
    /// Of the key; goes on with the release.
    pass: Option<Pass>,
    /// The store has not answered.
    open: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.open || self.lease.doubt().is_some() {
            self.keeper.release(Release::of(self.lease, self.pass.take()));
        }
    }
}
