//! Fencing tokens: numbers that rise from holder to holder of a key.
//!
//! A lease cannot stop a write that is already on its way; the resource that is written to can,
//! if it refuses a token which is lower than the highest it has seen. (The idea is that of Lamport's
//! and Chubby's sequencers; the name is Kleppmann's,
//! <https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>.) Only the owner of
//! a key is given one, so every token of a hold is given before the next hold begins, and is lower
//! than any of that one's.
//!
//! Asked for by the holder, so that nobody else pays; once per hold, so that its writes do not
//! refuse each other.

use std::sync::Arc;

use super::Engine;
use super::backoff::Backoff;
use super::budget::Budget;
use super::contender::PAUSES;
use super::lease::{Hold, Lease};
use crate::error::{LockError, LostReason};
use crate::runtime;
use crate::store::{Fenced, StoreError};
use crate::sync::time;
use crate::wait::Wait;

impl Engine {
    /// The fencing token of a hold. Dropping the future loses nothing.
    pub(crate) async fn fencing_token(&self, hold: &Hold) -> Result<u64, LockError> {
        runtime::checked()?;
        // Who will not wait for a lock still gives the store the time for one answer.
        let budget = Budget::new(match self.config.wait {
            Wait::For(wait) => Wait::For(wait.max(self.config.response_timeout)),
            Wait::Forever => Wait::Forever,
        });
        let (lease, fence) = (hold.lease(), hold.fence());
        // What the store last said, for when the wait ends in the middle of a request.
        let mut refusal = None;
        // Several may ask, and then one does for all of them; each for no longer than it will wait.
        let asking = fence.get_or_try_init(|| self.ask_for_fence(hold, &budget, &mut refusal));
        let Some(token) = budget.limit(asking).await else {
            let cause =
                refusal.unwrap_or_else(|| "the store has given no fencing token yet".into());
            return Err(unavailable(lease, &budget, cause));
        };
        let token = token?;
        lease.loss().map_or(Ok(*token), Err)
    }

    async fn ask_for_fence(
        &self,
        hold: &Hold,
        budget: &Budget,
        refusal: &mut Option<String>,
    ) -> Result<u64, LockError> {
        let lease = hold.lease();
        tokio::select! {
            fence = self.ask_while_held(lease, budget, refusal) => fence,
            reason = hold.lost() => Err(lease.lost_to(reason)),
        }
    }

    async fn ask_while_held(
        &self,
        lease: &Arc<Lease>,
        budget: &Budget,
        refusal: &mut Option<String>,
    ) -> Result<u64, LockError> {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            if let Some(lost) = lease.loss() {
                return Err(lost);
            }
            let lost = match self.store.fence(lease.key(), lease.token()).await {
                Ok(Fenced::With(fence)) => return Ok(fence),
                Ok(Fenced::Gone) => LostReason::Gone,
                Ok(Fenced::Taken) => LostReason::Taken,
                Err(StoreError::Denied(cause)) => return Err(LockError::Denied { cause }),
                Err(StoreError::WrongFormat { key, expected, found }) => {
                    return Err(self.wrong_format(key, expected, found));
                }
                Err(StoreError::Refused(cause) | StoreError::Unknown(cause)) => {
                    let pause = backoff.pause();
                    if budget.ends_within(pause) {
                        return Err(unavailable(lease, budget, cause));
                    }
                    *refusal = Some(cause);
                    time::sleep(pause).await;
                    continue;
                }
            };
            self.keeper.lose(lease, lost);
            return Err(lease.lost_to(lost));
        }
    }
}

fn unavailable(lease: &Lease, budget: &Budget, cause: String) -> LockError {
    LockError::Unavailable { key: Some(lease.key().to_owned()), waited: budget.waited(), cause }
}
