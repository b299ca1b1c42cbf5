//! Renewing and releasing locks: a majority of the stores decides about each.
//!
//! A renewal does not create the key at a store that no longer has it: if the store has lost its data, it must not vote
//! until all leases have ended that were lost with it. A hold gets such a vote back by a claim ([`restored_votes`]).
//!
//! [`restored_votes`]: super::restored_votes
//!
//! A lock is lost before its body is dropped, because the body is dropped by its task. The votes that a minority still
//! has are therefore not released then. They expire.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, timeout_at};

use super::member::{OwnedClaim, QuorumMember};
use super::residual_votes::{ResidualTicket, ResidualVote};
use super::round::{VoteRound, within};
use super::store::{QuorumStore, SHORTEST_LEASE};
use super::tally::{HoldDecision, HoldTally, HoldVote};
use lock_core::clock::BootInstant;
use lock_core::replicas::RequiredReplicas;
use lock_core::store::contract::{
    Lane, Mode, Release, Released, Renewal, Renewed, Resource, StoreError,
};
use lock_core::store::owner::OwnerId;
use lock_core::sync::{Mutex, lock};

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
    /// The stores whose claims had no definite answer when the release was sent, so that they may arrive after it.
    open_claims: Vec<bool>,
}

/// A release that one store has answered, and whose claim had no answer when the release was sent. A connection carries
/// requests in order, so if it has carried both, the store has served the claim first.
struct FollowingRelease {
    number: usize,
    /// The position of the lock in its batch.
    index: usize,
    /// The connection that has carried it.
    carrier: NonZeroU64,
    /// Resolves with the connection that has carried the claim.
    claim: oneshot::Receiver<Option<NonZeroU64>>,
}

/// The releases of a batch that may have to be repeated.
struct LateReleases {
    members: Arc<[Arc<QuorumMember>]>,
    owned: Arc<[OwnedRelease]>,
    open: Vec<OpenRelease>,
    following: Arc<Mutex<Vec<FollowingRelease>>>,
}

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
        let mut confirming = self.restorer.confirm(owned.iter().map(|renewal| renewal.owner));
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
        for (index, (renewal, tally)) in owned.iter().zip(tallies).enumerate() {
            let decision = tally.decision();
            // A fixed lease that is only verified has a term that would be over at once.
            if decision == HoldDecision::Held && renewal.term >= SHORTEST_LEASE {
                confirming.confirmed(index, renewal.claim(), tally.gone);
            }
            if matches!(decision, HoldDecision::Gone | HoldDecision::Taken) {
                self.restorer.ends(renewal.owner);
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
        round.finish_later(move |number, votes: Result<BatchVotes<()>, StoreError>| {
            for (index, vote) in votes.unwrap_or_default().iter().enumerate() {
                if matches!(vote, Ok(HoldVote::Gone)) {
                    confirming.is_gone(index, number);
                }
            }
        });
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
            self.restorer.ends(owner);
            let members = self.members.iter();
            let open_claims = members.map(|it| it.residual_votes.is_claim_open(owner)).collect();
            OwnedRelease { key: Arc::from(resource.key), owner, keep, open_claims }
        };
        let owned: Arc<[OwnedRelease]> = batch.iter().map(owned).collect();
        let following: Arc<Mutex<Vec<FollowingRelease>>> = Arc::default();
        let requests = self.members.iter().enumerate().map(|(number, member)| {
            let (member, owned) = (Arc::clone(member), Arc::clone(&owned));
            let following = Arc::clone(&following);
            Some(Arc::clone(&member).if_voting(Box::pin(async move {
                let batch: Vec<_> = owned.iter().map(OwnedRelease::request).collect();
                let claims: Vec<_> = owned
                    .iter()
                    .enumerate()
                    .filter(|(_, release)| release.open_claims[number])
                    .filter_map(|(index, release)| {
                        Some((index, member.residual_votes.claim_carrier(release.owner)?))
                    })
                    .collect();
                let answers = match &batch[..] {
                    [single] if claims.is_empty() => {
                        vec![member.store.release(*single, lane).await]
                    }
                    _ => {
                        let released = member.store.release_all(&batch, lane).await;
                        let answered = claims.into_iter().filter_map(|(index, claim)| {
                            let carrier = released.connection?;
                            released.answers.get(index)?.as_ref().ok()?;
                            Some(FollowingRelease { number, index, carrier, claim })
                        });
                        lock(&following).extend(answered);
                        released.answers
                    }
                };
                Ok(answers.into_iter().map(release_vote).collect::<BatchVotes<usize>>())
            })))
        });
        let mut round = VoteRound::new(requests).within(self.server_timeout);
        let tallies = self.count(&mut round, owned.len()).await;
        let mut answers = Vec::with_capacity(tallies.len());
        let (mut open, followed) = (Vec::new(), followed_already(&following));
        for (index, (release, tally)) in owned.iter().zip(tallies).enumerate() {
            let outcome = outcome_of_release(&tally);
            if outcome.is_some() {
                let kept_until = if release.keep.is_zero() {
                    BootInstant::PAST
                } else {
                    now.after(release.keep)
                };
                let of_this = (index, kept_until, &followed[..]);
                open.extend(self.leave_open(release, (&tally, &round), of_this));
            }
            answers.push(outcome.ok_or_else(|| {
                tally.failures.into_error(self.membership.names(), "released the lock")
            }));
        }
        let members = Arc::clone(&self.members);
        let left_open = LateReleases { members, owned, open, following };
        left_open.finish_later(round, self.server_timeout);
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
        (index, kept_until, followed): (usize, BootInstant, &[(usize, usize)]),
    ) -> Vec<OpenRelease> {
        let now = BootInstant::now();
        let (due, until) = (now.after(self.server_timeout), self.latest_expiry(now));
        let vote = |expires| {
            ResidualVote::new((&release.key, release.owner), expires).kept_until(kept_until)
        };
        let mut open = Vec::new();
        for (number, member) in self.members.iter().enumerate() {
            let had_open_claim =
                release.open_claims[number] && !followed.contains(&(number, index));
            let may_have = had_open_claim
                || round.awaits(number)
                || tally.failures.contains(number) && member.may_have_votes();
            if may_have {
                let expires = (!had_open_claim).then_some(until);
                let ticket = member.residual_votes.add(vote(expires), due);
                if had_open_claim || round.awaits(number) {
                    open.push(OpenRelease { number, index, ticket });
                }
            }
        }
        open
    }

    /// A minority of the stores may still have a lock that is lost. Its body may run until its deadline, so the votes are
    /// released only after that, for stores that serve a request late. Most of them have expired by then.
    fn expire_votes(&self, lost: &OwnedRenewal) {
        let now = BootInstant::now();
        let not_before = now.after(lost.term);
        let until = self.latest_expiry(now);
        for member in self.members.iter().filter(|member| member.may_have_votes()) {
            let was_open = member.residual_votes.close_claim(lost.owner);
            let vote = ResidualVote::new((&lost.key, lost.owner), (!was_open).then_some(until));
            member.residual_votes.add(vote.not_before(not_before), now);
        }
    }
}

