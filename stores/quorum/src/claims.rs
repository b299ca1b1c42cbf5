//! Acquiring a lock: a majority of the stores has to grant it, and otherwise it is undone at all of them.
//!
//! The claim goes to all stores at the same time. Each has a short timeout, and the call ends as soon as a majority has
//! decided. The lease counts from before the first request, by the rule that all stores have: the engine compares it with
//! the time of the answer.
//!
//! Before an attempt is sent, its claims are registered as open at all stores. An answer closes the claim at its store.
//! A release or an undo that finds an open claim is repeated, because the claim may arrive after it, also if the call
//! was dropped; unless it turns out that one connection has carried both, and the claim was sent first, and once. Each
//! attempt has an owner of its own, so a late undo cannot affect the next attempt.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::member::OwnedClaim;
use super::residual_votes::{ResidualTicket, ResidualVote};
use super::round::{VoteRound, within};
use super::store::QuorumStore;
use super::tally::{ClaimDecision, ClaimTally};
use lock_core::backoff::between;
use lock_core::clock::BootInstant;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::{
    Acquired, Claim, Grant, Lane, Mode, Release, ReleasedBatch, Resource, SendTrace, StoreError,
};
use lock_core::store::owner::OwnerId;
use lock_core::sync::atomic::{AtomicBool, Ordering};
use lock_core::timeout::{LONGEST_DELAY, RequestTimeout};

/// The number of the only connection of a quorum, as its callers see it.
const CONNECTION: u64 = 1;

/// The longest pause after an attempt with a split vote, as a multiple of the time that the attempt took, and its
/// bounds. The attempts of other clients should fit into it.
const SPLIT_PAUSE: u32 = 10;
const SPLIT_PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// The requests that undo an attempt.
struct PendingUndo {
    /// For each store, what releases its vote if it does not answer the undo in time.
    tickets: Vec<Option<ResidualTicket>>,
    round: VoteRound<Result<ReleasedBatch, StoreError>>,
}

/// The claims of an attempt that is undone.
struct UndoneClaims {
    /// The stores that have granted them.
    granted: Vec<usize>,
    /// What has carried them.
    traces: Arc<[SendTrace]>,
    /// Whether a store has given a definite answer to its claim after the undo was sent.
    answered: Arc<[AtomicBool]>,
}

impl UndoneClaims {
    /// Whether a store is known to have undone its claim: it has served the undo after the claim. A claim without an
    /// answer may be sent again, also after its undo, such as one whose script the server does not have.
    fn are_undone_by(&self, number: usize, undo: &ReleasedBatch) -> bool {
        let claim = self.traces[number].only_connection();
        let is_in_order = claim.is_some() && claim == undo.connection;
        let is_answered = self.answered[number].load(Ordering::Acquire);
        undo.answers.iter().all(Result::is_ok)
            && (self.granted.contains(&number) || is_in_order && is_answered)
    }
}

impl QuorumStore {
    pub(super) async fn claim(
        &self,
        claim: Claim<'_>,
        timeout: RequestTimeout,
        trace: &SendTrace,
    ) -> Result<Acquired, StoreError> {
        let (began, limit) = (BootInstant::now(), self.server_timeout.min(timeout.total));
        let Claim { owner, term, renewed, fresh, acknowledged_by, .. } = claim;
        self.note_term(term);
        let key = Arc::from(claim.resource.key);
        let attempt = OwnedClaim { key, owner, term, renewed, fresh, acknowledged_by };
        let traces: Arc<[SendTrace]> = self.members.iter().map(|_| SendTrace::default()).collect();
        let requests = (0..self.members.len())
            .map(|number| Some(self.members[number].claim(attempt.clone(), &traces, limit)));
        let mut round = VoteRound::new(requests);
        let until = began.after(term + LONGEST_DELAY);
        for member in self.members.iter() {
            member.residual_votes.open_claim(owner, until);
        }
        // Before the first request is sent, because the lease counts from here.
        trace.sent(CONNECTION);
        let mut tally = ClaimTally::new(self.members.len());
        while !tally.is_decided()
            && let Some((number, answer)) = round.next().await
        {
            self.count_claim(&mut tally, owner, (number, answer));
        }
        while let Some((number, answer)) = round.known() {
            self.count_claim(&mut tally, owner, (number, answer));
        }
        let decision = tally.decision();
        let is_valid =
            BootInstant::now() < began.deadline_of(term) || !Safeguard::DeadlineFromSending.is_on();
        if decision == ClaimDecision::Granted && is_valid {
            self.expect_late_answers(round, owner, traces);
            return Ok(Acquired::Granted(Grant::of(term)));
        }
        // A request that was not sent yet must not be sent later.
        round.retain(|number| traces[number].connection().is_some());
        let is_split = tally.is_split();
        let undo = self.undo(&attempt, (&tally, &round), until);
        let answered: Arc<[AtomicBool]> =
            self.members.iter().map(|_| AtomicBool::new(false)).collect();
        let is_answered = Arc::clone(&answered);
        round.finish_later(move |number, answer| {
            let is_definite = !answer.is_err_and(|error| error.may_have_run());
            is_answered[number].store(is_definite, Ordering::Release);
        });
        let claims = UndoneClaims { granted: tally.granted.clone(), traces, answered };
        self.await_undo(undo, claims).await;
        match decision {
            ClaimDecision::Busy(left) if is_split => {
                // The clients with the other votes should not try again at the same time.
                let longest = BootInstant::now().since(began) * SPLIT_PAUSE;
                let longest = longest.clamp(SPLIT_PAUSES.0, SPLIT_PAUSES.1).min(timeout.total / 4);
                sleep(between(Duration::ZERO, longest)).await;
                Ok(Acquired::Busy(left))
            }
            ClaimDecision::Busy(left) => Ok(Acquired::Busy(left)),
            ClaimDecision::TooFewAnswers => {
                Err(tally.failures.into_error(self.membership.names(), "answered the claim"))
            }
            ClaimDecision::Granted => {
                let cause = format!("the servers have taken longer than the lease of {term:?}");
                Err(StoreError::Unknown(cause))
            }
        }
    }

