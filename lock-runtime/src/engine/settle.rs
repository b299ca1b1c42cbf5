//! Giving the locks of a set their terms.
//!
//! A call that takes several locks one after the other renews those that it has while it waits for
//! the next one, and they end if the call does not continue. A fixed lease, a `max_hold` and a
//! `min_hold` begin for all of them when the call has all.

use std::sync::Arc;

use super::batching::take_batch;
use super::core::Engine;
use super::handoff::Hold;
use super::lease::Terms;
use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::store::contract::{Lane, Renewal, Renewed};

impl Engine {
    /// Sets the leases of these holds of one store to the terms. The holds are still provisional. Costs
    /// one round trip for each place.
    ///
    /// Cancel safe: a request without an answer has no effect on the deadlines.
    pub(crate) async fn settle(&self, holds: &[Hold], terms: &Terms) -> Result<(), LockError> {
        let mut rest: Vec<&Hold> = holds.iter().collect();
        while let Some(first) = rest.first() {
            let store = Arc::clone(first.lease().store());
            let batch = take_batch(&mut rest, &*store, |hold| hold.key());
            self.settle_batch(&batch, terms).await?;
        }
        Ok(())
    }

    async fn settle_batch(&self, holds: &[&Hold], terms: &Terms) -> Result<(), LockError> {
        let Some(first) = holds.first() else { return Ok(()) };
        let sent = BootInstant::now();
        let mut renewals = Vec::with_capacity(holds.len());
        for hold in holds {
            let asked = hold.about_to_extend(sent, Some(terms.term), terms.min_hold);
            let Some(term) = asked else { return Err(ended(hold)) };
            renewals.push(Renewal { term, ..hold.lease().renewal(term) });
        }
        let answers = first.lease().store().renew(&renewals, Lane::Caller).await;
        for (hold, answer) in holds.iter().zip(answers) {
            let reason = match answer {
                Ok(Renewed::Extended) if hold.settle(terms, sent) => {
                    self.background().reschedule(hold.lease());
                    continue;
                }
                Ok(Renewed::Extended) => return Err(ended(hold)),
                Ok(Renewed::Gone) => LostReason::Gone,
                Ok(Renewed::Taken | Renewed::AsReader) => LostReason::Taken,
                Err(error) => return Err(error.about(hold.key())),
            };
            return Err(self.end_lost(hold, reason));
        }
        Ok(())
    }

    /// Gives a provisional hold its terms. It counts from `since`, or from its grant. False if it has
    /// ended. The current task is known as the holder from then on.
    pub(crate) fn claim(&self, hold: &Hold, terms: &Terms, since: Option<BootInstant>) -> bool {
        let is_held = hold.claim(terms, since);
        if is_held {
            self.background().reschedule(hold.lease());
            let position = hold.lease().with_permit(|permit| permit.position(0));
            if let Some(position) = position {
                position.granted();
            }
        }
        is_held
    }

    /// Ends a hold because the store has told that another owner has its key, or that it is gone.
    /// Returns the error.
    pub(crate) fn end_lost(&self, hold: &Hold, reason: LostReason) -> LockError {
        let lease = hold.lease();
        let reason = self.background().reason(lease, reason);
        self.background().lose(lease, reason);
        hold.loss().unwrap_or_else(|| lease.lost_to(reason))
    }

    /// Lets a provisional hold continue until this time.
    pub(crate) fn keep_provisional(&self, hold: &Hold, until: BootInstant) {
        if hold.limit(until) {
            self.background().reschedule(hold.lease());
        }
    }
}

/// The loss of a hold that has ended.
fn ended(hold: &Hold) -> LockError {
    hold.loss().unwrap_or_else(|| hold.lease().lost_to(LostReason::LeaseOver))
}
