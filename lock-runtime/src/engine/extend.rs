//! Extending a hold on behalf of a nested call.

use std::time::Duration;

use super::core::Engine;
use super::handoff::Hold;
use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::store::contract::{Lane, Renewed};

impl Engine {
    /// Extends a fixed lease to `term` from now. Without a `term`, the store keeps the key for
    /// `min_hold`, which does not extend the deadline of the holder. Costs one round trip.
    pub(crate) async fn extend(
        &self,
        hold: &Hold,
        term: Option<Duration>,
        min_hold: Duration,
    ) -> Result<(), LockError> {
        let (sent, lease) = (BootInstant::now(), hold.lease());
        if !lease.store().capabilities().renews_to_any_length {
            let problem = "the store cannot extend a lease to another length than it was granted \
                           for; let the outer call acquire the longest lease";
            return Err(LockError::Config { option: "lease", problem: problem.into() });
        }
        if let Some(asked) = hold.about_to_extend(sent, term, min_hold) {
            let renewal = [lease.renewal(asked)];
            let answer = lease.store().renew(&renewal, Lane::Caller).await.into_iter().next();
            match answer {
                Some(Ok(Renewed::Extended)) => {
                    hold.keep_for(sent, min_hold);
                    if let Some(term) = term {
                        hold.extended(sent, term);
                        self.background().reschedule(lease);
                    }
                }
                Some(Ok(Renewed::Gone)) => self.background().lose(lease, LostReason::Gone),
                Some(Ok(Renewed::Taken)) => self.background().lose(lease, LostReason::Taken),
                failed => {
                    let cause = match failed {
                        Some(Err(error)) => error.to_string(),
                        _ => "the store did not answer".into(),
                    };
                    return Err(LockError::Unavailable {
                        key: Some(lease.key().as_ref().to_owned()),
                        waited: BootInstant::now().since(sent),
                        cause,
                    });
                }
            }
        }
        hold.loss().map_or(Ok(()), Err)
    }
}
