//! The requests that acquire locks.

use redis::{Cmd, Value};

use super::store::RedisStore;
use crate::connections::admission::RequestClass;
use crate::connections::connection::RequestOptions;
use crate::connections::route::Route;
use crate::scripts::decode::{self, AcquireReply};
use crate::scripts::dialect::milliseconds;
use crate::scripts::queue::{self, EntryRest};
use lock_core::permits::Permits;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::{
    Acquired, Claim, Extension, Grant, Lane, LockStore, Mode, SendTrace, SetAcquired, SetClaim,
    StoreError,
};
use lock_core::telemetry::requests::StoreOperation;
use lock_core::timeout::RequestTimeout;

impl RedisStore {
    pub(crate) fn acquire(
        &self,
        claim: Claim<'_>,
        timeout: RequestTimeout,
        trace: &SendTrace,
    ) -> impl Future<Output = Result<Acquired, StoreError>> {
        let is_acknowledged =
            !claim.acknowledged_by.is_none() && Safeguard::GrantsAreAcknowledged.is_on();
        self.shared.presence.covers(claim.term);
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

    /// For a request that acquires locks.
    pub(crate) fn acquire_options<'a>(
        &'a self,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> RequestOptions<'a> {
        let measured = Some(self.shared.measured(StoreOperation::Acquire));
        let options = RequestOptions::new(RequestClass::Acquires, timeout).traced(trace);
        RequestOptions { measured, ..options }
    }

    pub(crate) fn claim<'a>(
        &'a self,
        route: &'a Route,
        claim: &'a Claim<'_>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> impl Future<Output = Result<Acquired, StoreError>> {
        let options = self.acquire_options(timeout, trace);
        async move {
            let reply = match self.dialect.take {
                // Cheaper for the server than a script, and enough for most locks.
                Some(take) if claim.fresh => {
                    route
                        .send(
                            claim.resource.key,
                            &take(claim, &self.shared.id),
                            &options,
                            decode::taken,
                        )
                        .await?
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
                    expected: self.dialect.layout.value(),
                    found,
                }),
            }
        }
    }

    /// Acquires several locks of one slot, or none of them.
    pub(crate) async fn acquire_all(
        &self,
        claim: SetClaim<'_>,
        timeout: RequestTimeout,
        trace: &SendTrace,
    ) -> Result<SetAcquired, StoreError> {
        let (Some(script), [first, ..]) = (&self.dialect.acquire_all, claim.keys) else {
            return Err(Extension::SeveralKeys.lacking(&self.shown()));
        };
        self.shared.presence.covers(claim.term);
        let route = self.shared.route(Lane::Caller)?;
        let args = |call: &mut Cmd| {
            self.add_keys(call, claim.keys.iter().copied());
            call.arg(self.dialect.owner(claim.owner, &self.shared.id));
            call.arg(milliseconds(claim.term));
            for key in claim.keys.iter().filter(|_| self.shared.servers.is_cluster()) {
                call.arg(queue::name(key));
            }
        };
        let options = self.acquire_options(timeout, trace);
        let decode = |reply: &Value| decode::acquired_all(reply, claim.keys.len());
        Ok(match route.run((first, script), &args, &options, decode).await?.value {
            None => SetAcquired::Granted,
            Some(busy) => SetAcquired::Busy(busy),
        })
    }

    fn claim_by_script(
        &self,
        route: &Route,
        claim: &Claim<'_>,
        options: &RequestOptions<'_>,
    ) -> impl Future<Output = Result<AcquireReply, StoreError>> {
        let script = self.dialect.acquire(self.shared.servers.publish());
        async move {
            if let Mode::Permits(permits) = claim.resource.mode {
                // Boxed, to keep the future of other requests small.
                return Box::pin(self.claim_permits(route, (claim, permits), options)).await;
            }
            let key = claim.resource.key;
            let args = |call: &mut Cmd| self.add_claim(call, claim);
            Ok(route.run((key, script), &args, options, decode::acquired).await?.value)
        }
    }

    /// The same for permits. The reply may name another limit.
    async fn claim_permits(
        &self,
        route: &Route,
        (claim, permits): (&Claim<'_>, Permits),
        options: &RequestOptions<'_>,
    ) -> Result<AcquireReply, StoreError> {
        let script = self.dialect.acquire(self.shared.servers.publish());
        let key = claim.resource.key;
        let args = |call: &mut Cmd| self.add_claim(call, claim);
        let (reply, other) = route.run((key, script), &args, options, decode::claimed).await?.value;
        if let Some(other) = other {
            self.shared.limits.found(key, permits.limit(), other);
        }
        Ok(reply)
    }

    /// Adds the keys and the arguments of a claim.
    fn add_claim(&self, call: &mut Cmd, claim: &Claim<'_>) {
        let (key, client) = (claim.resource.key, &self.shared.id);
        self.add_keys(call, [key].into_iter());
        call.arg(self.dialect.owner(claim.owner, client)).arg(milliseconds(claim.term));
        if self.dialect.queues {
            for queueing in [claim.queueing, claim.queued_before] {
                call.arg(EntryRest::new(client, queueing, (claim.resource.mode, claim.term)));
            }
            call.arg(self.undeclared_queue(key)).arg(&*self.channels(key));
            if self.dialect.has_modes() {
                call.arg(claim.resource.mode.to_string());
            }
        }
    }
}
