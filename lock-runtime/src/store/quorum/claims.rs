//! Acquiring a lock: a majority of the stores has to grant it, and otherwise it is undone at all of them.
//!
//! All stores are asked at the same time. Each has a short timeout, and none is waited for as soon as a majority
//! has decided. The lease counts from before the first request, by the rule that all stores have: the engine compares
//! it with the time of the answer.
//!
//! The undo of an attempt is armed before it is sent, and reaches each store behind the claim if both use the same
//! connection. Each attempt has an owner of its own, so a late undo cannot affect the next attempt.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::ballot::{ClaimBallot, ClaimVerdict};
use super::leftovers::{Leftover, LeftoverTicket};
use super::member::within;
use super::round::{VoteRequest, VoteRound};
use super::votes::QuorumStore;
use crate::backoff::between;
use crate::clock::BootInstant;
use crate::replicas::RequiredReplicas;
use crate::safeguard::Safeguard;
use crate::store::contract::{
    Acquired, Claim, Grant, Lane, Mode, Queueing, Release, ReleasedBatch, Resource, SendTrace,
    StoreError,
};
use crate::store::owner::OwnerId;
use crate::timeout::RequestTimeout;

/// The number of the only connection of a quorum, as its callers see it.
const CONNECTION: u64 = 1;

/// The longest pause after an attempt that has divided the votes with others, as a multiple of the time that the
/// attempt took, and its bounds. The attempts of others should fit into it.
const SPLIT_PAUSE: u32 = 10;
const SPLIT_PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// How long a store may need for a request that has already arrived.
const LATE: Duration = Duration::from_secs(5);

/// What each store is asked.
#[derive(Clone)]
struct Candidacy {
    key: Arc<str>,
    owner: OwnerId,
    term: Duration,
    renewed: bool,
    fresh: bool,
    acknowledged_by: RequiredReplicas,
}

/// What is known about the requests of an attempt that is undone.
struct Undoing {
    tickets: Vec<Option<LeftoverTicket>>,
    round: VoteRound<Result<ReleasedBatch, StoreError>>,
}

impl QuorumStore {
    pub(super) async fn claim(
        &self,
        claim: Claim<'_>,
        timeout: RequestTimeout,
        trace: &SendTrace,
    ) -> Result<Acquired, StoreError> {
        let (began, limit) = (Instant::now(), self.patience.min(timeout.total));
        let Claim { owner, term, renewed, fresh, acknowledged_by, .. } = claim;
        self.covers(term);
        let key = Arc::from(claim.resource.key);
        let candidacy = Candidacy { key, owner, term, renewed, fresh, acknowledged_by };
        let traces: Vec<Arc<SendTrace>> = self.members.iter().map(|_| Arc::default()).collect();
        let requests = (0..self.members.len())
            .map(|number| Some(self.ask(number, candidacy.clone(), &traces[number], limit)));
        let mut round = VoteRound::new(requests);
        // Before the first request is sent, because the lease counts from here.
        trace.sent(CONNECTION);
        let until = BootInstant::now().after(term + LATE);
        let mut ballot = ClaimBallot::new(self.members.len());
        while !ballot.is_decided()
            && let Some((number, answer)) = round.next().await
        {
            ballot.add(number, answer);
        }
        while let Some((number, answer)) = round.known() {
            ballot.add(number, answer);
        }
        let verdict = ballot.verdict();
        if verdict == ClaimVerdict::Granted && began.elapsed() < term {
            self.expect_late_answers(round, &ballot, (owner, until));
            return Ok(Acquired::Granted(Grant::of(term)));
        }
        // A request that was not sent yet must not be sent later.
        round.retain(|number| traces[number].connection().is_some());
        let is_split = ballot.is_split();
        if Safeguard::VotesAreUndone.is_on() {
            let undoing = self.undo(&candidacy, (&ballot, &round), until);
            round.finish_later(|_, _| {});
            self.await_undo(undoing, &ballot.granted, &traces).await;
        }
        match verdict {
            ClaimVerdict::Busy(left) if is_split => {
                // Those who have the other votes should not try again at the same time.
                let longest = began.elapsed() * SPLIT_PAUSE;
                let longest = longest.clamp(SPLIT_PAUSES.0, SPLIT_PAUSES.1).min(timeout.total / 4);
                sleep(between(Duration::ZERO, longest)).await;
                Ok(Acquired::Busy(left))
            }
            ClaimVerdict::Busy(left) => Ok(Acquired::Busy(left)),
            ClaimVerdict::TooFewAnswers => {
                Err(ballot.failures.into_error(self.electorate.names(), "answered the claim"))
            }
            ClaimVerdict::Granted => {
                let cause = format!("the servers have taken longer than the lease of {term:?}");
                Err(StoreError::Unknown(cause))
            }
        }
    }

