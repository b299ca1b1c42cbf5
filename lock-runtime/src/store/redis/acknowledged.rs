//! Requests that count only if replicas acknowledge them.
//!
//! In a cluster, another node than expected answers a request whose slot is being moved. The
//! request is then sent once more, as soon as the acknowledgement by the replicas of that node is
//! prepared. An owner gets its lock again, so this changes nothing.

use std::num::NonZeroU64;

use tokio::time::Instant;

use super::handle::RedisStore;
use super::replicas::{Acknowledgement, KeyReplicas};
use super::request::BatchAnswers;
use super::route::Route;
use crate::replicas::RequiredReplicas;
use crate::store::contract::{Acquired, Claim, Renewal, Renewed, SendTrace, StoreError};
use crate::timeout::RequestTimeout;

impl RedisStore {
    /// Acquires a lock that counts only if replicas have it.
    pub(super) async fn acquire_acknowledged(
        &self,
        route: &Route,
        claim: Claim<'_>,
        timeout: RequestTimeout,
        trace: &SendTrace,
    ) -> Result<Acquired, StoreError> {
        let (started, RequestTimeout { answer, total }) = (Instant::now(), timeout);
        let left = || total.saturating_sub(started.elapsed());
        let rest = || RequestTimeout { answer: answer.min(left()), total: left() };
        let required = KeyReplicas { key: claim.resource.key, replicas: claim.acknowledged_by };
        let acknowledgers = &self.shared.acknowledgers;
        let mut acknowledgement = acknowledgers.prepare(route, required, answer).await?;
        let mut acquired = self.claim(route, claim, rest(), trace).await?;
        let is_moved = acknowledgement.check_carrier(trace.connection()).is_err();
        if acquired.is_grant() && is_moved {
            let moved = self.prepare_moved(route, required, trace.connection());
            acknowledgement = moved.await?;
            let again = Claim { fresh: false, ..claim };
            acquired =
                self.claim(route, again, rest(), trace).await.map_err(|error| unknown(&error))?;
        }
        if acquired.is_grant() {
            acknowledgement.check_carrier(trace.connection())?;
            acknowledgement.given(left()).await?;
        }
        Ok(acquired)
    }

    /// Renews leases that count only if replicas have them. One acknowledgement is enough for all
    /// of them.
    pub(super) async fn renew_acknowledged(
        &self,
        route: &Route,
        batch: &[Renewal<'_>],
        replicas: RequiredReplicas,
    ) -> Result<Vec<Result<Renewed, StoreError>>, StoreError> {
        let Some(first) = batch.first() else { return Ok(Vec::new()) };
        let within = self.shared.response_timeout;
        let acknowledgers = &self.shared.acknowledgers;
        let acknowledgement = acknowledgers
            .prepare(route, KeyReplicas { key: first.resource.key, replicas }, within)
            .await?;
        let BatchAnswers { answers, carriers, .. } = self.send_renewals(route, batch, true).await;
        let is_expected = |carrier| acknowledgement.check_carrier(carrier).is_ok();
        let is_renewed = |(answer, carrier): (&Result<_, _>, &Option<_>)| {
            *answer == Ok(Renewed::Extended) && is_expected(*carrier)
        };
        let given = if answers.iter().zip(&carriers).any(is_renewed) {
            acknowledgement.given(within).await
        } else {
            Ok(())
        };
        let (mut results, mut may_follow) = (Vec::with_capacity(batch.len()), true);
        for ((renewal, answer), carrier) in batch.iter().zip(answers).zip(carriers) {
            results.push(match answer {
                Ok(Renewed::Extended) if is_expected(carrier) => {
                    given.clone().map(|()| Renewed::Extended)
                }
                // One that fails does not delay the others any further.
                Ok(Renewed::Extended) if may_follow => {
                    let renewed = self.renew_moved(route, (renewal, replicas), carrier);
                    renewed.await.inspect_err(|_| may_follow = false)
                }
                Ok(Renewed::Extended) => {
                    acknowledgement.check_carrier(carrier).map(|()| Renewed::Extended)
                }
                answer => answer,
            });
        }
        Ok(results)
    }

    /// Renews a lease once more whose slot is being moved.
    async fn renew_moved(
        &self,
        route: &Route,
        (renewal, replicas): (&Renewal<'_>, RequiredReplicas),
        carrier: Option<NonZeroU64>,
    ) -> Result<Renewed, StoreError> {
        let required = KeyReplicas { key: renewal.resource.key, replicas };
        let acknowledgement = self.prepare_moved(route, required, carrier).await?;
        let again = self.send_renewals(route, std::slice::from_ref(renewal), true).await;
        let (answer, carrier) = (again.answers.into_iter().next(), again.carriers.first());
        let renewed = answer.unwrap_or_else(|| Err(StoreError::Unknown("no answer".into())));
        let renewed = renewed.map_err(|error| unknown(&error))?;
        if renewed == Renewed::Extended {
            acknowledgement.check_carrier(carrier.copied().flatten())?;
            acknowledgement.given(self.shared.response_timeout).await?;
        }
        Ok(renewed)
    }

    /// Prepares the acknowledgement by the replicas of the node that has answered a request.
    async fn prepare_moved(
        &self,
        route: &Route,
        required: KeyReplicas<'_>,
        carrier: Option<NonZeroU64>,
    ) -> Result<Acknowledgement, StoreError> {
        let within = self.shared.response_timeout;
        let server = route.carrier(carrier).ok_or_else(|| {
            let cause = "the connection has changed since the request was sent, so it is not known \
                         whether replicas have the lock";
            StoreError::Unknown(cause.into())
        })?;
        let acknowledgers = &self.shared.acknowledgers;
        acknowledgers
            .prepare_at(route, &server, required, within)
            .await
            .map_err(|error| unknown(&error))
    }
}

/// The first request may have taken effect.
fn unknown(error: &StoreError) -> StoreError {
    StoreError::Unknown(error.to_string())
}
