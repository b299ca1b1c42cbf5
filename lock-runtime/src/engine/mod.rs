//! The machinery that one client owns.
//!
//! A call goes to the [`gate`] of its key, then as its [`contender`] to the store; what it gets is
//! a [`lease`]. At its end the lease may go on to the next of this process ([`handover`]), for a
//! [`turn`]; then others have theirs ([`courtesy`]). The [`keeper`] thread watches over all leases
//! ([`watchdog`]) and does the releases that nobody awaits ([`releaser`]); the [`notifier`] thread
//! tells those who wait.

mod backoff;
mod budget;
pub(crate) mod contender;
mod courtesy;
mod driven;
mod fencing;
mod gate;
mod handover;
mod keeper;
pub(crate) mod lease;
#[cfg(all(test, lock_shuttle))]
mod models;
mod notifier;
mod releaser;
#[cfg(test)]
mod tests;
pub(crate) mod turn;
mod watchdog;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tracing::Level;

pub(crate) use self::driven::Driven;
use self::driven::{Boxed, Settled, Work};
use self::gate::{Gates, News, Pass, Spot};
use self::handover::Inherited;
use self::keeper::Keeper;
use self::lease::{Hold, Lease, Leave, Leaving};
use self::releaser::{Release, log_loss};
use self::turn::Limits;
use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::events;
use crate::eventually::Eventually;
use crate::format::WireFormat;
use crate::protection::Protection;
use crate::runtime;
use crate::stats::ClientStats;
use crate::store::{Lane, LockStore, Released, Renewal, Renewed, StoreError};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Notify, time, yield_now};
use crate::wait::Wait;

/// How long [`Engine::shut_down`] waits for the last releases.
const LAST_RELEASES: Duration = Duration::from_secs(5);

/// How long it waits for the log.
const LAST_EVENTS: Duration = Duration::from_millis(500);

/// What a client was configured with, checked.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Stands before every key, with a `:` between; empty for none.
    pub(crate) namespace: String,
    /// The format of locks that name none.
    pub(crate) format: WireFormat,
    /// The lease of locks that name none; renewed at a third of it.
    pub(crate) watchdog: Duration,
    /// After how long renewed locks that do not say otherwise are given up.
    pub(crate) max_hold: Option<Duration>,
    /// The wait of locks that name none.
    pub(crate) wait: Wait,
    /// How long the store may take for one answer.
    pub(crate) response_timeout: Duration,
    /// How long locks are passed on inside this process while others wait.
    pub(crate) turn: Limits,
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
    /// A key in another format has been logged.
    met_another_format: AtomicBool,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.describe(&mut f.debug_struct("Engine"))
    }
}

impl Engine {
    pub(crate) fn start(config: Config, store: Arc<dyn LockStore>) -> Arc<Self> {
        let gates = Arc::new(Gates::new(config.response_timeout));
        let keeper = Keeper::start(Arc::clone(&store), Arc::clone(&gates));
        let (closed, met_another_format) = (AtomicBool::new(false), AtomicBool::new(false));
        let closing = Notify::new();
        Arc::new(Self { config, store, gates, keeper, closed, closing, met_another_format })
    }

