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
mod hold_mode;
mod locked;
pub(super) mod modes;
mod set_member;
mod state;
mod terms;
#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

use self::effects::{Departure, Lost, Standing};
pub(crate) use self::effects::{Ending, Loss};
pub(crate) use self::hold_mode::{Joined, MayChange};
pub(crate) use self::locked::Locked;
use self::state::State;
pub(crate) use self::terms::Terms;
#[cfg(test)]
use self::terms::deadline;
use super::fairness::limit::{HandoffLimit, Tenure};
use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::replicas::RequiredReplicas;
use crate::runtime;
use crate::store::contract::{Grant, LockStore, Mode, Renewal, Resource};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, Notify, lock, time};

/// A lease. `P` is the permit of its key.
#[derive(Debug)]
pub(crate) struct Lease<P> {
    locked: Locked,
    /// The deadline of the current hold; `PAST` once the lease has ended. Written with `state`
    /// locked.
    valid_until: AtomicU64,
    /// The number of the current hold. Written with `state` locked.
    current: AtomicU64,
    state: Mutex<State<P>>,
    /// Notified of a loss, by the notifier thread.
    lost: Notify,
    /// The position in the schedule. Only the schedule reads or writes this field.
    pub(super) scheduled: AtomicU64,
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

    /// Changes the state. This is the only place that writes the atomics.
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
        let held_for = BootInstant::now().since(self.read(State::granted));
        self.lost_error(Lost { reason, held_for })
    }

    fn lost_error(&self, Lost { reason, held_for }: Lost) -> LockError {
        LockError::Lost { key: self.locked.key.as_ref().to_owned(), reason, held_for }
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
            let renewed = state.renewed_for(terms, sent, permit, BootInstant::now());
            renewed.then(|| Hold { lease: Arc::clone(self), number: state.hold() })
        })
    }

    /// See [`State::close`].
    pub(crate) fn close(&self) -> bool {
        self.change(State::close)
    }

    /// Records the number of processes that wait for the key; `None` if it is not known.
    pub(crate) fn waiters_counted(&self, count: Option<usize>) {
        self.change(|state| state.tenure().counted(count, BootInstant::now()));
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
        self.change(|state| state.lose(BootInstant::now(), |_| Some(reason), first))
    }

    /// Ends the lease because its deadline has passed. `None` if it had ended before, or if the
    /// deadline has not passed: the lease may have gone to a holder with more time.
    pub(crate) fn expire(&self, first: impl FnOnce()) -> Option<Loss> {
        let now = BootInstant::now();
        let why = |state: &State<P>| (now >= state.deadline()).then(|| state.overdue(now));
        self.change(|state| state.lose(now, why, first))
    }

    /// Wakes the tasks that wait for the loss. Their wakers are user code.
    pub(crate) fn notify_of_loss(&self) {
        self.lost.notify_waiters();
    }

    pub(crate) fn take_permit(&self) -> Option<P> {
        self.change(State::take_permit)
    }
}

/// The tolerance for a timer that fires early, because it uses another clock than the deadlines.
const EARLY: Duration = Duration::from_millis(5);

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

