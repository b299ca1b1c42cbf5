//! The state that the background threads and the callers share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime;

use super::cleanup::Cleanups;
use super::failovers::Failovers;
use super::loss_record::RecentLosses;
use super::notifier::{Notice, Notifier};
use super::place_limit::Renewals;
use super::schedule::Schedule;
use super::watched::WatchedLeases;
use crate::clock::BootInstant;
use crate::engine::handoff::{Handoff, Lease};
use crate::error::LostReason;
use crate::safeguard::Safeguard;
use crate::store::contract::Lane;
use crate::store::hold_reports::{ChangedKeys, HoldReport};
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::{Mutex, Notify, lock, spawn_task};
use crate::telemetry::ClientMetrics;

pub(super) struct BackgroundState {
    pub(super) schedule: Schedule,
    pub(super) renewals: Renewals,
    pub(super) cleanups: Cleanups,
    pub(super) notifier: Arc<Notifier>,
    /// The runtime of the notifier thread, for requests to a store that wakes waiters itself.
    pub(super) wake_ups: OnceLock<runtime::Handle>,
    /// Notified when a lease or a cleanup is due earlier than planned.
    pub(super) wake: Notify,
    /// The number of locks that were lost while they were held.
    pub(super) lost: AtomicU64,
    /// Written for each of them.
    pub(super) losses: Arc<RecentLosses>,
    failovers: Arc<Failovers>,
    /// The held locks whose keys the store watches.
    pub(super) watched: WatchedLeases,
    /// Leases that linger, and whose keys others may begin to wait for.
    pub(super) lingering: Mutex<Vec<Arc<Lease>>>,
    /// Leases for whose keys the number of waiting claims is wanted.
    pub(super) counted: Mutex<Vec<Arc<Lease>>>,
    /// The reason why the background thread does not run.
    pub(super) failure: OnceLock<String>,
    /// Set when the client is dropped. The thread then completes the cleanups and ends.
    pub(super) closing: AtomicBool,
    pub(super) metrics: Arc<ClientMetrics>,
}

impl std::fmt::Debug for BackgroundState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background")
            .field("held", &self.schedule.len())
            .field("releasing", &self.cleanups.open())
            .finish_non_exhaustive()
    }
}

impl BackgroundState {
    pub(super) fn new(notifier: Arc<Notifier>, metrics: Arc<ClientMetrics>) -> Arc<Self> {
        let (failovers, losses) = (Arc::<Failovers>::default(), Arc::<RecentLosses>::default());
        let of_losses = (Arc::clone(&failovers), Arc::clone(&losses));
        Arc::new(Self {
            schedule: Schedule::default(),
            renewals: Renewals::default(),
            cleanups: Cleanups::new(Arc::clone(&notifier), of_losses),
            notifier,
            wake_ups: OnceLock::new(),
            wake: Notify::new(),
            lost: AtomicU64::new(0),
            losses,
            failovers,
            watched: WatchedLeases::default(),
            lingering: Mutex::default(),
            counted: Mutex::default(),
            failure: OnceLock::new(),
            closing: AtomicBool::new(false),
            metrics,
        })
    }

    /// Processes a report of the store. Held leases are verified as soon as possible.
    pub(super) fn reported(&self, report: HoldReport) {
        let queues = self.notifier.queues();
        match report {
            HoldReport::Moved => {
                self.decline(queues.end_all_lingering());
                self.failovers.moved();
            }
            HoldReport::Changed(keys) => {
                self.decline(match &keys {
                    ChangedKeys::Any => queues.end_all_lingering(),
                    ChangedKeys::These(keys) => queues.end_lingering(keys),
                });
                self.watched.report(keys);
            }
            HoldReport::Wanted(keys) => {
                return self.decline(keys.iter().filter_map(|key| queues.wanted(key)));
            }
        }
        self.wake.notify_one();
    }

    /// Frees locks that must not linger any more.
    fn decline(&self, locks: impl IntoIterator<Item = Handoff>) {
        for lock in locks {
            self.notifier.send(Notice::Declined(lock));
        }
    }

    /// Asks the store to report when other processes begin to wait for the keys of leases that
    /// linger. If others wait already, the leases linger no longer.
    pub(super) fn watch_lingering(self: &Arc<Self>) {
        let leases = std::mem::take(&mut *lock(&self.lingering));
        for lease in leases {
            let shared = Arc::clone(self);
            spawn_task(async move {
                let store = Arc::clone(lease.store());
                let queues = shared.notifier.queues();
                match store.watch_waiters(lease.locked().resource()).await {
                    Ok(true) => shared.decline(queues.wanted(lease.key())),
                    Ok(false) => {}
                    Err(_) => queues.unwatched(lease.key()),
                }
            });
        }
    }

    /// Requests the number of claims that wait for the keys of some leases.
    pub(super) fn count_waiters(&self) {
        for lease in std::mem::take(&mut *lock(&self.counted)) {
            spawn_task(async move {
                let resource = lease.locked().resource();
                let count = lease.store().count_waiters(resource, Lane::Background).await;
                lease.waiters_counted(count.ok());
            });
        }
    }

    /// Makes a request due for each held lease whose key has changed. The answers tell which leases
    /// are lost.
    pub(super) fn verify_changed(&self) {
        let now = BootInstant::now();
        for (lease, at) in self.watched.take(now) {
            if let Some(due) = self.schedule.verify_by(&lease, at) {
                self.watched.verified_at(&lease, due);
            }
        }
    }

    /// Makes a request for each held lease due if the data has moved. The answers tell which leases
    /// are lost.
    pub(super) fn verify_if_moved(&self) {
        if self.failovers.take() && Safeguard::HoldsAreVerified.is_on() {
            self.schedule.verify_all(BootInstant::now());
        }
    }

    /// Verifies a lease at once whose latest answer was that of a server which no longer counts.
    /// Returns whether the background thread has to be woken; `None` if the answer counts.
    pub(super) fn verify_if_unverified(&self, lease: &Arc<Lease>) -> Option<bool> {
        let is_wanted = self.failovers.is_after(|| lease.confirmed()) && lease.verify();
        is_wanted.then(|| self.schedule.retry(lease, Duration::ZERO))
    }

    /// Schedules the next renewal of a lease whose deadline or term has changed. Returns whether the
    /// background thread has to be woken.
    pub(super) fn reschedule(&self, lease: &Arc<Lease>) -> bool {
        let verified = self.verify_if_unverified(lease);
        verified.unwrap_or_else(|| self.schedule.reschedule(lease))
    }

    /// The reason of a loss that an answer of the store has shown: a failover if the data has moved
    /// since the lease was last confirmed.
    pub(super) fn reason(&self, lease: &Lease, answer: LostReason) -> LostReason {
        self.failovers.reason(|| lease.confirmed(), answer)
    }
}

/// The time until the deadline of a lease, for the log.
pub(super) fn remaining(lease: &Lease) -> std::time::Duration {
    lease.deadline().since(BootInstant::now())
}
