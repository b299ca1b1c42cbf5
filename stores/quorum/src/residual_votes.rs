//! Votes that may remain at one store of a quorum, because it did not answer in time.
//!
//! A claim without a majority is undone at all stores, and a release counts as soon as a majority has answered.
//! A task for each store sends the release again if the store has not answered by then, until there is a definite answer
//! or the vote has expired. Owner names are never used twice, so a late release frees no lock of another owner.
//!
//! When the client is shut down, everything is sent once more, and what is not answered then is given up.
//!
//! Keeps the promise that nothing leaks.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use lock_core::backoff::Backoff;
use lock_core::clock::BootInstant;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::{Lane, LockStore, Mode, Release, Resource};
use lock_core::store::owner::OwnerId;
use lock_core::sync::{Mutex, MutexGuard, lock};

/// The largest number of residual votes of one store. Further ones expire.
const MOST: usize = 10_000;

/// The largest number of releases in one request.
const BATCH: usize = 100;

/// The first and the longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(500));

/// How long after the first answer to its release a vote is released again whose claim has had no answer. A claim that
/// was sent over another connection arrives within this time, because a connection without answers is reset.
const RELEASE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The number of unanswered claims at which those whose leases have ended are first removed.
const FIRST_PURGE: usize = 1024;

/// A vote that one store may have.
#[derive(Debug)]
pub(super) struct ResidualVote {
    key: Arc<str>,
    owner: OwnerId,
    /// The end of `min_hold`.
    kept_until: BootInstant,
    /// The body of the lock may run until then, so the vote is not released before.
    not_before: BootInstant,
    /// When the vote has expired; `None` if its claim has had no answer. A store that was suspended may serve such a
    /// claim whenever it resumes.
    expires: Option<BootInstant>,
    /// Whether the claim may arrive after the next release.
    may_follow: bool,
}

/// Identifies a residual vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResidualTicket(BootInstant, u64);

/// The votes that may remain at one store.
#[derive(Debug, Default)]
pub(super) struct ResidualVotes {
    state: Mutex<ResidualQueue>,
    /// Notified when the next release is due earlier than before.
    added: Notify,
    /// Notified when nothing is left to send.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct ResidualQueue {
    /// By the time of the next attempt.
    votes: BTreeMap<ResidualTicket, ResidualVote>,
    /// Distinguishes attempts of one instant.
    number: u64,
    /// Whether a request is on its way.
    is_sending: bool,
    /// When the task looks for votes that are due, unless it is notified.
    wakes_at: Option<BootInstant>,
    /// Whether the client is being shut down. From then on, votes are given up when a request has had no answer.
    is_last: bool,
    /// The owners whose claims have had no definite answer.
    unanswered: HashMap<OwnerId, OpenClaim>,
    purge_at: usize,
}

/// A claim without a definite answer.
#[derive(Debug)]
struct OpenClaim {
    /// When its lease ends.
    until: BootInstant,
    /// Whether a task awaits the answer.
    is_awaited: bool,
    /// Told when there is an answer: see [`ResidualVotes::claim_carrier`].
    waiting: Option<oneshot::Sender<Option<NonZeroU64>>>,
}

impl ResidualVotes {
    /// Releases a vote, not before `due`, unless it is [released](Self::released) by then. Returns `None` if the vote
    /// is left to expire.
    pub(super) fn add(&self, vote: ResidualVote, due: BootInstant) -> Option<ResidualTicket> {
        if !Safeguard::ResidualVotesAreFreed.is_on() {
            return None;
        }
        let mut state = self.state();
        let has_time = !state.is_last || vote.not_before <= BootInstant::now();
        if state.votes.len() >= MOST || !has_time {
            return None;
        }
        let ticket = state.push(vote, due);
        let is_in_time = state.wakes_at.is_some_and(|at| at <= ticket.0);
        if !is_in_time {
            state.wakes_at = Some(ticket.0);
        }
        drop(state);
        if !is_in_time {
            self.added.notify_one();
        }
        Some(ticket)
    }

    /// The store has given a definite answer to another request that releases the vote.
    pub(super) fn released(&self, ticket: Option<ResidualTicket>) {
        if let Some(ticket) = ticket {
            let mut state = self.state();
            state.votes.remove(&ticket);
            self.notify_if_over(&state);
        }
    }