/// A release that one store has not answered yet, or whose claim had no answer.
struct OpenRelease {
    number: usize,
    /// The position of the lock in its batch.
    index: usize,
    ticket: Option<ResidualTicket>,
}

impl OwnedRenewal {
    /// The claim that gets a vote back.
    fn claim(&self) -> OwnedClaim {
        let Self { ref key, owner, term, acknowledged_by } = *self;
        let (key, renewed, fresh) = (Arc::clone(key), true, false);
        OwnedClaim { key, owner, term, renewed, fresh, acknowledged_by }
    }

    fn request(&self) -> Renewal<'_> {
        let Self { ref key, owner, term, acknowledged_by } = *self;
        let resource = Resource { key, mode: Mode::Exclusive };
        Renewal { resource, owner, term, acknowledged_by }
    }
}

impl OwnedRelease {
    fn request(&self) -> Release<'_> {
        let Self { ref key, owner, keep, .. } = *self;
        let resource = Resource { key, mode: Mode::Exclusive };
        Release { resource, owner, keep, queued: None, leaves_gap: false }
    }
}

/// Takes the releases that are known to have followed their claims: the numbers of their stores, and their positions in the
/// batch.
fn followed_already(following: &Mutex<Vec<FollowingRelease>>) -> Vec<(usize, usize)> {
    let mut followed = Vec::new();
    lock(following).retain_mut(|release| match release.claim.try_recv() {
        Ok(carrier) => {
            if carrier == Some(release.carrier) {
                followed.push((release.number, release.index));
            }
            false
        }
        Err(TryRecvError::Empty) => true,
        Err(TryRecvError::Closed) => false,
    });
    followed
}

impl LateReleases {
    /// Awaits the other answers, of the releases and of their claims, in a task of its own.
    fn finish_later(
        self,
        mut round: VoteRound<Result<BatchVotes<usize>, StoreError>>,
        patience: Duration,
    ) {
        if self.open.is_empty() {
            return round.finish_later(|_, _| {});
        }
        let Ok(runtime) = Handle::try_current() else { return self.close_claims() };
        runtime.spawn(async move {
            let until = Instant::now() + patience;
            loop {
                self.await_claims(until).await;
                let Some((number, votes)) = round.next().await else { break };
                for (index, vote) in votes.unwrap_or_default().iter().enumerate() {
                    if vote.is_ok() && !self.owned[index].open_claims[number] {
                        self.released(number, index);
                    }
                }
            }
            self.close_claims();
        });
    }

    /// Awaits the answers to the claims of the releases that were answered.
    async fn await_claims(&self, until: Instant) {
        let following = std::mem::take(&mut *lock(&self.following));
        for FollowingRelease { number, index, carrier, claim } in following {
            if timeout_at(until, claim).await == Ok(Ok(Some(carrier))) {
                self.released(number, index);
            }
        }
    }

    /// A store has answered a release, and need not be asked again.
    fn released(&self, number: usize, index: usize) {
        let of_this = |open: &&OpenRelease| (open.number, open.index) == (number, index);
        if let Some(open) = self.open.iter().find(of_this) {
            self.members[number].residual_votes.released(open.ticket);
        }
    }

    /// From now on, the votes are residual ones.
    fn close_claims(&self) {
        for OpenRelease { number, index, .. } in &self.open {
            self.members[*number].residual_votes.close_claim(self.owned[*index].owner);
        }
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
