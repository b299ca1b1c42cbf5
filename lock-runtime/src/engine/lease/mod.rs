//! A lease in the store, and its holds in this process.
//!
//! The lease counts from the instant just before the last successful request was *sent* (if the store
//! has given the key to a claim, the request that has confirmed its place in the queue), and the
//! deadline is a margin before the instant at which the store could expire the key; see
//! [`deadline`]. The deadline is in an atomic, because it is read before every poll of a body. All
//! other state is in [`state`], behind a mutex.
//!
//! Keeps the promises that a body never outlives its lock, and that a guard acts on its own hold
//! only.

mod effects;
mod hold;
mod hold_mode;
mod locked;
pub(super) mod modes;
mod set_member;
mod state;
mod terms;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use self::effects::Lost;
pub(crate) use self::effects::{Ending, Loss};
pub(crate) use self::hold_mode::{Joined, MayChange};
pub(crate) use self::locked::Locked;
use self::state::State;
pub(crate) use self::terms::Terms;
pub(crate) use self::terms::deadline;
use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::replicas::RequiredReplicas;
use crate::store::contract::{LockStore, Renewal, Resource};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, Notify, lock};
use crate::telemetry::{SiteMetrics, SlowHold};

/// A lease. `P` is the permit of its key.
#[derive(Debug)]
pub(crate) struct Lease<P> {
    locked: Locked,
    /// The deadline of the current hold; `PAST` once the lease has ended. Written with `state`
    /// locked.
    valid_until: AtomicU64,
    /// The number of the current hold. Written with `state` locked.
    current: AtomicU64,
    /// When the current hold began.
    began: AtomicU64,
    /// When the client got to know of the grant, in nanoseconds of the boot clock.
    known: AtomicU64,
    /// How long the call waited for the current hold, in nanoseconds.
    waited: AtomicU64,
    state: Mutex<State<P>>,
    /// Notified of a loss, by the notifier thread.
    lost: Notify,
    /// The instant and the number of the entry in the schedule. Only the schedule reads or writes these fields.
    pub(super) scheduled: AtomicU64,
    pub(super) entry_number: AtomicU64,
}

impl<P> Lease<P> {
    pub(crate) fn locked(&self) -> &Locked {
        &self.locked
    }

    pub(crate) fn key(&self) -> &Arc<str> {
        &self.locked.key
    }

    pub(crate) fn store(&self) -> &Arc<dyn LockStore> {
        &self.locked.store
    }