    /// Counts the answer of a store. A definite one closes the claim there.
    fn count_claim(
        &self,
        tally: &mut ClaimTally,
        owner: OwnerId,
        (number, answer): (usize, Result<Acquired, StoreError>),
    ) {
        if !answer.as_ref().is_err_and(StoreError::may_have_run) {
            self.members[number].residual_votes.close_claim(owner);
        }
        tally.add(number, answer);
    }

    /// The lock was granted. A store that has not answered may grant it later, even after its release.
    fn expect_late_answers(
        &self,
        round: VoteRound<Result<Acquired, StoreError>>,
        owner: OwnerId,
        traces: Arc<[SendTrace]>,
    ) {
        for (number, member) in self.members.iter().enumerate() {
            // A claim that waits for a connection may be sent after the release.
            if round.awaits(number) && traces[number].connection().is_some() {
                member.residual_votes.set_claim_awaited(owner, true);
            }
        }
        let members = Arc::clone(&self.members);
        round.finish_later(move |number, answer| {
            let residual_votes = &members[number].residual_votes;
            if answer.is_err_and(|error| error.may_have_run()) {
                residual_votes.set_claim_awaited(owner, false);
            } else {
                residual_votes.close_awaited_claim(owner, traces[number].only_connection());
            }
        });
    }

    /// Begins to release a key at all stores that have granted it, or may do so.
    fn undo(
        &self,
        attempt: &OwnedClaim,
        (tally, round): (&ClaimTally, &VoteRound<Result<Acquired, StoreError>>),
        until: BootInstant,
    ) -> PendingUndo {
        let due = BootInstant::now().after(self.server_timeout);
        let mut tickets = Vec::with_capacity(self.members.len());
        let requests = self.members.iter().enumerate().map(|(number, member)| {
            // From now on, its vote is a residual one.
            member.residual_votes.close_claim(attempt.owner);
            let is_granted = tally.granted.contains(&number);
            let may_have =
                is_granted || round.awaits(number) || tally.failures.may_have_run(number);
            if !may_have {
                tickets.push(None);
                return None;
            }
            let (key, owner) = (Arc::clone(&attempt.key), attempt.owner);
            let vote = ResidualVote::new((&key, owner), is_granted.then_some(until));
            tickets.push(member.residual_votes.add(vote, due));
            let store = Arc::clone(&member.store);
            Some(within(self.server_timeout, async move {
                let resource = Resource { key: &key, mode: Mode::Exclusive };
                let (keep, queued, leaves_gap) = (Duration::ZERO, None, false);
                let release = [Release { resource, owner, keep, queued, leaves_gap }];
                Ok(store.release_all(&release, Lane::Caller).await)
            }))
        });
        let round = VoteRound::new(requests.collect::<Vec<_>>().into_iter());
        PendingUndo { tickets, round }
    }

    /// Waits until the stores have undone what they had granted. The answers of the others come later.
    async fn await_undo(&self, undo: PendingUndo, claims: UndoneClaims) {
        let PendingUndo { tickets, mut round } = undo;
        let mut open = claims.granted.clone();
        while !open.is_empty()
            && let Some((number, answer)) = round.next().await
        {
            open.retain(|other| *other != number);
            if answer.is_ok_and(|batch| claims.are_undone_by(number, &batch)) {
                self.members[number].residual_votes.released(tickets[number]);
            }
        }
        let members = Arc::clone(&self.members);
        round.finish_later(move |number, answer| {
            if answer.is_ok_and(|batch| claims.are_undone_by(number, &batch)) {
                members[number].residual_votes.released(tickets[number]);
            }
        });
    }
}
