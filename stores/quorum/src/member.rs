//! One of the stores of a quorum.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::membership::{Membership, VersionRule};
use super::residual_votes::ResidualVotes;
use super::round::{VoteRequest, within};
use lock_core::clock::BootInstant;
use lock_core::replicas::RequiredReplicas;
use lock_core::store::contract::{
    Acquired, Backend, Claim, LockStore, Mode, Queueing, Resource, SendTrace, StoreError,
};
use lock_core::store::owner::OwnerId;
use lock_core::sync::{Mutex, lock};
use lock_core::timeout::RequestTimeout;

/// How long the result of a check counts whether a store may vote.
const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How many connections of a store are remembered: one for each runtime and node is in use.
const MOST_CONNECTIONS: usize = 64;

/// One of the stores of a quorum.
pub(super) struct QuorumMember {
    number: usize,
    pub(super) backend: Arc<dyn Backend>,
    /// Its handle for votes.
    pub(super) store: Arc<dyn LockStore>,
    pub(super) residual_votes: Arc<ResidualVotes>,
    membership: Arc<Membership>,
    admission: Mutex<Admission>,
}

/// A claim that owns its key.
#[derive(Clone)]
pub(super) struct OwnedClaim {
    pub(super) key: Arc<str>,
    pub(super) owner: OwnerId,
    pub(super) term: Duration,
    pub(super) renewed: bool,
    pub(super) fresh: bool,
    pub(super) acknowledged_by: RequiredReplicas,
}

/// Whether a store may vote.
#[derive(Debug, Default)]
struct Admission {
    /// When that was last checked, and the result.
    latest: Option<(BootInstant, Result<(), StoreError>)>,
    /// Whether it has ever been admitted.
    has_been_admitted: bool,
    /// The connections after whose first votes it was admitted.
    connections: VecDeque<NonZeroU64>,
}

impl QuorumMember {
    pub(super) fn new(
        number: usize,
        (backend, store): (Arc<dyn Backend>, Arc<dyn LockStore>),
        membership: Arc<Membership>,
    ) -> Arc<Self> {
        let (residual_votes, admission) = (Arc::default(), Mutex::default());
        Arc::new(Self { number, backend, store, residual_votes, membership, admission })
    }

    /// Its number in the quorum.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// The address of the store.
    pub(super) fn name(&self) -> &str {
        &self.membership.names()[self.number]
    }

    /// Fails if the store may not vote. Costs a request until it may. Another server may have its address by now, so the
    /// check is repeated from time to time.
    pub(super) async fn admitted(self: &Arc<Self>) -> Result<(), StoreError> {
        match self.known_admission() {
            Some(known) => known,
            None => self.check(VersionRule::MayDiffer).await,
        }
    }

    /// The same, if it need not be checked before the next request.
    pub(super) fn known_admission(self: &Arc<Self>) -> Option<Result<(), StoreError>> {
        let (mut admission, now) = (lock(&self.admission), BootInstant::now());
        let (checked, outcome) = admission.latest.as_mut()?;
        if now.since(*checked) < CHECK_AGAIN_AFTER {
            return Some(outcome.clone());
        }
        if outcome.is_err() {
            return None;
        }
        // No claim waits for the check.
        *checked = now;
        let this = Arc::clone(self);
        tokio::spawn(async move { drop(this.check(VersionRule::MayDiffer).await) });
        Some(Ok(()))
    }

    /// Reads the profile of the store, and checks whether the store may vote.
    pub(super) async fn check(&self, versions: VersionRule) -> Result<(), StoreError> {
        let profile = self.backend.profile().await?;
        let outcome = self.membership.admit(self.number, profile, versions);
        let mut admission = lock(&self.admission);
        let before = admission.latest.take().map(|(_, outcome)| outcome);
        if let (Err(error), None | Some(Ok(()))) = (&outcome, before) {
            let (address, cause) = (self.name(), error.to_string());
            tracing::warn!(target: "lock_runtime::store::quorum", address, cause, "a server of the quorum must not vote");
        }
        admission.has_been_admitted |= outcome.is_ok();
        admission.latest = Some((BootInstant::now(), outcome.clone()));
        outcome
    }

    /// Sends a claim to the store, whose trace has its number.
    pub(super) fn claim(
        self: &Arc<Self>,
        claim: OwnedClaim,
        traces: &Arc<[SendTrace]>,
        limit: Duration,
    ) -> VoteRequest<Result<Acquired, StoreError>> {
        let (member, traces) = (Arc::clone(self), Arc::clone(traces));
        Box::pin(async move {
            match member.known_admission() {
                Some(known) => known?,
                None => {
                    let member = Arc::clone(&member);
                    within(limit, async move { member.admitted().await }).await?;
                }
            }
            let OwnedClaim { ref key, owner, term, renewed, fresh, acknowledged_by } = claim;
            let claim = Claim {
                resource: Resource { key, mode: Mode::Exclusive },
                owner,
                term,
                renewed,
                fresh,
                acknowledged_by,
                queueing: Queueing::None,
                queued_before: Queueing::None,
            };
            // The store keeps to the timeout by itself.
            let timeout = RequestTimeout::of(limit);
            let trace = &traces[member.number()];
            let answer = member.store.try_acquire(claim, timeout, trace).await?;
            let connection = trace.connection();
            if answer.is_grant() && !member.has_checked(connection) {
                within(limit, async move { member.has_voted_over(connection).await }).await?;
            }
            Ok(answer)
        })
    }

    /// Whether a vote over this connection was followed by a check.
    pub(super) fn has_checked(&self, connection: Option<NonZeroU64>) -> bool {
        connection.is_none_or(|it| lock(&self.admission).connections.contains(&it))
    }

    /// The store has voted over this connection. The first vote over each counts only if the store may vote: the address may
    /// lead to another server since the last check, to one that has a vote already.
    pub(super) async fn has_voted_over(
        &self,
        connection: Option<NonZeroU64>,
    ) -> Result<(), StoreError> {
        let Some(connection) = connection else { return Ok(()) };
        let checked = self.check(VersionRule::MayDiffer).await;
        let mut admission = lock(&self.admission);
        if let Err(error) = checked {
            admission.connections.clear();
            return Err(StoreError::Unknown(error.to_string()));
        }
        admission.connections.push_back(connection);
        if admission.connections.len() > MOST_CONNECTIONS {
            admission.connections.pop_front();
        }
        Ok(())
    }

    /// Whether the store may have votes for this client.
    pub(super) fn may_have_votes(&self) -> bool {
        lock(&self.admission).has_been_admitted
    }

    /// A request about votes, which is not sent to a store that has none.
    pub(super) fn if_voting<T: Send + Unpin + 'static>(
        &self,
        request: VoteRequest<Result<T, StoreError>>,
    ) -> VoteRequest<Result<T, StoreError>> {
        if self.may_have_votes() {
            return request;
        }
        let refusal = StoreError::Refused("the server has had no vote yet".to_owned());
        Box::pin(async move { Err(refusal) })
    }
}
