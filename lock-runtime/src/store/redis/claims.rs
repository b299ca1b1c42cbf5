//! The requests that acquire locks.

use redis::Cmd;

use super::admission::RequestClass;
use super::connection::RequestOptions;
use super::decode::{self, AcquireReply};
use super::dialect::milliseconds;
use super::handle::RedisStore;
use super::queue::EntryRest;
use super::route::Route;
use crate::safeguard::Safeguard;
use crate::store::contract::{Acquired, Claim, Grant, Lane, SendTrace, StoreError};
use crate::timeout::RequestTimeout;

impl RedisStore {
    pub(super) fn acquire(
        &self,
        claim: Claim<'_>,
        timeout: RequestTimeout,
        trace: &SendTrace,
    ) -> impl Future<Output = Result<Acquired, StoreError>> {
        let is_acknowledged =
            !claim.acknowledged_by.is_none() && Safeguard::GrantsAreAcknowledged.is_on();
        // A block, because the future of an async function has room for its arguments twice.
        async move {
            let route = self.shared.route(Lane::Caller)?;
            if is_acknowledged {
                // Boxed, to keep the future of other requests small.
                Box::pin(self.acquire_acknowledged(&route, claim, timeout, trace)).await
            } else {
                self.claim(&route, &claim, timeout, trace).await
            }
        }
    }

    pub(super) fn claim(
        &self,
        route: &Route,
        claim: &Claim<'_>,
        timeout: RequestTimeout,
        trace: &SendTrace,
    ) -> impl Future<Output = Result<Acquired, StoreError>> {
        let options = RequestOptions { class: RequestClass::Acquires, timeout, trace: Some(trace) };
        async move {
            let reply = match self.dialect.take {
                // Cheaper for the server than a script, and enough for most locks.
                Some(take) if claim.fresh => {
                    route.send(claim.resource.key, &take(claim), &options, decode::taken).await?
                }
                _ => self.claim_by_script(route, claim, &options).await?,
            };
            match reply {
                AcquireReply::Granted => Ok(Acquired::Granted(Grant::of(claim.term))),
                AcquireReply::Busy(left) => Ok(Acquired::Busy(left)),
                AcquireReply::Queued(queued) => Ok(Acquired::Queued(queued)),
                AcquireReply::Unqueued(left, cause) => {
                    self.shared.could_not_queue(&cause);
                    Ok(Acquired::Busy(left))
                }
                AcquireReply::WrongFormat(found) => Err(StoreError::WrongFormat {
                    key: claim.resource.key.to_owned(),
                    expected: self.dialect.layout,
                    found,
                }),
            }
        }
    }

    fn claim_by_script(
        &self,
        route: &Route,
        claim: &Claim<'_>,
        options: &RequestOptions<'_>,
    ) -> impl Future<Output = Result<AcquireReply, StoreError>> {
        let script = self.dialect.acquire(self.shared.servers.publish());
        async move {
            let key = claim.resource.key;
            let args = |call: &mut Cmd| self.add_claim(call, claim);
            Ok(route.run((key, script), &args, options, decode::acquired).await?.value)
        }
    }

    /// Adds the keys and the arguments of a claim.
    fn add_claim(&self, call: &mut Cmd, claim: &Claim<'_>) {
        let (key, client) = (claim.resource.key, &self.shared.id);
        self.add_keys(call, [key].into_iter());
        call.arg(self.dialect.owner(claim.owner, client)).arg(milliseconds(claim.term));
        if self.dialect.queues {
            for queueing in [claim.queueing, claim.queued_before] {
                call.arg(EntryRest::new(client, queueing, claim.term));
            }
            call.arg(self.undeclared_queue(key)).arg(&*self.channels(key));
        }
    }
}
