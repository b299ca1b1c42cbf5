//! Giving the locks of a set their terms.
//!
//! A call that takes several locks one after the other renews those that it has while it waits for
//! the next one. A fixed lease, a `max_hold` and a `min_hold` begin for all of them when it has all.

use std::sync::Arc;

use super::core::Engine;
use super::handoff::Hold;
use super::lease::Terms;
use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::store::contract::{Lane, Renewal, Renewed, StoreError};

impl Engine {
    /// Gives these holds of one store their terms. Costs one round trip for each place.
    ///
    /// Cancel safe: a request without an answer has no effect on the deadlines.
    pub(crate) async fn settle(&self, holds: &[&Hold], terms: &Terms) -> Result<(), LockError> {
        let mut rest = holds.to_vec();
        while let Some(first) = rest.first() {
            let store = Arc::clone(first.lease().store());
            let place = store.place(first.key());
            let (here, elsewhere) =
                rest.into_iter().partition(|hold| store.place(hold.key()) == place);
            rest = elsewhere;
            self.settle_place(&here, terms).await?;
        }
        Ok(())
    }

    async fn settle_place(&self, holds: &[&Hold], terms: &Terms) -> Result<(), LockError> {
        let sent = BootInstant::now();
        let mut renewals = Vec::with_capacity(holds.len());
        for hold in holds {
            let asked = hold.about_to_extend(sent, Some(terms.term), terms.min_hold);
            let Some(term) = asked else { return Err(lost(hold)) };
            renewals.push(Renewal { term, ..hold.lease().renewal(term) });
        }
        let Some(first) = holds.first() else { return Ok(()) };
        let answers = first.lease().store().renew(&renewals, Lane::Caller).await;
        for (hold, answer) in holds.iter().zip(answers) {
            let reason = match answer {
                Ok(Renewed::Extended) if hold.settle(terms, sent) => {
                    self.background().reschedule(hold.lease());
                    continue;
                }
                Ok(Renewed::Extended) => return Err(lost(hold)),
                Ok(Renewed::Gone) => LostReason::Gone,
                Ok(Renewed::Taken) => LostReason::Taken,
                Err(error) => return Err(unavailable(hold, sent, &error)),
            };
            self.background().lose(hold.lease(), self.background().reason(hold.lease(), reason));
            return Err(lost(hold));
        }
        Ok(())
    }
}

/// The loss of a hold that has ended.
fn lost(hold: &Hold) -> LockError {
    hold.loss().unwrap_or_else(|| hold.lease().lost_to(LostReason::LeaseOver))
}

fn unavailable(hold: &Hold, sent: BootInstant, error: &StoreError) -> LockError {
    LockError::Unavailable {
        key: Some(hold.key().as_ref().to_owned()),
        waited: BootInstant::now().since(sent),
        cause: error.to_string(),
    }
}
