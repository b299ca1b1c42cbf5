//! Sending a batch of cleanups, and processing its answers.

use std::num::NonZeroU64;
use std::sync::Arc;

use tracing::Level;

use super::queue::{
    BATCHES_PER_LANE, CleanupReason, Cleanups, LaneQueue, PAUSES, Pending, Step, log_loss,
};
use crate::clock::BootInstant;
use crate::engine::background::notifier::{Notice, Notifier};
use crate::engine::batching::BATCH;
use crate::events;
use crate::store::contract::{Lane, LockStore, Place, Release, Released, StoreError};
use crate::sync::atomic::Ordering;
use crate::telemetry::SiteMetrics;
use crate::timeout::LONGEST_DELAY;

/// Cleanups of one lane, store and place that one request carries.
pub(crate) struct Batch {
    lane: Lane,
    store: Arc<dyn LockStore>,
    place: Place,
    pending: Vec<Pending>,
}

impl Batch {
    pub(super) fn new(queue: &LaneQueue, pending: Vec<Pending>) -> Self {
        let LaneQueue { lane, place, .. } = *queue;
        Self { lane, store: Arc::clone(&queue.store), place, pending }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    #[cfg(test)]
    pub(super) fn lane(&self) -> Lane {
        self.lane
    }

    /// Whether the store answers immediately, and wakes waiters during the request.
    pub(crate) fn is_immediate(&self) -> bool {
        self.store.is_immediate()
    }

    /// Sends the batch, and plans the next step of each cleanup. Runs on one of the background
    /// runtimes.
    pub(crate) async fn send(self, cleanups: &Cleanups) {
        // However this future ends, no cleanup is forgotten.
        let mut unplanned = UnplannedBatch { cleanups, batch: self };
        let (store, sent) = (Arc::clone(&unplanned.batch.store), BootInstant::now());
        let answered = {
            let requests: Vec<Release<'_>> =
                unplanned.batch.pending.iter().map(|one| one.request(sent)).collect();
            store.release_all(&requests, unplanned.batch.lane).await
        };
        let pending = std::mem::take(&mut unplanned.batch.pending);
        let mut answers = answered.answers.into_iter();
        for mut one in pending {
            let missing = || Err(StoreError::Unknown("fewer answers than releases".into()));
            let answer = answers.next().unwrap_or_else(missing);
            if one.lane == Lane::Background {
                one.give_back_permit(&answer, &cleanups.notifier);
            }
            one.report(&answer, sent, cleanups);
            cleanups.plan(one, answer.is_ok(), answered.connection);
        }
    }
}

impl Cleanups {
    /// The next batch that can be sent.
    pub(crate) fn next(&self, now: BootInstant) -> Option<Batch> {
        let (mut over, mut batch) = (Vec::new(), None);
        {
            let mut queues = self.lock();
            while let Some(first) = queues.later.first_entry()
                && first.key().0 <= now
            {
                let pending = first.remove();
                queues.push(pending);
            }
            for queue in &mut queues.ready {
                let mut taken: Vec<Pending> = Vec::new();
                while taken.len() < BATCH && queue.in_flight < BATCHES_PER_LANE {
                    let Some(pending) = queue.pending.pop_front() else { break };
                    if pending.is_over(now) {
                        over.push(pending);
                    } else {
                        taken.push(pending);
                    }
                }
                if queue.pending.capacity() > BATCH.max(queue.pending.len() * 8) {
                    queue.pending.shrink_to(queue.pending.len() * 2);
                }
                if !taken.is_empty() {
                    queue.in_flight += 1;
                    batch = Some(Batch::new(queue, taken));
                    break;
                }
            }
        }
        // These keys have expired.
        for pending in over {
            self.end(pending);
        }
        batch
    }

    fn plan(&self, mut pending: Pending, answered: bool, connection: Option<NonZeroU64>) {
        let now = BootInstant::now();
        let is_same = |before: Option<NonZeroU64>| before.is_some() && before == connection;
        let pause = match (pending.step, answered) {
            (Step::Last, true) => return self.end(pending),
            (Step::After(before), true) if is_same(before) => return self.end(pending),
            (Step::First | Step::After(_), true) | (Step::After(_), false) => {
                // By that time, the order on the original lane is irrelevant.
                (pending.step, pending.lane) = (Step::Last, Lane::Background);
                PAUSES.1
            }
            (Step::Last | Step::First, false) => pending.backoff.pause(),
        };
        let left = pending.cleanup.gone_by.since(now);
        if left.is_zero() {
            return self.end(pending);
        }
        self.lock().push_later(now.after(pause.min(left)), pending);
    }

