//! The end of a hold.
//!
//! The last holder that leaves either hands the lock off to a waiter of this process or frees the
//! key. A release that is dropped, or that gets no answer, continues in the background.
//!
//! Keeps the promise that nothing leaks.

use std::sync::Arc;
use std::time::Duration;

use super::awaited_release::{AwaitedRelease, unconfirmed};
use super::background::cleanup::{Cleanup, log_loss};
use super::core::Engine;
use super::driven::SharedWork;
use super::handoff::{Ending, Handoff, Hold, Lease, LeaseKeeper, Permit, QueuePosition};
use super::waiter_count::WaiterCount;
use crate::backoff::between;
use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::maybe_ready::MaybeReady;
use crate::runtime;
use crate::safeguard::Safeguard;
use crate::store::contract::{Lane, LockStore, Release, Released, StoreError};
use crate::sync::yield_now;

/// The number of releases in progress from which calls wait for their own release, so that no
/// program acquires locks faster than they are released.
const MOST_UNAWAITED: usize = 1000;

/// The average time that a key is held between two gaps.
const GAP_INTERVAL: Duration = Duration::from_secs(1);

/// A release in progress. Its error is boxed, because every annotated function's future contains
/// it.
pub(crate) type Releasing<'a> = MaybeReady<'a, Result<(), Box<LockError>>>;

