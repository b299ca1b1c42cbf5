//! Extending a hold, for its holder or on behalf of a nested call.

use std::time::Duration;

use super::core::Engine;
use super::handoff::Hold;
use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::replicas::RequiredReplicas;
use crate::store::contract::{Lane, Renewed, StoreError};

/// How a hold is extended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseExtension {
    /// The new length of a fixed lease.
    pub(crate) term: Option<Duration>,
    pub(crate) min_hold: Duration,
    pub(crate) acknowledged_by: RequiredReplicas,
}

impl Engine {
    /// Extends a fixed lease to `term` from now. Without a `term`, the store keeps the key for
    /// `min_hold`, which does not extend the deadline of the holder. From now on, the replicas of
    /// `acknowledged_by` have to acknowledge the lease as well. Costs one round trip, and another
    /// one for their acknowledgement.
    pub(crate) async fn extend(
        &self,
        hold: &Hold,
        LeaseExtension { term, min_hold, acknowledged_by }: LeaseExtension,
    ) -> Result<(), LockError> {
        let (sent, lease) = (BootInstant::now(), hold.lease());
        if !lease.store().capabilities().renews_to_any_length {
            let problem = "the store cannot extend a lease to another length than it was granted \
                           for; acquire the lock with the longest lease that it needs";
            return Err(LockError::config("lease", problem));
        }
        if let Some(asked) = hold.about_to_extend(sent, term, min_hold) {
            let mut renewal = lease.renewal(asked);
            renewal.acknowledged_by = renewal.acknowledged_by.and(acknowledged_by);
            let renewal = [renewal];
            let answer = lease.store().renew(&renewal, Lane::Caller).await.into_iter().next();
            let answer = answer.map(|answer| answer.map(|it| lease.meaning_of(it, sent)));
            match answer {
                Some(Ok(Renewed::Extended | Renewed::AsReader)) => {
                    let is_new = hold.acknowledged(acknowledged_by, (sent, asked));
                    hold.keep_for(sent, min_hold);
                    if let Some(term) = term {
                        hold.extended(sent, term);
                    }
                    if is_new || term.is_some() {
                        self.background().reschedule(lease);
                    }
                }
                Some(Ok(Renewed::Gone)) => {
                    self.background().lose(lease, LostReason::Gone);
                }
                Some(Ok(Renewed::Taken) | Err(StoreError::WrongFormat { .. })) => {
                    self.background().lose(lease, LostReason::Taken);
                }
                failed => {
                    let error = failed.and_then(Result::err).unwrap_or_else(|| {
                        StoreError::Unknown("the store did not answer".to_owned())
                    });
                    let mut error = error.about(lease.key());
                    if let LockError::Unavailable { waited, .. } = &mut error {
                        *waited = BootInstant::now().since(sent);
                    }
                    return Err(error);
                }
            }
        }
        hold.loss().map_or(Ok(()), Err)
    }
}
