//! Renewing and releasing locks: a majority of the stores decides about each.
//!
//! A renewal does not create the key at a store that no longer has it: if the store has lost its data, it must not vote
//! until all leases have ended that were lost with it.
//!
//! A lock is lost before its body is dropped, because the body is dropped by its task. The votes that a minority still
//! has are therefore not released then. They expire.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::member::{QuorumMember, within};
use super::residual_votes::{ResidualTicket, ResidualVote};
use super::round::VoteRound;
use super::tally::{HoldDecision, HoldTally, HoldVote};
use super::votes::QuorumStore;
use crate::clock::BootInstant;
use crate::replicas::RequiredReplicas;
use crate::safeguard::Safeguard;
use crate::store::contract::{
    Lane, Mode, Release, Released, ReleasedBatch, Renewal, Renewed, Resource, StoreError,
};
use crate::store::owner::OwnerId;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A renewal that owns its key.
struct OwnedRenewal {
    key: Arc<str>,
    owner: OwnerId,
    term: Duration,
    acknowledged_by: RequiredReplicas,
}

/// A release that owns its key.
struct OwnedRelease {
    key: Arc<str>,
    owner: OwnerId,
    keep: Duration,
    /// For each store, whether it has served the claim before the release. Otherwise the claim may arrive after it.
    is_after_claim: Vec<AtomicBool>,
}

/// Resolves with the connection that has carried a claim.
type Carrier = oneshot::Receiver<Option<NonZeroU64>>;

/// The answers of one store to a batch.
type BatchVotes<T> = Vec<Result<HoldVote<T>, StoreError>>;

impl QuorumStore {
    pub(super) async fn renew_batch(
        &self,
        batch: &[Renewal<'_>],
        lane: Lane,
    ) -> Vec<Result<Renewed, StoreError>> {
        let owned = |renewal: &Renewal<'_>| {
            let Renewal { resource, owner, term, acknowledged_by } = *renewal;
            self.note_term(term);
            OwnedRenewal { key: Arc::from(resource.key), owner, term, acknowledged_by }
        };
        let owned: Arc<[OwnedRenewal]> = batch.iter().map(owned).collect();
        let requests = self.members.iter().map(|member| {
            let (store, owned) = (Arc::clone(&member.store), Arc::clone(&owned));
            Some(member.if_voting(within(self.server_timeout, async move {
                let batch: Vec<_> = owned.iter().map(OwnedRenewal::request).collect();
                let answers = store.renew(&batch, lane).await;
                Ok(answers.into_iter().map(renewal_vote).collect::<BatchVotes<()>>())
            })))
        });
        let mut round = VoteRound::new(requests);
        let tallies = self.count(&mut round, owned.len()).await;
        let mut answers = Vec::with_capacity(tallies.len());
        for (renewal, tally) in owned.iter().zip(tallies) {
            let decision = tally.decision();
            if matches!(decision, HoldDecision::Gone | HoldDecision::Taken) {
                self.expire_votes(renewal);
            }
            answers.push(match decision {
                HoldDecision::Held => Ok(Renewed::Extended),
                HoldDecision::Gone => Ok(Renewed::Gone),
                HoldDecision::Taken => Ok(Renewed::Taken),
                HoldDecision::TooFewAnswers => {
                    Err(tally.failures.into_error(self.membership.names(), "renewed the lock"))
                }
            });
        }
        round.finish_later(|_, _| {});
        answers
    }