impl Engine {
    /// Ends a holder's share of a hold. The last holder frees the key, or hands the lock off to
    /// another task of this process if `may_hand_off`. Costs one round trip; none if the lock is
    /// handed off or was lost.
    ///
    /// Cancel safe: a release that is dropped, or that gets no answer, continues in the background.
    /// With a store that answers immediately, the release is complete when this function returns.
    pub(crate) fn release<'a>(
        self: &'a Arc<Self>,
        hold: &'a Hold,
        may_hand_off: bool,
    ) -> Releasing<'a> {
        let began = BootInstant::now();
        let (lost, left) = self.leave(hold, may_hand_off, began);
        let is_lost = lost.is_some();
        let result = MaybeReady::ready(lost.map_or(Ok(()), Err));
        let permit = match left {
            AfterLeave::Nothing => return result,
            AfterLeave::Count(count) => return count.ask(hold),
            // A task that had the lock before may be about to acquire it again, on another thread.
            AfterLeave::OfferAgain(handoff) => {
                let position = handoff.position(0);
                let offer_again = offer_again(Arc::clone(self), handoff, hold.clone());
                return Self::drive(hold, position, offer_again);
            }
            AfterLeave::Free(permit) if is_lost => {
                // The caller of a lost lock does not wait for its release.
                self.free_later(hold.lease(), permit, BootInstant::PAST);
                return result;
            }
            AfterLeave::Free(permit) => permit,
        };
        let mut release = self.begin(hold.lease(), permit);
        if hold.lease().store().is_immediate()
            && let Some(answer) = release.send(Lane::Caller).known()
        {
            release.answered(&answer);
            return MaybeReady::ready(self.outcome(hold.lease(), began, answer));
        }
        let position = release.position();
        Self::drive(hold, position, async move {
            let answer = release.send(Lane::Caller).await;
            release.answered(&answer);
            release.engine.outcome(&release.lease, began, answer)
        })
    }

    /// Ends a holder's share of a hold without waiting. With a store that answers immediately, the
    /// release is complete when this function returns.
    pub(crate) fn release_in_background(self: &Arc<Self>, hold: &Hold, may_hand_off: bool) {
        let (valid_until, left) = self.leave_in_background(hold, may_hand_off);
        match left {
            AfterLeave::Nothing => {}
            // There is no caller to await the answer, so the count succeeds only with a store that
            // answers immediately.
            AfterLeave::Count(count) => drop(count.ask(hold)),
            AfterLeave::OfferAgain(handoff) => self.offer_or_free(handoff, hold, valid_until),
            AfterLeave::Free(permit) => self.free_later(hold.lease(), permit, valid_until),
        }
    }

    /// The same for a caller that can wait for a hand-off. It never waits for the release of the
    /// key.
    ///
    /// Cancel safe, like [`release`](Self::release).
    pub(crate) fn release_unawaited<'a>(self: &Arc<Self>, hold: &'a Hold) -> Releasing<'a> {
        let (valid_until, left) = self.leave_in_background(hold, true);
        match left {
            AfterLeave::Nothing => {}
            AfterLeave::Count(count) => return count.ask(hold),
            AfterLeave::OfferAgain(handoff) => {
                let (position, engine) = (handoff.position(0), Arc::clone(self));
                let left = hold.clone();
                return Self::drive(hold, position, async move {
                    yield_now().await;
                    engine.offer_or_free(handoff, &left, valid_until);
                    Ok(())
                });
            }
            AfterLeave::Free(permit) => self.free_later(hold.lease(), permit, valid_until),
        }
        MaybeReady::ready(Ok(()))
    }

    /// Whether few enough releases are in progress that nobody need wait for another one.
    pub(crate) fn may_release_unawaited(&self) -> bool {
        self.background().releasing() < MOST_UNAWAITED
    }

    /// See [`leave`](Self::leave). Returns the deadline of the hold, or `PAST` if it was lost.
    fn leave_in_background(
        self: &Arc<Self>,
        hold: &Hold,
        may_hand_off: bool,
    ) -> (BootInstant, AfterLeave) {
        let deadline = hold.deadline();
        let (lost, left) = self.leave(hold, may_hand_off, BootInstant::now());
        (if lost.is_some() { BootInstant::PAST } else { deadline }, left)
    }

    /// Offers a lock once more, and frees its key later if no task takes it.
    fn offer_or_free(self: &Arc<Self>, handoff: Handoff, hold: &Hold, valid_until: BootInstant) {
        if let Some(permit) = handoff.offer()
            && hold.lease().close()
        {
            self.free_later(hold.lease(), Some(permit), valid_until);
        }
    }

    /// Ends a hold, or one holder's share of it, and offers the lock to the waiters. Returns the
    /// loss that had ended the hold before, and what remains to be done. The loss is boxed, because
    /// every annotated function's future contains it.
    pub(super) fn leave(
        self: &Arc<Self>,
        hold: &Hold,
        may_hand_off: bool,
        now: BootInstant,
    ) -> (Option<Box<LockError>>, AfterLeave) {
        // If no call waits for any key, there is nothing to hand off to.
        let is_waited_for =
            self.queues().queued() > 0 || self.receivers().any() || hold.was_handed_off();
        let limit = Some(&self.config().handoff_limit).filter(|_| may_hand_off);
        let (lost, unnoticed, ending) =
            hold.leave((limit, is_waited_for), Some(self.metrics()), now);
        self.reads().left(hold);
        if let Some(reason) = unnoticed {
            self.found_lost(hold.lease(), reason);
        }
        let left = match ending {
            Ending::None => AfterLeave::Nothing,
            Ending::Free(permit) => AfterLeave::Free(permit),
            Ending::HandOff { permit, count_waiters, reschedule, linger } => {
                let count = count_waiters.then(|| WaiterCount {
                    lease: Arc::clone(hold.lease()),
                    queues: Arc::clone(self.queues()),
                    own: self.receivers().claims(hold.key()),
                });
                if reschedule {
                    self.background().reschedule(hold.lease());
                }
                let handoff = |permit| Handoff::new(self.keeper(), hold.lease(), permit);
                let is_waited_for = linger.is_zero() || self.queues().queued() > 0;
                let refused = if is_waited_for { handoff(permit).offer() } else { Some(permit) };
                // No awake task waits for this key.
                let refused = refused.and_then(|permit| self.linger(handoff(permit), linger));
                match (refused, count) {
                    (None, Some(count)) => AfterLeave::Count(count),
                    (Some(permit), _) if hold.was_handed_off() && linger.is_zero() => {
                        AfterLeave::OfferAgain(handoff(permit))
                    }
                    (Some(permit), _) if hold.lease().close() => AfterLeave::Free(Some(permit)),
                    (None, None) | (Some(_), _) => AfterLeave::Nothing,
                }
            }
        };
        (lost.map(Box::new), left)
    }

    pub(super) fn keeper(self: &Arc<Self>) -> Arc<dyn LeaseKeeper> {
        Arc::clone(self) as Arc<dyn LeaseKeeper>
    }

    /// Makes a release that the notifier thread polls if its caller does not, while other callers
    /// wait for the key.
    fn drive(
        hold: &Hold,
        position: Option<QueuePosition>,
        release: impl Future<Output = Result<(), Box<LockError>>> + Send + 'static,
    ) -> Releasing<'static> {
        match (position, runtime::here()) {
            (Some(position), Ok(here)) => {
                let began = BootInstant::now();
                let work = AwaitedRelease { key: Arc::clone(hold.key()), began };
                MaybeReady::Driven(SharedWork::driven(work, position, here, Box::pin(release)))
            }
            _ => MaybeReady::pending(release),
        }
    }

    /// Frees the key of a lease that has ended. Returns the permit if the store has answered.
    /// Otherwise the release continues in the background and keeps the permit.
    pub(super) async fn free(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        permit: Option<Permit>,
    ) -> (Result<Released, StoreError>, Option<Permit>) {
        let mut release = self.begin(lease, permit);
        let answer = release.send(Lane::Caller);
        if let MaybeReady::Pending(_) = answer {
            release.set_status();
        }
        let answer = answer.await;
        release.answered(&answer);
        let permit = if release.open { None } else { release.permit.take() };
        (answer, permit)
    }

    /// Frees the key of a lease that has ended, without waiting. If the key is gone before
    /// `valid_until`, the lock had been lost.
    pub(super) fn free_later(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        permit: Option<Permit>,
        valid_until: BootInstant,
    ) {
        let mut release = self.begin(lease, permit);
        let answer = release.send(Lane::Background).known();
        release.open = true;
        release.valid_until = valid_until;
        let Some(answer) = answer else { return release.set_status() };
        release.answered(&answer);
        let lost = answer.ok().and_then(Released::loss);
        if let Some(reason) = lost.filter(|_| BootInstant::now() < valid_until) {
            self.found_lost(lease, self.background().reason(lease, reason));
        }
    }

    /// Begins the release of a lease that has ended.
    pub(super) fn begin(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        permit: Option<Permit>,
    ) -> KeyRelease {
        self.background().forget(lease);
        let open = Safeguard::ReleaseContinues.is_on();
        let (engine, lease) = (Arc::clone(self), Arc::clone(lease));
        KeyRelease { engine, lease, permit, open, valid_until: BootInstant::PAST }
    }

    /// The result of a release that began at `started`.
    pub(super) fn outcome(
        &self,
        lease: &Lease,
        started: BootInstant,
        answer: Result<Released, StoreError>,
    ) -> Result<(), Box<LockError>> {
        let lost = match answer {
            Ok(released) => released.loss(),
            Err(StoreError::Denied(cause)) => return Err(LockError::denied(cause).into()),
            Err(error) => return Err(Box::new(unconfirmed(lease.key(), started, &error))),
        };
        let Some(reason) = lost else { return Ok(()) };
        let reason = self.background().reason(lease, reason);
        self.found_lost(lease, reason);
        Err(lease.lost_to(reason).into())
    }

    /// Counts and logs a loss that a release was the first to notice.
    fn found_lost(&self, lease: &Lease, reason: LostReason) {
        self.background().found_lost(lease, reason);
        lease.site().lost(reason);
        log_loss(Arc::clone(lease.key()), reason);
    }
}