    /// The claim of this owner is being sent. The store may grant it at any time.
    pub(super) fn open_claim(&self, owner: OwnerId, until: BootInstant) {
        let mut state = self.state();
        if state.unanswered.len() >= state.purge_at.max(FIRST_PURGE) {
            let now = BootInstant::now();
            state.unanswered.retain(|_, claim| claim.until > now);
            state.purge_at = state.unanswered.len() * 2;
        }
        state.unanswered.insert(owner, OpenClaim { until, is_awaited: false, waiting: None });
    }

    /// Whether the store has given no definite answer to the claim of this owner.
    pub(super) fn is_claim_open(&self, owner: OwnerId) -> bool {
        self.state().unanswered.contains_key(&owner)
    }

    /// The same, while a task awaits the answer.
    pub(super) fn is_claim_awaited(&self, owner: OwnerId) -> bool {
        self.state().unanswered.get(&owner).is_some_and(|claim| claim.is_awaited)
    }

    /// Notes whether a task awaits the answer to the claim of this owner.
    pub(super) fn set_claim_awaited(&self, owner: OwnerId, is_awaited: bool) {
        if let Some(claim) = self.state().unanswered.get_mut(&owner) {
            (claim.is_awaited, claim.waiting) = (is_awaited, None);
        }
    }

    /// Resolves when the store has given a definite answer to the claim of this owner, with the connection that has carried
    /// the claim if it was sent once. `None` if no task awaits the answer.
    pub(super) fn claim_carrier(
        &self,
        owner: OwnerId,
    ) -> Option<oneshot::Receiver<Option<NonZeroU64>>> {
        let mut state = self.state();
        let claim = state.unanswered.get_mut(&owner).filter(|claim| claim.is_awaited)?;
        let (waiting, carrier) = oneshot::channel();
        claim.waiting = Some(waiting);
        Some(carrier)
    }

    /// The store has given a definite answer to the claim of this owner. Returns whether there was none before.
    pub(super) fn close_claim(&self, owner: OwnerId) -> bool {
        self.state().unanswered.remove(&owner).is_some()
    }

    /// The same, for a claim that was awaited.
    pub(super) fn close_awaited_claim(&self, owner: OwnerId, carrier: Option<NonZeroU64>) {
        let claim = self.state().unanswered.remove(&owner);
        if let Some(waiting) = claim.and_then(|claim| claim.waiting) {
            // The release does not wait any more.
            let _ = waiting.send(carrier);
        }
    }

    /// Releases all votes now, because the client is being shut down. Resolves when the store has answered, or has not
    /// answered the next request in time.
    ///
    /// Cancel safe: the releases continue as long as the runtime does.
    pub(super) async fn finish(&self) {
        self.state().make_last(BootInstant::now());
        self.added.notify_one();
        loop {
            let emptied = self.emptied.notified();
            if self.state().is_empty() {
                return;
            }
            emptied.await;
        }
    }

    /// Releases votes at `store`, which has so much time for an answer, until the runtime ends.
    pub(super) async fn run(self: Arc<Self>, store: Arc<dyn LockStore>, within: Duration) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            let now = BootInstant::now();
            let due = self.state().take_due(now);
            if due.is_empty() {
                self.notify_if_over(&self.state());
                let next = self.state().plan(now);
                let next = async {
                    match next {
                        Some(next) => sleep(next.since(now)).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = next => {}
                    () = self.added.notified() => {}
                }
            } else if self.send(&*store, due, within).await {
                backoff.reset();
            } else {
                sleep(backoff.pause()).await;
            }
        }
    }

    /// Returns whether the store has answered any of these requests.
    async fn send(&self, store: &dyn LockStore, due: Vec<ResidualVote>, within: Duration) -> bool {
        let (now, was_last) = (BootInstant::now(), self.state().is_last);
        let releases: Vec<Release<'_>> = due.iter().map(|vote| vote.release(now)).collect();
        let answered = timeout(within, store.release_all(&releases, Lane::Background)).await;
        let answers = answered.map(|batch| batch.answers).unwrap_or_default();
        let mut is_answered = answers.iter().map(Result::is_ok).chain(std::iter::repeat(false));
        let is_any = answers.iter().any(Result::is_ok);
        let (mut state, now) = (self.state(), BootInstant::now());
        for mut vote in due {
            match (is_answered.next().unwrap_or_default(), vote.may_follow) {
                (true, false) => {}
                (true, true) => {
                    vote.may_follow = false;
                    state.push(vote, now.after(RELEASE_AGAIN_AFTER));
                }
                (false, _) => {
                    state.push(vote, now.after(PAUSES.0));
                }
            }
        }
        state.is_sending = false;
        if was_last && !is_any {
            state.votes.clear();
        }
        self.notify_if_over(&state);
        is_any
    }

    fn notify_if_over(&self, state: &ResidualQueue) {
        if state.is_last && state.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    fn state(&self) -> MutexGuard<'_, ResidualQueue> {
        lock(&self.state)
    }
}