    /// The request to one store.
    fn ask(
        &self,
        number: usize,
        candidacy: Candidacy,
        trace: &Arc<SendTrace>,
        limit: Duration,
    ) -> VoteRequest<Result<Acquired, StoreError>> {
        let (member, trace) = (Arc::clone(&self.members[number]), Arc::clone(trace));
        within(limit, async move {
            member.admitted().await?;
            let Candidacy { key, owner, term, renewed, fresh, acknowledged_by } = candidacy;
            let claim = Claim {
                resource: Resource { key: &key, mode: Mode::Exclusive },
                owner,
                term,
                renewed,
                fresh,
                acknowledged_by,
                queueing: Queueing::None,
                queued_before: Queueing::None,
            };
            member.store.try_acquire(claim, RequestTimeout::of(limit), &trace).await
        })
    }

    /// The lock was granted. A store that has not answered may grant it later, even after its release.
    fn expect_late_answers(
        &self,
        round: VoteRound<Result<Acquired, StoreError>>,
        ballot: &ClaimBallot,
        (owner, until): (OwnerId, BootInstant),
    ) {
        for (number, member) in self.members.iter().enumerate() {
            if round.awaits(number) || ballot.failures.may_have_run(number) {
                member.leftovers.claim_is_open(owner, until);
            }
        }
        let members: Vec<_> = self.members.iter().map(|it| Arc::clone(&it.leftovers)).collect();
        round.finish_later(move |number, answer| {
            if !answer.is_err_and(|error| error.may_have_run()) {
                members[number].close_claim(owner);
            }
        });
    }

    /// Begins to free a key at all stores that have granted it, or may do so.
    fn undo(
        &self,
        candidacy: &Candidacy,
        (ballot, round): (&ClaimBallot, &VoteRound<Result<Acquired, StoreError>>),
        until: BootInstant,
    ) -> Undoing {
        let due = BootInstant::now().after(self.patience);
        let mut tickets = Vec::with_capacity(self.members.len());
        let requests = self.members.iter().enumerate().map(|(number, member)| {
            let is_certain = ballot.granted.contains(&number);
            let may_have =
                is_certain || round.awaits(number) || ballot.failures.may_have_run(number);
            if !may_have {
                tickets.push(None);
                return None;
            }
            let (key, owner) = (Arc::clone(&candidacy.key), candidacy.owner);
            let kept_until = BootInstant::PAST;
            let leftover = Leftover { key: Arc::clone(&key), owner, kept_until, until, is_certain };
            tickets.push(member.leftovers.add(leftover, due));
            let store = Arc::clone(&member.store);
            Some(within(self.patience, async move {
                let resource = Resource { key: &key, mode: Mode::Exclusive };
                let (keep, queued, leaves_gap) = (Duration::ZERO, None, false);
                let release = [Release { resource, owner, keep, queued, leaves_gap }];
                Ok(store.release_all(&release, Lane::Caller).await)
            }))
        });
        let round = VoteRound::new(requests.collect::<Vec<_>>().into_iter());
        Undoing { tickets, round }
    }

    /// Waits until the stores have undone what they had granted. The others have to answer later.
    async fn await_undo(&self, undoing: Undoing, granted: &[usize], traces: &[Arc<SendTrace>]) {
        let Undoing { tickets, mut round } = undoing;
        // Whether a store is known to have undone the claim: the undo has come behind it.
        let is_behind = {
            let (granted, traces) = (granted.to_vec(), traces.to_vec());
            move |number: usize, batch: &ReleasedBatch| {
                let is_answered = batch.answers.iter().all(Result::is_ok);
                let claim = traces[number].connection();
                is_answered
                    && (granted.contains(&number) || claim.is_some() && claim == batch.connection)
            }
        };
        let mut open = granted.to_vec();
        while !open.is_empty()
            && let Some((number, answer)) = round.next().await
        {
            open.retain(|other| *other != number);
            if answer.is_ok_and(|batch| is_behind(number, &batch)) {
                self.members[number].leftovers.done(tickets[number]);
            }
        }
        let members: Vec<_> = self.members.iter().map(|it| Arc::clone(&it.leftovers)).collect();
        round.finish_later(move |number, answer| {
            if answer.is_ok_and(|batch| is_behind(number, &batch)) {
                members[number].done(tickets[number]);
            }
        });
    }
}
