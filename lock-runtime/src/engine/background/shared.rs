//! The state that the background threads and the callers share, and the loss of a lease.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime;
use tracing::Level;

use super::cleanup::{Cleanup, Cleanups};
use super::failovers::Failovers;
use super::losses::RecentLosses;
use super::notifier::{Notice, Notifier};
use super::place_limit::Renewals;
use super::schedule::Schedule;
use super::watched::WatchedLeases;
use crate::clock::BootInstant;
use crate::engine::handoff::{Handoff, Lease};
use crate::engine::lease::Loss;
use crate::error::LostReason;
use crate::events;
use crate::safeguard::Safeguard;
use crate::store::contract::Lane;
use crate::store::hold_reports::{ChangedKeys, HoldReport};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, Notify, lock, spawn_task};
use crate::telemetry::ClientMetrics;
#[cfg(feature = "testing")]
use crate::telemetry::HoldEnd;

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

    /// Warns once of a hold that has become long.
    pub(super) fn warn_if_slow(&self, lease: &Lease) {
        if let Some(slow) = lease.slow_hold(BootInstant::now(), self.metrics.slow.hold) {
            slow.warn(lease.key());
        }
    }

    /// Ends a lease because it is lost.
    pub(super) fn lose(&self, lease: &Arc<Lease>, reason: LostReason) -> bool {
        let reason = self.reason(lease, reason);
        self.warn_if_slow(lease);
        let loss = lease.lose(reason, || self.cleanups.begin());
        let is_lost = loss.is_some();
        if let Some(loss) = loss {
            self.clean_up(lease, loss);
            self.cleanups.done();
        }
        is_lost
    }

    /// Ends a lease whose deadline has passed, and which is no longer scheduled. A lease that was
    /// extended since is scheduled again.
    pub(super) fn expire(&self, lease: &Arc<Lease>) {
        self.warn_if_slow(lease);
        if let Some(loss) = lease.expire(|| self.cleanups.begin()) {
            self.clean_up(lease, loss);
            self.cleanups.done();
        } else if self.schedule.add_again(lease) {
            self.wake.notify_one();
        }
    }

    /// Who sees the count finds the loss on record.
    pub(super) fn count_loss(&self, lease: &Lease, loss: (LostReason, Option<Duration>)) {
        self.losses.add(lease.key(), Some(lease.site().label()), loss);
        self.lost.fetch_add(1, Ordering::Release);
    }

    fn clean_up(&self, lease: &Arc<Lease>, loss: Loss) {
        let Loss { reason, held_for } = loss;
        if held_for.is_some() {
            self.count_loss(lease, (reason, held_for));
            #[cfg(feature = "testing")]
            if let Some(observer) = &self.metrics.observer {
                observer.ended(lease.key(), HoldEnd::Lost(reason));
            }
        }
        // Whoever is told finds the loss on record.
        self.notifier.send(Notice::Lost(Arc::clone(lease)));
        log_loss(lease, loss);
        if loss.leaves_the_key() {
            // The last holder frees the key. After a shutdown, the permit is not given back before
            // that.
            if reason == LostReason::ShutDown {
                self.schedule.remove(lease);
            } else if self.schedule.leave(lease) {
                self.wake.notify_one();
            }
            return;
        }
        self.schedule.remove(lease);
        // A key that may still have this owner is freed. If the key is gone or taken, only a late
        // request of the acquisition could give it this owner again. A late renewal could not.
        if !reason.is_over_in_store() || lease.locked().doubt.is_some() {
            self.cleanups.push(Cleanup::of(lease, None));
            self.wake.notify_one();
        }
        self.give_back_permit(lease);
    }

    pub(super) fn give_back_permit(&self, lease: &Lease) {
        if let Some(permit) = lease.take_permit() {
            self.notifier.send(Notice::Permit(permit));
        }
    }

    /// Ends all locks, because there are no more renewals.
    pub(super) fn fail(&self, cause: String) {
        let text = cause.clone();
        events::emit(Level::ERROR, move || {
            tracing::error!(cause = text, "locks are no longer available");
        });
        // Only the first cause is kept.
        let _ = self.failure.set(cause);
        for lease in self.schedule.held() {
            self.lose(&lease, LostReason::RenewalFailed);
            // No other part of the engine gives the permit back.
            self.give_back_permit(&lease);
        }
        drop(self.notifier.queues().end_all_lingering());
        // The keys expire with their leases. Their waiters get the failure.
        self.cleanups.clear();
    }
}

/// The time until the deadline of a lease, for the log.
pub(super) fn remaining(lease: &Lease) -> std::time::Duration {
    lease.deadline().since(BootInstant::now())
}

fn log_loss(lease: &Lease, Loss { reason, held_for }: Loss) {
    let (key, word) = (Arc::clone(lease.key()), reason.as_str());
    if held_for.is_some() {
        events::emit(Level::WARN, move || {
            tracing::warn!(key = &*key, reason = word, detail = %reason, "lock lost");
        });
    } else {
        events::emit(Level::DEBUG, move || {
            tracing::debug!(key = &*key, reason = word, "lock lost during a hand-off");
        });
    }
}