    /// What is worth knowing of it in a log.
    pub(crate) fn describe(&self, f: &mut std::fmt::DebugStruct<'_, '_>) -> std::fmt::Result {
        f.field("namespace", &self.config.namespace)
            .field("format", &self.config.format)
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
            lost: self.keeper.lost(),
            dropped_events: events::dropped(),
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

    /// The error for a key that holds something else. Somebody's configuration is wrong, and callers may
    /// make of it what they make of a busy lock, so the first one is logged.
    fn wrong_format(&self, key: String, expected: &'static str, found: String) -> LockError {
        let error = LockError::WrongFormat { key, expected, found };
        if !self.met_another_format.swap(true, Ordering::Relaxed) {
            let error = error.clone();
            events::emit(Level::WARN, move || {
                tracing::warn!(%error, "locked in different formats");
            });
        }
        error
    }

    /// One holder is done; the last one frees the key, or passes the lock on to another of this
    /// process if `may_pass_on`. One round trip, or none if it is passed on or was lost.
    ///
    /// Dropped half-way, or without an answer, it goes on in the background. What the store does
    /// without delay is done when this returns.
    pub(crate) fn release<'a>(
        self: &'a Arc<Self>,
        hold: &'a Hold,
        may_pass_on: bool,
    ) -> Releasing<'a> {
        let (lost, end) = self.end(hold, may_pass_on);
        let pass = match end {
            End::Free(pass) if lost.is_some() => {
                // The holder is not to wait for what it has lost.
                self.free_in_background(hold.lease(), pass, BootInstant::PAST);
                return Eventually::ready(lost.map_or(Ok(()), Err));
            }
            End::Shared => return Eventually::ready(lost.map_or(Ok(()), Err)),
            End::PassedOn(None) => return Eventually::ready(Ok(())),
            End::PassedOn(Some(asking)) => {
                return match self.store.others(hold.key(), hold.format()) {
                    Eventually::Ready(others) => {
                        asking.answered(others);
                        Eventually::ready(Ok(()))
                    }
                    others => Eventually::pending(async move {
                        asking.answered(Some(others.await));
                        Ok(())
                    }),
                };
            }
            End::Linger(inherited) => {
                return Self::drive(hold, inherited.spot(0), linger(inherited, hold.clone()));
            }
            End::Free(pass) => pass,
        };
        let (started, mut unfinished) = (BootInstant::now(), self.unfinished(hold.lease(), pass));
        if self.store.is_immediate()
            && let Some(answer) = unfinished.send(Lane::Caller).known()
        {
            unfinished.answered(&answer);
            return Eventually::ready(self.outcome(hold, started, answer));
        }
        let spot = unfinished.pass.as_ref().map(|pass| pass.spot(0));
        Self::drive(hold, spot, async move {
            let answer = unfinished.send(Lane::Caller).await;
            unfinished.answered(&answer);
            unfinished.engine.outcome(&unfinished.lease, started, answer)
        })
    }

    /// Lets others go on with a release whose caller does not, if they wait for it.
    fn drive(
        hold: &Hold,
        spot: Option<Spot>,
        release: impl Future<Output = Result<(), Box<LockError>>> + Send + 'static,
    ) -> Releasing<'static> {
        match (spot, runtime::here()) {
            (Some(spot), Ok(here)) => {
                let ending =
                    Ending { key: Arc::clone(hold.shared_key()), began: BootInstant::now() };
                Eventually::Driven(Driven::new(ending, spot, here, Box::pin(release)))
            }
            _ => Eventually::pending(release),
        }
    }

    /// One holder is done; the last one has the key freed in the background, or passes the lock on to
    /// another of this process.
    ///
    /// A store that needs no time for it is asked at once.
    pub(crate) fn release_in_background(self: &Arc<Self>, hold: &Hold) {
        let deadline = hold.deadline();
        let (lost, end) = self.end(hold, true);
        match end {
            End::Free(pass) => {
                let valid_until = if lost.is_some() { BootInstant::PAST } else { deadline };
                self.free_in_background(hold.lease(), pass, valid_until);
            }
            End::PassedOn(Some(asking)) => {
                if let Eventually::Ready(others) = self.store.others(hold.key(), hold.format()) {
                    asking.answered(others);
                }
            }
            // Dropped, it is freed.
            End::Linger(_) | End::PassedOn(None) | End::Shared => {}
        }
    }

    /// Frees the key of a lease that has ended. Gives the pass back if the store has answered; else it
    /// goes along with the release, which goes on in the background.
    async fn free(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        pass: Option<Pass>,
    ) -> (Result<Released, StoreError>, Option<Pass>) {
        let mut unfinished = self.unfinished(lease, pass);
        let answer = unfinished.send(Lane::Caller);
        if let (Eventually::Pending(_), Some(pass)) = (&answer, &unfinished.pass) {
            // Nobody has it any more, and whether it is free nobody knows yet.
            pass.tell(&News::Asking(BootInstant::now()));
        }
        let answer = answer.await;
        unfinished.answered(&answer);
        let pass = if unfinished.open { None } else { unfinished.pass.take() };
        (answer, pass)
    }

    /// The same, awaited by nobody. A hold that was `valid_until` then has lost its key if that is
    /// gone before.
    fn free_in_background(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        pass: Option<Pass>,
        valid_until: BootInstant,
    ) {
        let mut unfinished = self.unfinished(lease, pass);
        let answer = unfinished.send(Lane::Keeper).known();
        if let (None, Some(pass)) = (&answer, &unfinished.pass) {
            pass.tell(&News::Asking(BootInstant::now()));
        }
        unfinished.open = true;
        unfinished.valid_until = valid_until;
        if let Some(answer) = answer {
            unfinished.answered(&answer);
            let lost = answer.ok().and_then(Released::loss);
            if let Some(reason) = lost.filter(|_| BootInstant::now() < valid_until) {
                self.keeper.found_lost();
                log_loss(Arc::clone(lease.shared_key()), reason);
            }
        }
    }

    /// Begins the release of a lease that has ended.
    fn unfinished(self: &Arc<Self>, lease: &Arc<Lease>, pass: Option<Pass>) -> Unfinished {
        self.keeper.forget(lease);
        let open = Protection::ReleaseGoesOn.is_on();
        let (engine, lease) = (Arc::clone(self), Arc::clone(lease));
        Unfinished { engine, lease, pass, open, valid_until: BootInstant::PAST }
    }

    /// Ends a hold, or one holder's share in it, and passes the lock on if somebody waits for it here
    /// and `may_pass_on`. Also tells of the loss that has ended it before; boxed, because that lies in
    /// the future of every annotated function.
    fn end(self: &Arc<Self>, hold: &Hold, may_pass_on: bool) -> (Option<Box<LockError>>, End) {
        // From here on no renewal is sent, and the key will be freed or handed over whatever happens.
        let waited_for = may_pass_on && (self.gates.queued() > 0 || hold.was_passed_on());
        let limits = Some(&self.config.turn).filter(|_| waited_for);
        let Leaving { lost, noticed, next } = hold.leave(limits);
        if let Some(reason) = noticed {
            self.found_lost(hold, reason);
        }
        let end = match next {
            Leave::Nothing => End::Shared,
            Leave::Release(pass) => End::Free(pass),
            Leave::HandOver { pass, ask, replan } => {
                let lease = hold.lease();
                let asking = ask.then(|| Asking { lease: Arc::clone(lease) });
                if replan {
                    self.keeper.replan(lease);
                }
                match Inherited::new(self, lease, pass).pass_on() {
                    None => End::PassedOn(asking),
                    Some(pass) if hold.was_passed_on() => {
                        End::Linger(Inherited::new(self, lease, pass))
                    }
                    // Those who wait do so for other keys.
                    Some(pass) if lease.close() => End::Free(Some(pass)),
                    Some(_) => End::Shared,
                }
            }
        };
        (lost.map(Box::new), end)
    }

    /// What the holder is told of a release that was begun at `started`.
    fn outcome(
        &self,
        lease: &Lease,
        started: BootInstant,
        answer: Result<Released, StoreError>,
    ) -> Result<(), Box<LockError>> {
        let lost = match answer {
            Ok(released) => released.loss(),
            Err(StoreError::Denied(cause)) => return Err(LockError::Denied { cause }.into()),
            Err(error) => {
                return Err(Box::new(LockError::Unavailable {
                    key: Some(lease.key().to_owned()),
                    waited: BootInstant::now().since(started),
                    cause: format!("{error}; the release goes on in the background"),
                }));
            }
        };
        let Some(reason) = lost else { return Ok(()) };
        self.found_lost(lease, reason);
        Err(lease.lost_to(reason).into())
    }

    /// A holder that is done was the first to notice that its lock had been lost.
    fn found_lost(&self, lease: &Lease, reason: LostReason) {
        self.keeper.found_lost();
        log_loss(Arc::clone(lease.shared_key()), reason);
    }

    /// Makes a fixed lease last for `term` from now, or without one has the store keep the key for
    /// `min_hold`, which gives the holder no more time. One round trip.
    pub(crate) async fn extend(
        &self,
        hold: &Hold,
        term: Option<Duration>,
        min_hold: Duration,
    ) -> Result<(), LockError> {
        let (sent, lease) = (BootInstant::now(), hold.lease());
        if let Some(asked) = lease.about_to_extend(sent, term, min_hold) {
            let renewal = [Renewal { key: lease.key(), token: lease.token(), lease: asked }];
            let answer = self.store.renew(&renewal, Lane::Caller).await.into_iter().next();
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
        let open = self.open();
        // What was logged is not to be lost with the process, unless the subscriber is stuck.
        settled(LAST_EVENTS, events::is_idle).await;
        open
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

/// A release under way. Its error is boxed, because this lies in the future of every annotated function.
pub(crate) type Releasing<'a> = Eventually<'a, Result<(), Box<LockError>>>;

/// What is left to do after a hold, or a share in it.
enum End {
    /// Nothing: others share it, or it was lost before.
    Shared,
    /// Nothing, or to find out whether other processes wait.
    PassedOn(Option<Asking>),
    /// To see whether somebody comes for the lock, and else to free the key.
    Linger(Inherited),
    /// To free the key.
    Free(Option<Pass>),
}

/// Somebody is to find out whether other processes wait for a key; another will have to if this is
/// dropped.
struct Asking {
    lease: Arc<Lease>,
}

impl Asking {
    fn answered(self, others: Option<Result<usize, StoreError>>) {
        self.lease.others_wait(others.and_then(Result::ok));
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.lease.nobody_asks();
    }
}

/// Nobody waits for a lock that was passed on before: those who have had it may be about to ask for
/// it again, on another thread.
async fn linger(inherited: Inherited, hold: Hold) -> Result<(), Box<LockError>> {
    yield_now().await;
    let (started, engine) = (BootInstant::now(), inherited.engine());
    match inherited.pass_on() {
        Some(pass) if hold.close() => {
            let (answer, _) = engine.free(hold.lease(), Some(pass)).await;
            engine.outcome(&hold, started, answer)
        }
        _ => Ok(()),
    }
}

/// A release that is awaited, and that others can go on with.
struct Ending {
    key: Arc<str>,
    began: BootInstant,
}

impl Work for Ending {
    type Outcome = Result<(), Box<LockError>>;
    type Resumed = Infallible;
    type Value = Self::Outcome;

    fn finish(&self, outcome: Self::Outcome) -> Self::Value {
        outcome
    }

    fn settle(&self, outcome: Self::Outcome, _: &Spot) -> Settled<Self> {
        Settled::Done(outcome)
    }

    fn revoke(&self, _: &Spot) -> Option<Settled<Self>> {
        Some(Settled::Done(self.failed("the runtime stands still")))
    }

    fn patience(&self) -> Duration {
        Duration::ZERO
    }

    fn failed(&self, cause: &str) -> Self::Outcome {
        Err(Box::new(LockError::Unavailable {
            key: Some(self.key.as_ref().to_owned()),
            waited: BootInstant::now().since(self.began),
            cause: format!("{cause}; the release goes on in the background"),
        }))
    }

    fn resume(&self, resumed: Infallible) -> (u64, Boxed<Self::Outcome>) {
        match resumed {}
    }

    fn abandon(&self, _: Self::Outcome) {}
}

/// A release that has begun; goes on in the background unless it was answered.
#[derive(Debug)]
struct Unfinished {
    engine: Arc<Engine>,
    lease: Arc<Lease>,
    /// Of the key; goes on with the release.
    pass: Option<Pass>,
    /// The store has not answered.
    open: bool,
    /// Until when the hold was valid, if it was and nothing has been sent.
    valid_until: BootInstant,
}

impl Unfinished {
    fn send(&self, lane: Lane) -> Eventually<'_, Result<Released, StoreError>> {
        let lease = &self.lease;
        let keep = lease.kept_until().since(BootInstant::now());
        self.engine.store.release(lease.key(), lease.token(), keep, lane)
    }

    fn answered(&mut self, answer: &Result<Released, StoreError>) {
        self.open &= answer.is_err();
        if let (Ok(Released::Freed { others }), Some(pass)) = (answer, &mut self.pass) {
            pass.freed(*others);
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.open || self.lease.doubt().is_some() {
            let release = Release::of(&self.lease, self.pass.take());
            self.engine.keeper.release(Release { valid_until: self.valid_until, ..release });
        }
    }
}
