//! What the holders of a hold do.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

use super::effects::{Departure, Ending, Standing};
use super::locked::Locked;
use super::state::State;
use super::terms::Terms;
use super::{Hold, Lease};
use crate::clock::BootInstant;
use crate::engine::fairness::limit::{HandoffLimit, Tenure};
use crate::error::{LockError, LostReason};
use crate::replicas::RequiredReplicas;
use crate::runtime;
use crate::store::contract::{Grant, Mode};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, Notify, time};
#[cfg(feature = "testing")]
use crate::telemetry::HoldEnd;
use crate::telemetry::{ClientMetrics, FormerSpan, HoldSpan, SiteMetrics};

/// The tolerance for a timer that fires early, because it uses another clock than the deadlines.
const EARLY: Duration = Duration::from_millis(5);

impl<P> Hold<P> {
    /// The first hold of a new lease, granted by a request that was sent at `sent`; the client knows of the grant
    /// since `known`. `contended` says whether other processes are known to want the key.
    pub(crate) fn new(
        locked: Locked,
        terms: &Terms,
        (grant, (sent, known)): (Grant, (BootInstant, BootInstant)),
        permit: Option<P>,
        contended: bool,
    ) -> Self {
        // A transfer came some time after the request that has confirmed the place in the queue.
        let granted = if grant.is_transfer { known } else { sent };
        let tenure = Tenure::new(granted, contended);
        let state = State::new((terms, locked.mode), grant, (sent, granted), permit, tenure);
        terms.site.hold_begun();
        let lease = Arc::new(Lease {
            locked,
            valid_until: AtomicU64::new(state.deadline().as_nanos()),
            current: AtomicU64::new(state.hold()),
            began: AtomicU64::new(granted.as_nanos()),
            known: AtomicU64::new(known.as_nanos()),
            waited: AtomicU64::new(0),
            state: Mutex::new(state),
            lost: Notify::new(),
            scheduled: AtomicU64::new(0),
            entry_number: AtomicU64::new(0),
        });
        Self { lease, number: 0 }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease<P>> {
        &self.lease
    }

    pub(crate) fn key(&self) -> &Arc<str> {
        self.lease.key()
    }

    /// Records that the call which began at this time has this hold now. Returns how long it has waited.
    pub(crate) fn waited_since(&self, began: BootInstant) -> Duration {
        // A hold that was handed off begins when its call gets it, and otherwise before the answer of the
        // store.
        let lease = &self.lease;
        let at = if self.was_handed_off() { &lease.began } else { &lease.known };
        let waited = at.load(Ordering::Relaxed).saturating_sub(began.as_nanos());
        lease.waited.store(waited, Ordering::Relaxed);
        Duration::from_nanos(waited)
    }

    /// Where the hold is measured.
    pub(crate) fn site(&self) -> &'static SiteMetrics {
        self.lease.read(State::site)
    }

    /// The fencing token, if a holder has asked for it.
    pub(crate) fn known_fence(&self) -> Option<u64> {
        self.lease.read(|state| state.known_fence(self.number))
    }

    /// Says that this span follows that of the previous hold, if the lock was handed off, and keeps it for the
    /// next hold.
    pub(crate) fn follow(&self, span: &HoldSpan) {
        let next = FormerSpan::new(span);
        let former = self.change(|state| state.traces(next)).flatten();
        if let Some((former, is_previous)) = former {
            if is_previous {
                former.precedes(span);
            }
            former.end();
        }
    }

    /// The span that no next hold will follow: the lease has ended.
    pub(crate) fn end_trace(&self) -> Option<FormerSpan> {
        self.lease.change(State::end_trace)
    }

    /// A transaction of the program verifies this hold.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_verified(&self) {
        self.change(State::is_verified);
    }

    /// How long the call waited for this hold.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.lease.waited.load(Ordering::Relaxed))
    }

    /// How long this hold has lasted, or had lasted when it was lost.
    pub(crate) fn held_for(&self) -> Duration {
        let now = BootInstant::now();
        self.lease.read(|state| match state.standing(self.number, now) {
            Standing::Lost(lost) => lost.held_for,
            Standing::Until(_) | Standing::Over => now.since(state.granted()),
        })
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
    /// that had ended the hold, its reason if it had not been noticed before, and the next step. Warns of a
    /// hold that was long.
    pub(crate) fn leave(
        &self,
        limit: (Option<&HandoffLimit>, bool),
        metrics: Option<&ClientMetrics>,
        now: BootInstant,
    ) -> (Option<LockError>, Option<LostReason>, Ending<P>) {
        let slow = metrics.and_then(|metrics| metrics.slow.hold);
        let mut slow_hold = None;
        let Departure { lost, unnoticed, ending, .. } = self.lease.change(|state| {
            slow_hold = state.slow_hold_of_last(self.number, now, slow);
            let departure = state.leave(self.number, limit, now);
            #[cfg(feature = "testing")]
            if let (Some(held_for), Some(observer)) =
                (departure.held_for, metrics.and_then(|metrics| metrics.observer.as_ref()))
            {
                let lost = departure.lost.map(|lost| HoldEnd::Lost(lost.reason));
                observer.ended(self.key(), lost.unwrap_or(HoldEnd::Released(held_for)));
            }
            if let Some(held_for) = departure.held_for {
                state.site().hold_ended(held_for);
            }
            if departure.at_limit {
                state.site().handoff_limit_reached(false);
            }
            departure
        });
        if let Some(slow_hold) = slow_hold {
            slow_hold.warn(self.key());
        }
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
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State<P>) -> T) -> Option<T> {
        self.lease.change(|state| (state.hold() == self.number).then(|| change(state)))
    }
}
