//! Requests that count only if replicas acknowledge them.
//!
//! In a cluster, another node than expected answers a request whose slot is being moved. The
//! request is then sent once more, as soon as the acknowledgement by the replicas of that node is
//! prepared. An owner gets its lock again, so this changes nothing.

use std::collections::HashMap;
use std::num::NonZeroU64;

use tokio::time::Instant;

use super::store::RedisStore;
use crate::connections::replicas::{Acknowledgement, KeyReplicas};
use crate::connections::request::BatchAnswers;
use crate::connections::route::Route;
use lock_core::join::join_all;
use lock_core::replicas::RequiredReplicas;
use lock_core::store::contract::{Acquired, Claim, Renewal, Renewed, SendTrace, StoreError};
use lock_core::timeout::RequestTimeout;

impl RedisStore {
    /// Acquires a lock that counts only if replicas have it.
    pub(crate) async fn acquire_acknowledged(
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
        let mut acquired = self.claim(route, &claim, rest(), trace).await?;
        let is_moved = acknowledgement.check_carrier(trace.connection()).is_err();
        if acquired.is_grant() && is_moved {
            let moved = self.prepare_moved(route, required, trace.connection());
            acknowledgement = moved.await?;
            let again = Claim { fresh: false, ..claim };
            acquired = self.claim(route, &again, rest(), trace).await.map_err(sent)?;
        }
        if acquired.is_grant() {
            acknowledgement.check_carrier(trace.connection())?;
            acknowledgement.given(left()).await?;
        }
        Ok(acquired)
    }

    /// Renews leases that count only if replicas have them. One acknowledgement is enough for all
    /// of them. Without replicas, the requests are sent as well, because they find lost locks.
    pub(crate) async fn renew_acknowledged(
        &self,
        route: &Route,
        batch: &[Renewal<'_>],
        replicas: RequiredReplicas,
    ) -> Vec<Result<Renewed, StoreError>> {
        let Some(first) = batch.first() else { return Vec::new() };
        let within = self.shared.response_timeout;
        let required = KeyReplicas { key: first.resource.key, replicas };
        let prepared = self.shared.acknowledgers.prepare(route, required, within).await;
        let BatchAnswers { mut answers, carriers, .. } =
            self.send_renewals(route, batch, true).await;
        let acknowledgement = match prepared {
            Ok(acknowledgement) => acknowledgement,
            Err(error) => {
                for answer in &mut answers {
                    if *answer == Ok(Renewed::Extended) {
                        *answer = Err(sent(error.clone()));
                    }
                }
                return answers;
            }
        };
        let is_extended = |lock: &usize| answers[*lock] == Ok(Renewed::Extended);
        let (expected, moved): (Vec<usize>, Vec<usize>) = (0..batch.len())
            .filter(is_extended)
            .partition(|lock| acknowledgement.check_carrier(carriers[*lock]).is_ok());
        if !expected.is_empty()
            && let Err(error) = acknowledgement.given(within).await
        {
            for lock in expected {
                answers[lock] = Err(error.clone());
            }
        }
        let mut by_carrier: HashMap<_, Vec<usize>> = HashMap::new();
        for lock in moved {
            by_carrier.entry(carriers[lock]).or_default().push(lock);
        }
        let again = by_carrier.into_iter().map(|(carrier, locks)| async move {
            let renewals: Vec<_> = locks.iter().map(|lock| batch[*lock]).collect();
            let renewed = self.renew_moved(route, (&renewals, replicas), carrier).await;
            locks.into_iter().zip(renewed)
        });
        for (lock, answer) in join_all(again).await.into_iter().flatten() {
            answers[lock] = answer;
        }
        answers
    }

    /// Renews leases once more whose slots are being moved. The same connection has carried their
    /// renewals.
    async fn renew_moved(
        &self,
        route: &Route,
        (batch, replicas): (&[Renewal<'_>], RequiredReplicas),
        carrier: Option<NonZeroU64>,
    ) -> Vec<Result<Renewed, StoreError>> {
        let required = KeyReplicas { key: batch[0].resource.key, replicas };
        let acknowledgement = match self.prepare_moved(route, required, carrier).await {
            Ok(acknowledgement) => acknowledgement,
            Err(error) => return batch.iter().map(|_| Err(error.clone())).collect(),
        };
        let BatchAnswers { answers, carriers, .. } = self.send_renewals(route, batch, true).await;
        let given = if answers.contains(&Ok(Renewed::Extended)) {
            acknowledgement.given(self.shared.response_timeout).await
        } else {
            Ok(())
        };
        let result = |(answer, carrier): (Result<Renewed, StoreError>, Option<NonZeroU64>)| {
            let renewed = answer.map_err(sent)?;
            if renewed == Renewed::Extended {
                acknowledgement.check_carrier(carrier)?;
                given.clone()?;
            }
            Ok(renewed)
        };
        answers.into_iter().zip(carriers).map(result).collect()
    }

    /// Prepares the acknowledgement by the replicas of the node that has answered a request.
    pub(crate) async fn prepare_moved(
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
        acknowledgers.prepare_at(route, &server, required, within).await.map_err(sent)
    }
}

/// An error after a first request, which may have taken effect.
pub(crate) fn sent(error: StoreError) -> StoreError {
    match error {
        StoreError::Refused(cause) | StoreError::Unknown(cause) => StoreError::Unknown(cause),
        other => StoreError::Unknown(other.to_string()),
    }
}