    /// Records that a batch is no longer in flight.
    fn landed(&self, batch: &Batch) {
        let mut queues = self.lock();
        let queue = queues.queue(batch.lane, &batch.store, batch.place);
        queue.in_flight = queue.in_flight.saturating_sub(1);
    }
}

/// A batch in flight. Cleanups that are still in it when it is dropped are repeated.
struct UnplannedBatch<'a> {
    cleanups: &'a Cleanups,
    batch: Batch,
}

impl Drop for UnplannedBatch<'_> {
    fn drop(&mut self) {
        self.cleanups.landed(&self.batch);
        for mut pending in self.batch.pending.drain(..) {
            let unknown = Err(StoreError::Unknown(String::new()));
            pending.give_back_permit(&unknown, &self.cleanups.notifier);
            self.cleanups.plan(pending, false, None);
        }
    }
}

impl Pending {
    fn request(&self, now: BootInstant) -> Release<'_> {
        let keep = self.cleanup.kept_until.since(now);
        self.cleanup.locked.release(keep, self.cleanup.leaves_gap)
    }

    /// Whether the key has expired, so that no request is needed. The first release of a hold is
    /// always sent, because its number is limited by the number of holds.
    pub(super) fn is_over(&self, now: BootInstant) -> bool {
        let is_repeated = self.failures > 0 || self.cleanup.reason != CleanupReason::Released;
        is_repeated && self.cleanup.gone_by.after(LONGEST_DELAY) <= now
    }

    fn give_back_permit(&mut self, answer: &Result<Released, StoreError>, notifier: &Notifier) {
        let Some(mut permit) = self.cleanup.permit.take() else { return };
        if let Ok(Released::Freed { woken }) = answer {
            permit.released(*woken);
        }
        notifier.send(Notice::Permit(permit));
    }

    /// Logs failures, recoveries and losses, and counts a loss.
    fn report(
        &mut self,
        answer: &Result<Released, StoreError>,
        sent: BootInstant,
        cleanups: &Cleanups,
    ) {
        let (key, failures) = (Arc::clone(&self.cleanup.locked.key), self.failures);
        let lost = answer.as_ref().ok().and_then(|released| released.loss());
        match (answer, lost) {
            (Ok(_), Some(reason)) if failures == 0 && sent < self.cleanup.valid_until => {
                let reason = cleanups.failovers.reason(|| self.cleanup.confirmed, reason);
                if let Some(site) = self.cleanup.site {
                    site.lost(reason);
                }
                let label = self.cleanup.site.map(SiteMetrics::label);
                cleanups.losses.add(&key, label, (reason, None));
                // Who sees the count finds the loss on record.
                cleanups.found_lost.fetch_add(1, Ordering::Release);
                log_loss(key, reason);
            }
            (Ok(_), _) if failures > 0 => events::emit(Level::INFO, move || {
                tracing::info!(key = &*key, failures, "background release works again");
            }),
            (Ok(_), _) => {}
            // Failures on the lane of the original request are common, and are not logged.
            (Err(_), _) if self.lane != Lane::Background => {}
            (Err(error), _) => {
                self.failures = failures.saturating_add(1);
                log_failure(key, error.clone(), self.failures);
            }
        }
        // The answer to a second attempt may only reflect the effect of the first one.
        self.cleanup.valid_until = BootInstant::PAST;
    }
}

fn log_failure(key: Arc<str>, error: StoreError, failures: u32) {
    match error {
        StoreError::Denied(cause) if failures == 1 => events::emit(Level::ERROR, move || {
            tracing::error!(
                key = &*key,
                %cause,
                "the store denied a release; retrying until the lease ends"
            );
        }),
        error if failures == 1 => events::emit(Level::WARN, move || {
            tracing::warn!(
                key = &*key,
                %error,
                "could not release in the background; retrying until the lease ends"
            );
        }),
        error => events::emit(Level::DEBUG, move || {
            tracing::debug!(key = &*key, %error, failures, "could not release");
        }),
    }
}