impl LeaseKeeper for Engine {
    fn free_in_background(self: Arc<Self>, lease: &Arc<Lease>, permit: Option<Permit>) {
        self.free_later(lease, permit, BootInstant::PAST);
    }

    fn reschedule(&self, lease: &Arc<Lease>) {
        self.background().reschedule(lease);
    }

    fn pass_permits_on(&self, handoff: Handoff) -> Result<(), Handoff> {
        let (receivers, key) = (self.receivers(), handoff.lease().key());
        let claims = receivers.claims(key);
        // Nobody waits for permits of this key.
        if claims == 0 {
            return Err(handoff);
        }
        let most = claims + self.queues().waiting_for_permits(key);
        receivers.give(handoff, most)
    }
}

/// Whether to leave the key free for a moment, for clients that know no queue: once a second of holds.
fn leaves_gap(held: Duration) -> bool {
    between(Duration::ZERO, GAP_INTERVAL) < held
}

/// Offers the lock once more after other tasks had time to enter the queue, then frees the key.
async fn offer_again(
    engine: Arc<Engine>,
    handoff: Handoff,
    hold: Hold,
) -> Result<(), Box<LockError>> {
    yield_now().await;
    let started = BootInstant::now();
    match handoff.offer() {
        Some(permit) if hold.lease().close() => {
            let (answer, _) = engine.free(hold.lease(), Some(permit)).await;
            engine.outcome(hold.lease(), started, answer)
        }
        _ => Ok(()),
    }
}