    /// Returns the request that renews the lease to `term`.
    pub(crate) fn renewal(&self, term: Duration) -> Renewal<'_> {
        let acknowledged_by = self.acknowledged_by();
        let (key, mode) = (&*self.locked.key, self.mode());
        let (resource, owner) = (Resource { key, mode }, self.locked.owner);
        Renewal { resource, owner, term, acknowledged_by }
    }

    /// The replicas that have to acknowledge each renewal.
    pub(crate) fn acknowledged_by(&self) -> RequiredReplicas {
        self.read(State::acknowledged_by)
    }

    /// Reads the state.
    fn read<T>(&self, read: impl FnOnce(&State<P>) -> T) -> T {
        read(&lock(&self.state))
    }

    /// Changes the state. This is the only place that writes the atomics which a poll of the body reads.
    fn change<T>(&self, change: impl FnOnce(&mut State<P>) -> T) -> T {
        let mut state = lock(&self.state);
        let effect = change(&mut state);
        self.valid_until.store(state.deadline().as_nanos(), Ordering::Release);
        self.current.store(state.hold(), Ordering::Release);
        effect
    }

    /// The deadline of the current hold; `PAST` once the lease has ended.
    pub(crate) fn deadline(&self) -> BootInstant {
        BootInstant::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    /// Whether the lease is provably valid at `now`.
    pub(crate) fn is_valid(&self, now: BootInstant) -> bool {
        now < self.deadline()
    }

    /// The length of one grant or renewal.
    pub(crate) fn term(&self) -> Duration {
        self.read(State::term)
    }

    /// The length of the last grant or renewal. That of a lock which another process has passed on is short.
    pub(crate) fn last_term(&self) -> Duration {
        self.read(State::last_term)
    }

    /// See [`State::max_hold`].
    pub(crate) fn max_hold(&self) -> Option<Duration> {
        self.read(State::max_hold)
    }

    /// See [`State::slow_hold`].
    pub(crate) fn slow_hold(
        &self,
        now: BootInstant,
        threshold: Option<Duration>,
    ) -> Option<SlowHold> {
        self.change(|state| state.slow_hold(now, threshold))
    }

    /// When the last successful request was sent.
    pub(crate) fn confirmed(&self) -> BootInstant {
        self.read(State::confirmed)
    }

    /// When the next renewal is due, and the length of the last one. See [`State::renewal_due`].
    pub(crate) fn renewal_due(&self, begins_watch: bool) -> (BootInstant, Duration) {
        self.read(|state| (state.renewal_due(begins_watch), state.last_term()))
    }

    /// Whether the lease is not renewed.
    pub(crate) fn is_fixed(&self) -> bool {
        self.read(|state| !state.is_renewed())
    }

    /// See [`State::is_unconfirmed`].
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.read(State::is_unconfirmed)
    }

    /// The instant by which the key has expired if no more requests reach the store.
    pub(crate) fn gone_by(&self) -> BootInstant {
        self.read(State::gone_by)
    }

    /// The end of `min_hold`: the key stays in the store until then, even if the hold ends before.
    pub(crate) fn kept_until(&self) -> BootInstant {
        self.read(State::kept_until)
    }

    /// See [`kept_until`](Self::kept_until) and [`State::tenure_since`].
    pub(crate) fn kept_until_and_since(&self) -> (BootInstant, BootInstant) {
        self.read(|state| (state.kept_until(), state.tenure_since()))
    }

    /// Whether a renewal would extend the hold.
    pub(crate) fn can_be_renewed(&self) -> bool {
        self.read(State::can_be_renewed)
    }

    /// See [`State::verify`].
    pub(crate) fn verify(&self) -> bool {
        self.change(State::verify)
    }

    /// The error for a loss at this moment.
    pub(crate) fn lost_to(&self, reason: LostReason) -> LockError {
        self.lost_error(Lost { reason, held_for: self.age() })
    }

    /// How long ago the last hold was granted.
    pub(crate) fn age(&self) -> Duration {
        BootInstant::now().since(self.read(State::granted))
    }

    fn lost_error(&self, Lost { reason, held_for }: Lost) -> LockError {
        LockError::lost(self.locked.key.as_ref().to_owned(), reason, held_for)
    }

    /// See [`State::accept`].
    pub(crate) fn accept(
        self: &Arc<Self>,
        terms: &Terms,
        permit: &mut Option<P>,
    ) -> Option<(Hold<P>, bool)> {
        let now = BootInstant::now();
        self.change(|state| {
            let reschedule = state.accept(terms, permit, now)?;
            self.hold_begun(terms, now);
            Some((Hold { lease: Arc::clone(self), number: state.hold() }, reschedule))
        })
    }

    /// See [`State::about_to_renew_for`].
    pub(crate) fn about_to_renew_for(&self, terms: &Terms, now: BootInstant) -> Option<Duration> {
        self.change(|state| state.about_to_renew_for(terms, now))
    }

    /// See [`State::renewed_for`].
    pub(crate) fn renewed_for(
        self: &Arc<Self>,
        terms: &Terms,
        sent: BootInstant,
        permit: &mut Option<P>,
    ) -> Option<Hold<P>> {
        self.change(|state| {
            state.renewed_for(terms, sent, permit, BootInstant::now()).then(|| {
                self.hold_begun(terms, sent);
                Hold { lease: Arc::clone(self), number: state.hold() }
            })
        })
    }

    /// The hold of another call begins.
    fn hold_begun(&self, terms: &Terms, since: BootInstant) {
        self.began.store(since.as_nanos(), Ordering::Relaxed);
        self.waited.store(0, Ordering::Relaxed);
        terms.site.hold_begun();
    }

    /// See [`State::close`].
    pub(crate) fn close(&self) -> bool {
        self.change(State::close)
    }

    /// Records the number of processes that wait for the key; `None` if it is not known.
    pub(crate) fn waiters_counted(&self, count: Option<usize>) {
        self.change(|state| {
            if count == Some(0) {
                state.site().handoff_limit_reached(true);
            }
            state.tenure().counted(count, BootInstant::now());
        });
    }

    /// Records that the count was abandoned.
    pub(crate) fn count_abandoned(&self) {
        self.change(|state| state.tenure().count_abandoned());
    }

    /// See [`State::about_to_renew`].
    pub(crate) fn about_to_renew(&self, now: BootInstant) -> Option<Duration> {
        self.change(|state| state.about_to_renew(now))
    }

    /// See [`State::extended`].
    pub(crate) fn extended(&self, sent: BootInstant, term: Option<Duration>) -> u32 {
        self.change(|state| state.extended(sent, term))
    }

    /// See [`State::failed`].
    pub(crate) fn failed(&self) -> u32 {
        self.change(State::failed)
    }

    /// Ends the lease because it is lost. `None` if it had ended before.
    ///
    /// Wakes no task. The permit stays here until [`take_permit`](Self::take_permit). `first` is
    /// called before the change, because after it another thread may give the permit back.
    pub(crate) fn lose(&self, reason: LostReason, first: impl FnOnce()) -> Option<Loss> {
        self.end(BootInstant::now(), |_| Some(reason), first)
    }

    /// Ends the lease because its deadline has passed. `None` if it had ended before, or if the
    /// deadline has not passed: the lease may have gone to a holder with more time.
    pub(crate) fn expire(&self, first: impl FnOnce()) -> Option<Loss> {
        let now = BootInstant::now();
        let why = |state: &State<P>| (now >= state.deadline()).then(|| state.overdue(now));
        self.end(now, why, first)
    }

    /// See [`State::lose`]. Measures the loss of a hold.
    fn end(
        &self,
        now: BootInstant,
        why: impl FnOnce(&State<P>) -> Option<LostReason>,
        first: impl FnOnce(),
    ) -> Option<Loss> {
        self.change(|state| {
            let loss = state.lose(now, why, first)?;
            if let Some(held_for) = loss.held_for {
                state.site().hold_ended(held_for);
                state.site().lost(loss.reason);
            }
            Some(loss)
        })
    }

    /// Where the current hold is measured.
    pub(crate) fn site(&self) -> &'static SiteMetrics {
        self.read(State::site)
    }

    /// Where the current hold is measured, and when it began; `None` without a holder.
    pub(crate) fn held_at(&self) -> Option<(&'static SiteMetrics, BootInstant)> {
        self.read(|state| state.is_held().then(|| (state.site(), state.granted())))
    }

    /// The fencing token of the current hold, if a holder has asked for it.
    pub(crate) fn known_fence(&self) -> Option<u64> {
        self.read(|state| state.known_fence(state.hold()))
    }

    /// What is left of the last grant or renewal, and its length; `None` if the lease is not renewed.
    pub(crate) fn slack(&self) -> Option<(Duration, Duration)> {
        let passed = |state: &State<P>| BootInstant::now().since(state.confirmed());
        self.read(|state| {
            let term = state.last_term();
            state.is_renewed().then(|| (term.saturating_sub(passed(state)), term))
        })
    }

    /// Wakes the tasks that wait for the loss. Their wakers are user code.
    pub(crate) fn notify_of_loss(&self) {
        self.lost.notify_waiters();
    }

    pub(crate) fn take_permit(&self) -> Option<P> {
        self.change(State::take_permit)
    }
}

/// One hold of a lease, which several holders may share. Its methods have no effect on later holds
/// of the same lease.
#[derive(Debug)]
pub(crate) struct Hold<P> {
    lease: Arc<Lease<P>>,
    number: u64,
}

impl<P> Clone for Hold<P> {
    fn clone(&self) -> Self {
        Self { lease: Arc::clone(&self.lease), number: self.number }
    }
}