    pub(super) async fn release_batch(
        &self,
        batch: &[Release<'_>],
        lane: Lane,
    ) -> Vec<Result<Released, StoreError>> {
        let now = BootInstant::now();
        let owned = |release: &Release<'_>| {
            let Release { resource, owner, keep, .. } = *release;
            let is_answered = |member: &Arc<QuorumMember>| {
                AtomicBool::new(!member.residual_votes.is_claim_open(owner))
            };
            let is_after_claim = self.members.iter().map(is_answered).collect();
            OwnedRelease { key: Arc::from(resource.key), owner, keep, is_after_claim }
        };
        let owned: Arc<[OwnedRelease]> = batch.iter().map(owned).collect();
        let patience = self.server_timeout / 2;
        let requests = self.members.iter().enumerate().map(|(number, member)| {
            let (store, owned) = (Arc::clone(&member.store), Arc::clone(&owned));
            let residual_votes = Arc::clone(&member.residual_votes);
            Some(member.if_voting(within(self.server_timeout, async move {
                let batch: Vec<_> = owned.iter().map(OwnedRelease::request).collect();
                let open = owned.iter().filter(|release| !release.is_after_claim(number));
                let open: Vec<_> = open
                    .map(|release| (release, residual_votes.claim_carrier(release.owner)))
                    .collect();
                let answers = match &batch[..] {
                    [single] if open.is_empty() => vec![store.release(*single, lane).await],
                    _ => {
                        let ReleasedBatch { answers, connection } =
                            store.release_all(&batch, lane).await;
                        let until = Instant::now() + patience;
                        for (release, carrier) in open {
                            release.follows(number, (carrier, connection), until).await;
                        }
                        answers
                    }
                };
                Ok(answers.into_iter().map(release_vote).collect::<BatchVotes<usize>>())
            })))
        });
        let mut round = VoteRound::new(requests);
        let tallies = self.count(&mut round, owned.len()).await;
        let mut answers = Vec::with_capacity(tallies.len());
        let mut tickets = Vec::new();
        for (index, (release, tally)) in owned.iter().zip(tallies).enumerate() {
            let outcome = outcome_of_release(&tally);
            if outcome.is_some() {
                let kept_until = if release.keep.is_zero() {
                    BootInstant::PAST
                } else {
                    now.after(release.keep)
                };
                tickets.extend(self.leave_open(release, (&tally, &round), (index, kept_until)));
            }
            answers.push(outcome.ok_or_else(|| {
                tally.failures.into_error(self.membership.names(), "released the lock")
            }));
        }
        let members: Vec<_> =
            self.members.iter().map(|it| Arc::clone(&it.residual_votes)).collect();
        round.finish_later(move |number, votes: Result<BatchVotes<usize>, StoreError>| {
            for (index, vote) in votes.unwrap_or_default().iter().enumerate() {
                let of_this = |open: &&OpenRelease| (open.number, open.index) == (number, index);
                if let (Ok(_), Some(open)) = (vote, tickets.iter().find(of_this))
                    && owned[index].is_after_claim(number)
                {
                    members[number].released(open.ticket);
                }
            }
        });
        answers
    }

    /// Awaits the answers to a batch until a majority has decided about each of its items.
    async fn count<T: Send + 'static>(
        &self,
        round: &mut VoteRound<Result<BatchVotes<T>, StoreError>>,
        items: usize,
    ) -> Vec<HoldTally<T>> {
        let stores = self.members.len();
        let mut tallies: Vec<_> = (0..items).map(|_| HoldTally::new(stores)).collect();
        let add = |tallies: &mut Vec<HoldTally<T>>, number, votes| match votes {
            Ok(votes) => {
                let mut votes = BatchVotes::into_iter(votes);
                for tally in tallies {
                    let missing = || Err(StoreError::Unknown("an answer is missing".to_owned()));
                    tally.add(number, votes.next().unwrap_or_else(missing));
                }
            }
            Err(error) => {
                for tally in tallies {
                    tally.add(number, Err(StoreError::clone(&error)));
                }
            }
        };
        while !tallies.iter().all(HoldTally::is_decided)
            && let Some((number, votes)) = round.next().await
        {
            add(&mut tallies, number, votes);
        }
        while let Some((number, votes)) = round.known() {
            add(&mut tallies, number, votes);
        }
        tallies
    }

    /// The release counts. It is repeated later for stores without a definite answer, and for those whose claim is still
    /// open.
    fn leave_open(
        &self,
        release: &OwnedRelease,
        (tally, round): (&HoldTally<usize>, &VoteRound<Result<BatchVotes<usize>, StoreError>>),
        (index, kept_until): (usize, BootInstant),
    ) -> Vec<OpenRelease> {
        let now = BootInstant::now();
        let (due, until) = (now.after(self.server_timeout), self.latest_expiry(now));
        let vote = |expires| {
            ResidualVote::new((&release.key, release.owner), expires).kept_until(kept_until)
        };
        let mut tickets = Vec::new();
        for (number, member) in self.members.iter().enumerate() {
            let is_awaited = round.awaits(number);
            let is_after_claim = release.is_after_claim(number);
            let may_have = is_awaited
                || !is_after_claim
                || tally.failures.contains(number) && member.may_have_votes();
            if !is_after_claim && !is_awaited {
                member.residual_votes.close_claim(release.owner);
            }
            if may_have {
                let expires = is_after_claim.then_some(until);
                let ticket = member.residual_votes.add(vote(expires), due);
                if is_awaited {
                    tickets.push(OpenRelease { number, index, ticket });
                }
            }
        }
        tickets
    }

    /// A minority of the stores may still have a lock that is lost. Its body may run until its deadline, so the votes are
    /// released only after that, for stores that serve a request late. Most of them have expired by then.
    fn expire_votes(&self, lost: &OwnedRenewal) {
        let now = BootInstant::now();
        let not_before =
            if Safeguard::LostVotesExpire.is_on() { now.after(lost.term) } else { now };
        let until = self.latest_expiry(now);
        for member in self.members.iter().filter(|member| member.may_have_votes()) {
            let was_open = member.residual_votes.close_claim(lost.owner);
            let vote = ResidualVote::new((&lost.key, lost.owner), (!was_open).then_some(until));
            member.residual_votes.add(vote.not_before(not_before), now);
        }
    }
}

