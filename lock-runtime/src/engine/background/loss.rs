//! The loss of a lease: who is told, what is recorded, and how the key is freed.

use std::sync::Arc;
use std::time::Duration;

use tracing::Level;

use super::cleanup::Cleanup;
use super::notifier::Notice;
use super::shared::BackgroundState;
use crate::clock::BootInstant;
use crate::engine::handoff::Lease;
use crate::engine::lease::Loss;
use crate::error::LostReason;
use crate::events;
use crate::sync::atomic::Ordering;
#[cfg(feature = "testing")]
use crate::telemetry::HoldEnd;

impl BackgroundState {
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