/// What remains to be done after a holder has left.
pub(super) enum AfterLeave {
    Nothing,
    /// The lock was handed off. Request the number of waiting processes.
    Count(WaiterCount),
    /// No task is awake to take a lock that was handed off before.
    OfferAgain(Handoff),
    /// Free the key, then give the permit back.
    Free(Option<Permit>),
}

/// A release of a key. If it is dropped without an answer, it continues in the background.
#[derive(Debug)]
pub(super) struct KeyRelease {
    engine: Arc<Engine>,
    lease: Arc<Lease>,
    /// The permit of the key, which is given back after the release.
    permit: Option<Permit>,
    /// Whether the store has not answered.
    open: bool,
    /// The deadline of the hold, if it was valid and no request has been sent; otherwise `PAST`.
    valid_until: BootInstant,
}

impl KeyRelease {
    fn send(&self, lane: Lane) -> MaybeReady<'_, Result<Released, StoreError>> {
        self.store().release(self.request(), lane)
    }

    pub(super) fn request(&self) -> Release<'_> {
        let (keep, leaves_gap) = self.keep_and_gap();
        self.lease.locked().release(keep, leaves_gap)
    }

    /// The position of the permit, if the release has it.
    pub(super) fn position(&self) -> Option<QueuePosition> {
        self.permit.as_ref().map(|permit| permit.position(0))
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(super) fn key(&self) -> &Arc<str> {
        self.lease.key()
    }

    pub(super) fn store(&self) -> &Arc<dyn LockStore> {
        self.lease.store()
    }

    /// How long the key stays taken, and whether it then stays free for a moment.
    fn keep_and_gap(&self) -> (Duration, bool) {
        let (kept_until, tenure_since) = self.lease.kept_until_and_since();
        let now = BootInstant::now();
        (kept_until.since(now), leaves_gap(now.since(tenure_since)))
    }

    /// Sets the status for waiters that give up: the lock has no holder, and it is not known yet
    /// whether the key is free.
    fn set_status(&self) {
        if let Some(permit) = &self.permit {
            permit.set_releasing();
        }
    }

    pub(super) fn answered(&mut self, answer: &Result<Released, StoreError>) {
        self.open &= answer.is_err();
        if let (Ok(Released::Freed { woken }), Some(permit)) = (answer, &mut self.permit) {
            permit.released(*woken);
        }
    }
}

impl Drop for KeyRelease {
    fn drop(&mut self) {
        if self.open || self.lease.locked().doubt.is_some() {
            let cleanup = Cleanup::of(&self.lease, self.permit.take());
            let (valid_until, (_, leaves_gap)) = (self.valid_until, self.keep_and_gap());
            let cleanup = Cleanup { valid_until, leaves_gap, ..cleanup };
            self.engine.background().clean_up(cleanup);
        }
    }
}
