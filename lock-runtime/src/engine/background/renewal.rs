//! The renewal of leases, in batches.
//!
//! A batch contains leases of one handle and one place of a store, which the same replicas have to
//! acknowledge. The batches of each place are limited separately, so that a place that does not
//! answer delays no other place. Each lease in a batch is answered separately.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tracing::Level;

use super::schedule::retry_pause;
use super::shared::{BackgroundState, remaining};
use crate::clock::BootInstant;
use crate::engine::batching::BATCH;
use crate::engine::handoff::Lease;
use crate::error::LostReason;
use crate::events;
use crate::replicas::RequiredReplicas;
use crate::store::contract::{Lane, Place, Renewed, StoreError, is_same};
use crate::sync::spawn_task;
use crate::telemetry::RenewalOutcome;

/// Starts renewing these leases.
pub(super) fn start(shared: &Arc<BackgroundState>, leases: Vec<Arc<Lease>>) {
    // Few. In the order of their leases and not of their addresses, so that a run of a simulation can be repeated.
    let mut stores = Vec::new();
    let mut key = |lease: &Arc<Lease>| {
        let store = lease.store();
        let known = stores.iter().position(|known| is_same(known, store));
        let index = known.unwrap_or_else(|| {
            stores.push(Arc::clone(store));
            stores.len() - 1
        });
        (index, store.place(lease.key()), lease.acknowledged_by())
    };
    let mut leases: Vec<_> = leases.into_iter().map(|lease| (key(&lease), lease)).collect();
    leases.sort_by_key(|(key, _)| *key);
    for of_one_place in leases.chunk_by(|(one, _), (next, _)| one == next) {
        for batch in of_one_place.chunks(BATCH) {
            let ((_, place, acknowledged_by), _) = batch[0];
            let batch = batch.iter().map(|(_, lease)| Arc::clone(lease)).collect();
            spawn_task(renew(Arc::clone(shared), (place, acknowledged_by), batch));
        }
    }
}

/// Renews leases of one store and place, and schedules the next renewal of each.
pub(super) async fn renew(
    shared: Arc<BackgroundState>,
    (place, acknowledged_by): (Place, RequiredReplicas),
    leases: Vec<Arc<Lease>>,
) {
    // However this future ends, each lease that has not been scheduled by then is retried.
    let mut unplanned = Unplanned { shared: &shared, leases };
    let Some(first) = unplanned.leases.first() else { return };
    let store = Arc::clone(first.store());
    let limit = shared.renewals.limit(&store, place, acknowledged_by);
    // The semaphore is never closed, so this cannot fail.
    let _permit = limit.acquire().await;
    let sent = BootInstant::now();
    let mut terms = Vec::with_capacity(unplanned.leases.len());
    // Leases that have ended are left out: no renewal may extend a key that is being released.
    unplanned.leases.retain(|lease| {
        let term = lease.about_to_renew(sent);
        terms.extend(term);
        term.is_some()
    });
    let renewals = unplanned.leases.iter().zip(terms);
    let batch: Vec<_> = renewals.map(|(lease, term)| lease.renewal(term)).collect();
    if batch.is_empty() {
        return;
    }
    if store.reports_changes() {
        // Before the request, because a report may come before the answer.
        for lease in &unplanned.leases {
            shared.watched.watch(lease);
        }
    }
    let answers = store.renew(&batch, Lane::Background).await;
    // From here on, the last lease in the vector belongs to the next answer.
    unplanned.leases.reverse();
    for answer in answers {
        let Some(lease) = unplanned.leases.pop() else { break };
        let planned = catch_unwind(AssertUnwindSafe(|| shared.renewed(&lease, sent, answer)));
        if planned.is_err() {
            unplanned.leases.insert(0, lease);
        }
    }
}

/// Leases that are being renewed, and have not been scheduled since.
struct Unplanned<'a> {
    shared: &'a BackgroundState,
    leases: Vec<Arc<Lease>>,
}

impl Drop for Unplanned<'_> {
    fn drop(&mut self) {
        for lease in &self.leases {
            let failures = lease.failed();
            self.shared.schedule.retry(lease, retry_pause(lease.term(), failures));
        }
        // The thread still sleeps until the previous entry.
        self.shared.wake.notify_one();
    }
}

impl BackgroundState {
    /// Processes the answer to a renewal that was sent at `sent`.
    pub(super) fn renewed(
        &self,
        lease: &Arc<Lease>,
        sent: BootInstant,
        answer: Result<Renewed, StoreError>,
    ) {
        match answer.map(|renewed| lease.meaning_of(renewed, sent)) {
            Ok(Renewed::Extended | Renewed::AsReader) => {
                self.metrics.renewals.ended(RenewalOutcome::Extended);
                if let Some((left, term)) = lease.slack() {
                    self.metrics.renewals.left(left, term);
                }
                self.warn_if_slow(lease);
                let failures = lease.extended(sent, None);
                if failures > 0 {
                    let key = Arc::clone(lease.key());
                    events::emit(Level::INFO, move || {
                        tracing::info!(key = &*key, failures, "renewal works again");
                    });
                }
                self.reschedule(lease);
            }
            Ok(Renewed::Gone) => {
                if self.lose(lease, LostReason::Gone) {
                    self.metrics.renewals.ended(RenewalOutcome::Gone);
                }
            }
            Ok(Renewed::Taken) | Err(StoreError::WrongFormat { .. }) => {
                if self.lose(lease, LostReason::Taken) {
                    self.metrics.renewals.ended(RenewalOutcome::Taken);
                }
            }
            Err(error) => {
                self.metrics.renewals.ended(RenewalOutcome::Failed);
                let failures = lease.failed();
                log_failure(lease, error, failures);
                self.schedule.retry(lease, retry_pause(lease.term(), failures));
            }
        }
    }
}

fn log_failure(lease: &Lease, error: StoreError, failures: u32) {
    let (key, left) = (Arc::clone(lease.key()), remaining(lease));
    if failures == 1 {
        events::emit(Level::WARN, move || {
            tracing::warn!(key = &*key, %error, ?left, "renewal failed; retrying");
        });
    } else {
        events::emit(Level::DEBUG, move || {
            tracing::debug!(key = &*key, %error, failures, ?left, "renewal failed");
        });
    }
}