impl ResidualVote {
    /// A vote that has expired by then; `None` if its claim has had no answer.
    pub(super) fn new((key, owner): (&Arc<str>, OwnerId), expires: Option<BootInstant>) -> Self {
        let (kept_until, not_before) = (BootInstant::PAST, BootInstant::PAST);
        let (key, may_follow) = (Arc::clone(key), expires.is_none());
        Self { key, owner, kept_until, not_before, expires, may_follow }
    }

    /// The same for a key that stays taken until then.
    pub(super) fn kept_until(self, kept_until: BootInstant) -> Self {
        Self { kept_until, ..self }
    }

    /// The same for a lock whose body may run until then.
    pub(super) fn not_before(self, not_before: BootInstant) -> Self {
        Self { not_before, ..self }
    }

    fn has_expired(&self, now: BootInstant) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    fn release(&self, now: BootInstant) -> Release<'_> {
        Release {
            resource: Resource { key: &self.key, mode: Mode::Exclusive },
            owner: self.owner,
            keep: self.kept_until.since(now),
            queued: None,
            leaves_gap: false,
        }
    }
}

impl ResidualQueue {
    fn push(&mut self, vote: ResidualVote, due: BootInstant) -> ResidualTicket {
        self.number += 1;
        let ticket = ResidualTicket(due.max(vote.not_before), self.number);
        self.votes.insert(ticket, vote);
        ticket
    }

    /// Takes votes that are due, without those that have expired.
    fn take_due(&mut self, now: BootInstant) -> Vec<ResidualVote> {
        let mut due = Vec::new();
        while due.len() < BATCH
            && let Some(first) = self.votes.first_entry().filter(|first| first.key().0 <= now)
        {
            let vote = first.remove();
            if !vote.has_expired(now) {
                due.push(vote);
            }
        }
        self.is_sending = !due.is_empty();
        due
    }

    /// When the task should look again. Most votes are [released](ResidualVotes::released) before they are due, so it keeps
    /// to the time that it has planned, and need not be notified of each vote.
    fn plan(&mut self, now: BootInstant) -> Option<BootInstant> {
        let planned = self.wakes_at.filter(|at| *at > now);
        let first = self.votes.first_key_value().map(|(ticket, _)| ticket.0);
        self.wakes_at = planned.into_iter().chain(first).min();
        self.wakes_at
    }

    /// Makes all votes due. Those whose body may still run expire.
    fn make_last(&mut self, now: BootInstant) {
        self.is_last = true;
        for (_, vote) in std::mem::take(&mut self.votes) {
            if vote.not_before <= now {
                self.push(vote, now);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.votes.is_empty() && !self.is_sending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn vote(expires: Option<BootInstant>) -> ResidualVote {
        ResidualVote::new((&Arc::from("k"), OwnerId::new().expect("randomness")), expires)
    }

    #[test]
    fn a_vote_is_given_up_when_it_has_expired_unless_its_claim_may_still_arrive() {
        let (mut queue, now) = (ResidualQueue::default(), BootInstant::now());
        let end = now.after(SECOND);
        for expires in [Some(end), None] {
            queue.push(vote(expires), now);
        }
        let due = queue.take_due(now.after(SECOND * 1_000_000));
        assert_eq!(due.len(), 1);
        assert!(
            due[0].may_follow,
            "the server was suspended, and serves the claim when it resumes"
        );
    }

    #[test]
    fn a_vote_is_due_when_its_body_has_ended() {
        let (mut queue, now) = (ResidualQueue::default(), BootInstant::now());
        let not_before = now.after(SECOND);
        queue.push(vote(None).not_before(not_before), now);
        assert!(queue.take_due(now).is_empty());
        assert_eq!(queue.take_due(not_before).len(), 1);
    }
}
