//! The queues of cleanups.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tracing::Level;

use crate::backoff::Backoff;
use crate::clock::BootInstant;
use crate::engine::background::failovers::Failovers;
use crate::engine::background::loss_record::RecentLosses;
use crate::engine::background::notifier::{Notice, Notifier};
use crate::engine::handoff::{Lease, Permit};
use crate::engine::lease::Locked;
use crate::error::LostReason;
use crate::events;
use crate::store::contract::{Lane, LockStore, Place, is_same};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::telemetry::SiteMetrics;

/// The first and the longest pause between two attempts.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));

/// The largest number of such requests in flight per lane and place.
pub(super) const BATCHES_PER_LANE: usize = 4;

/// One key to free.
#[derive(Debug)]
pub(crate) struct Cleanup {
    pub(crate) locked: Locked,
    /// The instant by which the key has expired.
    pub(crate) gone_by: BootInstant,
    /// The end of `min_hold`: the key stays taken until then, and expires.
    pub(crate) kept_until: BootInstant,
    /// The deadline of the hold: if the key is gone before it, the lock had been lost. `PAST` if
    /// the deadline is not known.
    pub(crate) valid_until: BootInstant,
    /// See [`Release::leaves_gap`](crate::store::contract::Release::leaves_gap).
    pub(crate) leaves_gap: bool,
    /// When the last successful request for the lease was sent; `PAST` if none was.
    pub(crate) confirmed: BootInstant,
    pub(crate) reason: CleanupReason,
    /// Where the hold was measured, if there was one.
    pub(crate) site: Option<&'static SiteMetrics>,
    /// The permit of the key. It is given back after any first answer on the background lane: from
    /// then on, other callers of this process can send requests for the key.
    pub(crate) permit: Option<Permit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CleanupReason {
    /// A hold has ended.
    Released,
    /// A request of the acquisition may have taken effect, or may still do so.
    Unanswered,
}

impl Cleanup {
    /// The cleanup of a lease that has ended. If a request of its acquisition may still arrive and
    /// take the key again, the cleanup undoes that request as well.
    pub(crate) fn of(lease: &Lease, permit: Option<Permit>) -> Self {
        let locked = lease.locked().clone();
        let is_certain = locked.doubt.is_none();
        let reason = if is_certain { CleanupReason::Released } else { CleanupReason::Unanswered };
        Self {
            locked,
            gone_by: lease.gone_by(),
            kept_until: lease.kept_until(),
            valid_until: BootInstant::PAST,
            leaves_gap: false,
            confirmed: lease.confirmed(),
            reason,
            site: Some(lease.site()),
            permit,
        }
    }

    /// The same cleanup for the lane of the original request, without the permit.
    fn on_origin(&self) -> Self {
        let (locked, valid_until, permit) = (self.locked.clone(), BootInstant::PAST, None);
        Self { locked, valid_until, permit, ..*self }
    }
}

/// A cleanup on one lane.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) cleanup: Cleanup,
    pub(super) lane: Lane,
    pub(super) step: Step,
    pub(super) failures: u32,
    pub(super) backoff: Backoff,
}

/// The step of a cleanup, which determines the meaning of a definite answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The cleanup is complete.
    Last,
    /// Another request has to be sent after a second.
    First,
    /// The cleanup is complete if this connection carried the request. Otherwise another request
    /// has to be sent after a second.
    After(Option<NonZeroU64>),
}

/// The cleanups of one client.
#[derive(Debug)]
pub(crate) struct Cleanups {
    pub(super) notifier: Arc<Notifier>,
    queues: Mutex<CleanupQueues>,
    /// The number of cleanups that are queued or in flight.
    open: AtomicUsize,
    /// The number of locks whose loss only a cleanup has noticed.
    pub(super) found_lost: AtomicU64,
    pub(super) failovers: Arc<Failovers>,
    pub(super) losses: Arc<RecentLosses>,
}

#[derive(Debug, Default)]
pub(super) struct CleanupQueues {
    /// The cleanups to send now. There are few lanes and places.
    pub(super) ready: Vec<LaneQueue>,
    /// The cleanups to send later. The number distinguishes cleanups of one instant.
    pub(super) later: BTreeMap<(BootInstant, u64), Pending>,
    number: u64,
}

/// The cleanups that can be sent in one batch.
pub(super) struct LaneQueue {
    pub(super) lane: Lane,
    pub(super) store: Arc<dyn LockStore>,
    pub(super) place: Place,
    pub(super) pending: VecDeque<Pending>,
    /// The number of batches in flight.
    pub(super) in_flight: usize,
}