/// A release that one store has not answered yet.
struct OpenRelease {
    number: usize,
    /// The position of the lock in its batch.
    index: usize,
    ticket: Option<ResidualTicket>,
}

impl OwnedRenewal {
    fn request(&self) -> Renewal<'_> {
        let Self { ref key, owner, term, acknowledged_by } = *self;
        let resource = Resource { key, mode: Mode::Exclusive };
        Renewal { resource, owner, term, acknowledged_by }
    }
}

impl OwnedRelease {
    fn is_after_claim(&self, number: usize) -> bool {
        self.is_after_claim[number].load(Ordering::Acquire)
    }

    /// The release was answered by a store whose claim had no answer when the release was sent. A connection carries
    /// requests in order, so the claim was served first if it was sent once, over the same one.
    async fn follows(
        &self,
        number: usize,
        (claim, release): (Option<Carrier>, Option<NonZeroU64>),
        until: Instant,
    ) {
        let (Some(claim), Some(_)) = (claim, release) else { return };
        if let Ok(Ok(carrier)) = timeout_at(until, claim).await {
            self.is_after_claim[number].store(carrier == release, Ordering::Release);
        }
    }

    fn request(&self) -> Release<'_> {
        let Self { ref key, owner, keep, .. } = *self;
        let resource = Resource { key, mode: Mode::Exclusive };
        Release { resource, owner, keep, queued: None, leaves_gap: false }
    }
}

fn renewal_vote(answer: Result<Renewed, StoreError>) -> Result<HoldVote<()>, StoreError> {
    match answer {
        Ok(Renewed::Extended) => Ok(HoldVote::Held(())),
        Ok(Renewed::Gone) => Ok(HoldVote::Gone),
        // An exclusive lock has no readers.
        Ok(Renewed::Taken | Renewed::AsReader) | Err(StoreError::WrongFormat { .. }) => {
            Ok(HoldVote::Taken)
        }
        Err(error) => Err(error),
    }
}

fn release_vote(answer: Result<Released, StoreError>) -> Result<HoldVote<usize>, StoreError> {
    Ok(match answer? {
        Released::Freed { woken } => HoldVote::Held(woken),
        Released::Gone => HoldVote::Gone,
        Released::Taken => HoldVote::Taken,
    })
}

/// The result of a release; `None` if too few stores have answered. The lock was held if a majority may have had
/// it.
fn outcome_of_release(tally: &HoldTally<usize>) -> Option<Released> {
    match tally.decision() {
        HoldDecision::Gone => return Some(Released::Gone),
        HoldDecision::Taken => return Some(Released::Taken),
        HoldDecision::Held => {}
        HoldDecision::TooFewAnswers if tally.has_majority_of_answers() => {}
        HoldDecision::TooFewAnswers => return None,
    }
    let woken = tally.held.iter().map(|(_, woken)| *woken).max().unwrap_or_default();
    Some(Released::Freed { woken })
}