impl<P> Hold<P> {
    /// The first hold of a new lease, granted by a request that was sent at `sent`. `contended`
    /// says whether other processes are known to want the key.
    pub(crate) fn new(
        locked: Locked,
        terms: &Terms,
        (grant, sent): (Grant, BootInstant),
        permit: Option<P>,
        contended: bool,
    ) -> Self {
        // A transfer came some time after the request that has confirmed the place in the queue.
        let granted = if grant.is_transfer { BootInstant::now() } else { sent };
        let tenure = Tenure::new(granted, contended);
        let state = State::new((terms, locked.mode), grant, (sent, granted), permit, tenure);
        let lease = Arc::new(Lease {
            locked,
            valid_until: AtomicU64::new(state.deadline().as_nanos()),
            current: AtomicU64::new(state.hold()),
            state: Mutex::new(state),
            lost: Notify::new(),
            scheduled: AtomicU64::new(0),
        });
        Self { lease, number: 0 }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease<P>> {
        &self.lease
    }

    pub(crate) fn key(&self) -> &Arc<str> {
        self.lease.key()
    }

    /// Whether this hold began with a hand-off.
    pub(crate) fn was_handed_off(&self) -> bool {
        self.number > 0
    }

    /// The deadline of the hold, which may be extended; `PAST` once the hold has ended. Costs two
    /// atomic loads.
    pub(crate) fn deadline(&self) -> BootInstant {
        let deadline = self.lease.deadline();
        let is_current = self.lease.current.load(Ordering::Acquire) == self.number;
        if is_current { deadline } else { BootInstant::PAST }
    }

    /// Whether the hold is provably valid at `now`.
    pub(crate) fn is_valid(&self, now: BootInstant) -> bool {
        now < self.deadline()
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.lease.read(|state| state.hold() == self.number && state.is_renewed())
    }

    /// Adds a holder that wants this mode. False if the hold has ended, or has another mode.
    pub(crate) fn join(&self, wanted: Mode) -> bool {
        self.lease.change(|state| state.join(self.number, wanted, BootInstant::now()))
    }

    /// Removes a holder; see [`State::leave`]. Returns the loss
    /// that had ended the hold, its reason if it had not been noticed before, and the next step.
    pub(crate) fn leave(
        &self,
        limit: (Option<&HandoffLimit>, bool),
    ) -> (Option<LockError>, Option<LostReason>, Ending<P>) {
        let now = BootInstant::now();
        let Departure { lost, unnoticed, ending } =
            self.lease.change(|state| state.leave(self.number, limit, now));
        (lost.map(|lost| self.lease.lost_error(lost)), unnoticed, ending)
    }

    /// The error for the loss of the hold; `None` while the hold is valid, and if it was released
    /// or handed off.
    pub(crate) fn loss(&self) -> Option<LockError> {
        let now = BootInstant::now();
        if self.is_valid(now) {
            return None;
        }
        match self.lease.read(|state| state.standing(self.number, now)) {
            Standing::Lost(lost) => Some(self.lease.lost_error(lost)),
            Standing::Until(_) | Standing::Over => None,
        }
    }

    /// Resolves when the hold is lost: when any part of the engine notices the loss, or by a timer
    /// of this future when the deadline passes.
    ///
    /// Cancel safe: dropping the future has no effect on the hold.
    pub(crate) async fn lost(&self) -> LostReason {
        // Without a runtime there is no timer, so only the notification ends the wait.
        let mut has_clock = runtime::here().is_ok();
        loop {
            // Created before the state is read, so that no notification is missed.
            let notified = pin!(self.lease.lost.notified());
            let standing = self.lease.read(|state| state.standing(self.number, BootInstant::now()));
            let deadline = match standing {
                Standing::Lost(lost) => return lost.reason,
                Standing::Until(deadline) if has_clock => deadline,
                Standing::Until(_) | Standing::Over => {
                    notified.await;
                    continue;
                }
            };
            tokio::select! {
                // The order does not matter: no branch takes anything from another one.
                biased;
                () = notified => {}
                () = time::sleep(deadline.since(BootInstant::now())) => {
                    // Tokio's paused time runs ahead of the clock of the deadlines. With a timer,
                    // this loop would then spin.
                    has_clock = deadline.since(BootInstant::now()) < EARLY;
                }
            }
        }
    }

    /// The cell for the hold's fencing token.
    pub(crate) fn fence(&self) -> Arc<OnceCell<u64>> {
        self.lease.change(|state| state.fence(self.number))
    }

    /// See [`State::about_to_extend`].
    pub(crate) fn about_to_extend(
        &self,
        now: BootInstant,
        term: Option<Duration>,
        min_hold: Duration,
    ) -> Option<Duration> {
        self.change(|state| state.about_to_extend(now, term, min_hold)).flatten()
    }

    /// See [`State::extended`].
    pub(crate) fn extended(&self, sent: BootInstant, term: Duration) {
        self.change(|state| state.extended(sent, Some(term)));
    }

    /// See [`State::acknowledged`].
    pub(crate) fn acknowledged(
        &self,
        by: RequiredReplicas,
        (sent, term): (BootInstant, Duration),
    ) -> bool {
        let change =
            |state: &mut State<P>| state.acknowledged(by, (sent, term), BootInstant::now());
        self.change(change).unwrap_or(false)
    }

    /// See [`State::keep_for`].
    pub(crate) fn keep_for(&self, since: BootInstant, min_hold: Duration) {
        self.change(|state| state.keep_for(since, min_hold));
    }

    /// See [`State::keep_no_longer`].
    pub(crate) fn keep_no_longer(&self) {
        self.change(State::keep_no_longer);
    }

    /// Changes the state, if this is still the current hold.
    fn change<T>(&self, change: impl FnOnce(&mut State<P>) -> T) -> Option<T> {
        self.lease.change(|state| (state.hold() == self.number).then(|| change(state)))
    }
}