impl std::fmt::Debug for LaneQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { lane, store: _, place, pending, in_flight } = self;
        let mut queue = f.debug_struct("LaneQueue");
        queue.field("lane", lane).field("place", place).field("pending", &pending.len());
        queue.field("in_flight", in_flight).finish_non_exhaustive()
    }
}

impl LaneQueue {
    fn is_for(&self, lane: Lane, store: &Arc<dyn LockStore>, place: Place) -> bool {
        self.lane == lane && self.place == place && is_same(&self.store, store)
    }
}

impl CleanupQueues {
    pub(super) fn queue(
        &mut self,
        lane: Lane,
        store: &Arc<dyn LockStore>,
        place: Place,
    ) -> &mut LaneQueue {
        let found = self.ready.iter().position(|queue| queue.is_for(lane, store, place));
        let at = found.unwrap_or_else(|| {
            // Removes empty queues, such as those of runtimes that have ended.
            self.ready.retain(|queue| queue.in_flight > 0 || !queue.pending.is_empty());
            let (store, pending) = (Arc::clone(store), VecDeque::new());
            self.ready.push(LaneQueue { lane, store, place, pending, in_flight: 0 });
            self.ready.len() - 1
        });
        &mut self.ready[at]
    }

    pub(super) fn push(&mut self, pending: Pending) {
        let locked = &pending.cleanup.locked;
        let place = locked.store.place(&locked.key);
        let store = Arc::clone(&locked.store);
        self.queue(pending.lane, &store, place).pending.push_back(pending);
    }

    pub(super) fn push_later(&mut self, at: BootInstant, pending: Pending) {
        self.number += 1;
        self.later.insert((at, self.number), pending);
    }
}

impl Cleanups {
    pub(crate) fn new(
        notifier: Arc<Notifier>,
        (failovers, losses): (Arc<Failovers>, Arc<RecentLosses>),
    ) -> Self {
        let (open, found_lost) = (AtomicUsize::new(0), AtomicU64::new(0));
        Self { notifier, queues: Mutex::default(), open, found_lost, failovers, losses }
    }

    /// Counts a cleanup before it is queued. Paired with [`done`](Self::done).
    pub(crate) fn begin(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn push(&self, cleanup: Cleanup) {
        let pending = |cleanup, lane, step| {
            self.begin();
            let backoff = Backoff::new(PAUSES.0, PAUSES.1);
            Pending { cleanup, lane, step, failures: 0, backoff }
        };
        let mut queues = self.lock();
        let step = match (cleanup.reason, cleanup.locked.doubt) {
            (CleanupReason::Released, _) => Step::Last,
            (CleanupReason::Unanswered, None) => Step::First,
            (CleanupReason::Unanswered, Some(origin)) => {
                let (lane, step) = (Lane::Runtime(origin.runtime), Step::After(origin.connection));
                queues.push(pending(cleanup.on_origin(), lane, step));
                // The cleanup on the other lane is repeated if necessary.
                Step::Last
            }
        };
        queues.push(pending(cleanup, Lane::Background, step));
    }

    /// The time of the first cleanup to send later.
    pub(crate) fn next_later(&self) -> Option<BootInstant> {
        self.lock().later.first_key_value().map(|((at, _), _)| *at)
    }

    /// Drops all queued cleanups.
    pub(crate) fn clear(&self) {
        let queues = std::mem::take(&mut *self.lock());
        let ready = queues.ready.into_iter().flat_map(|queue| queue.pending);
        for pending in ready.chain(queues.later.into_values()) {
            self.end(pending);
        }
    }

    /// See [`begin`](Self::begin).
    pub(crate) fn done(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of cleanups that are queued or in flight.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// The number of locks whose loss only a cleanup has noticed.
    pub(crate) fn found_lost(&self) -> u64 {
        self.found_lost.load(Ordering::Acquire)
    }

    /// Ends a cleanup. The notifier drops the permit, because that calls the wakers of waiters,
    /// which are user code.
    pub(super) fn end(&self, mut pending: Pending) {
        if let Some(permit) = pending.cleanup.permit.take() {
            self.notifier.send(Notice::Permit(permit));
        }
        self.done();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, CleanupQueues> {
        lock(&self.queues)
    }
}

/// Logs a loss that only the release has noticed.
pub(crate) fn log_loss(key: Arc<str>, reason: LostReason) {
    events::emit(Level::WARN, move || {
        let word = reason.as_str();
        tracing::warn!(
            key = &*key,
            reason = word,
            detail = %reason,
            "lock lost; the release detected the loss"
        );
    });
}
