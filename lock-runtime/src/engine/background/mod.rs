//! The background threads of a client: renewals, deadlines and cleanups, independent of the
//! callers.
//!
//! One background thread per client renews the leases, on a runtime of its own. A body that blocks
//! its executor, or a caller's runtime that is overloaded or has ended, therefore loses no lock.
//! The thread sleeps until the next lease or cleanup is due. Its loop awaits nothing else: each
//! batch of renewals or cleanups is a separate task, so that a slow answer delays no other batch.
//!
//! This thread calls no user code. The [`notifier`] calls wakers on a thread of its own, and
//! [`events`](crate::events) emits log events on another one.

pub(crate) mod cleanup;
mod failovers;
mod loss;
pub(crate) mod loss_record;
mod notifier;
mod place_limit;
mod renewal;
mod schedule;
mod shared;
#[cfg(test)]
mod tests;
mod thread;
mod watched;

use std::sync::Arc;

use self::cleanup::Cleanup;
use self::loss_record::LossRecord;
use self::notifier::Notifier;
use self::shared::BackgroundState;
use super::handoff::{Lease, LocalQueues};
use crate::error::LostReason;
use crate::store::contract::Backend;
use crate::sync::atomic::Ordering;
use crate::sync::lock;
use crate::telemetry::ClientMetrics;

/// The handle to the background threads, which end after it is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    shared: Arc<BackgroundState>,
}

impl Background {
    /// Starts the threads. If the start fails, [`failure`](Self::failure) returns the cause.
    pub(crate) fn start(
        backend: &dyn Backend,
        queues: Arc<LocalQueues>,
        metrics: Arc<ClientMetrics>,
    ) -> Self {
        let shared = BackgroundState::new(Notifier::new(queues), metrics);
        if let Err(error) = thread::spawn(&shared, backend) {
            shared.fail(format!(
                "the background thread or its runtime could not be started: {error}"
            ));
        }
        Self { shared }
    }

    /// The reason why the background thread does not run; `None` if it runs.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// Renews a granted lease from now on.
    pub(crate) fn watch(&self, lease: &Arc<Lease>) {
        let wake = self.shared.schedule.add(lease);
        // The lease may have been granted just before the store's data moved.
        let verified = self.shared.verify_if_unverified(lease);
        if wake || verified == Some(true) {
            self.shared.wake.notify_one();
        }
    }

    /// Has the store asked whether others wait for the key of a lease that lingers, and to report it
    /// when they begin to.
    pub(crate) fn watch_waiters(&self, lease: &Arc<Lease>) {
        lock(&self.shared.lingering).push(Arc::clone(lease));
        self.shared.wake.notify_one();
    }

    /// Has the store asked how many claims wait for the key of a lease.
    pub(crate) fn count_waiters(&self, lease: &Arc<Lease>) {
        lock(&self.shared.counted).push(Arc::clone(lease));
        self.shared.wake.notify_one();
    }

    /// Stops renewing a lease that has ended, or that its caller is about to release.
    pub(crate) fn forget(&self, lease: &Arc<Lease>) {
        self.shared.schedule.remove(lease);
    }

    /// Schedules a lease anew, because its deadline or its term has changed.
    pub(crate) fn reschedule(&self, lease: &Arc<Lease>) {
        if self.shared.reschedule(lease) {
            self.shared.wake.notify_one();
        }
    }

    /// Ends a lease because it is lost. Returns whether it had not ended before.
    pub(crate) fn lose(&self, lease: &Arc<Lease>, reason: LostReason) -> bool {
        let is_lost = self.shared.lose(lease, reason);
        self.shared.wake.notify_one();
        is_lost
    }

    /// Frees a key in the background. Never blocks, on any thread.
    pub(crate) fn clean_up(&self, cleanup: Cleanup) {
        self.shared.cleanups.push(cleanup);
        // Checked after the push, so that a thread that fails meanwhile leaves nothing queued.
        if self.failure().is_some() {
            self.shared.cleanups.clear();
        }
        self.shared.wake.notify_one();
    }

    /// The reason of a loss that an answer of the store has shown: a failover if the store's data has
    /// moved to another server since the lease was last confirmed.
    pub(crate) fn reason(&self, lease: &Lease, answer: LostReason) -> LostReason {
        self.shared.reason(lease, answer)
    }

    /// Counts a lock whose loss only the release has noticed.
    pub(crate) fn found_lost(&self, lease: &Lease, reason: LostReason) {
        let held_for = Some(lease.age());
        self.shared.count_loss(lease, (reason, held_for));
    }

    /// The last losses, the latest first.
    pub(crate) fn losses(&self) -> Vec<LossRecord> {
        self.shared.losses.latest_first()
    }

    /// The number of locks that were lost while they were held.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Acquire) + self.shared.cleanups.found_lost()
    }

    /// All held leases.
    pub(crate) fn held(&self) -> Vec<Arc<Lease>> {
        self.shared.schedule.held()
    }

    /// The number of held leases.
    pub(crate) fn held_count(&self) -> usize {
        self.shared.schedule.len()
    }

    /// The number of cleanups that are queued or in flight.
    pub(crate) fn releasing(&self) -> usize {
        self.shared.cleanups.open()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake.notify_one();
        if self.failure().is_some() {
            self.shared.notifier.close();
        }
    }
}
