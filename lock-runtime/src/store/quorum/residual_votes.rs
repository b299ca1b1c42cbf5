//! The locks that may be left at one store of a quorum, because it has not answered in time.
//!
//! A claim without a majority is undone at all stores, and a release counts as soon as a majority has answered.
//! The stores that have not answered by then are asked again here, until they give a definite answer or the lease
//! has ended. Owner names are never used twice, so a late release frees nobody else's lock.
//!
//! Keeps the promise that nothing leaks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::backoff::Backoff;
use crate::clock::BootInstant;
use crate::safeguard::Safeguard;
use crate::store::contract::{Lane, LockStore, Mode, Release, Resource};
use crate::store::owner::OwnerId;
use crate::sync::{Mutex, MutexGuard, lock};

/// The most locks that are remembered. The leases of others end by themselves.
const MOST: usize = 10_000;

/// The most locks in one request.
const BATCH: usize = 100;

/// The first and the longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(500));

/// After this time, a request that had no answer is no longer expected to take effect.
const LATE: Duration = Duration::from_secs(1);

/// The number of unanswered claims at which those whose leases have ended are first removed.
const FIRST_PURGE: usize = 1024;

/// One lock to free.
#[derive(Debug)]
pub(super) struct ResidualVote {
    pub(super) key: Arc<str>,
    pub(super) owner: OwnerId,
    /// The end of `min_hold`.
    pub(super) kept_until: BootInstant,
    /// When its lease has ended.
    pub(super) until: BootInstant,
    /// Whether the claim cannot take effect any more, so that one definite answer is enough.
    pub(super) is_certain: bool,
}

/// Identifies a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResidualTicket(BootInstant, u64);

/// The locks that may be left at one store.
#[derive(Debug, Default)]
pub(super) struct ResidualVotes {
    state: Mutex<ResidualQueue>,
    added: Notify,
}

#[derive(Debug, Default)]
struct ResidualQueue {
    /// By the time of the next attempt.
    queue: BTreeMap<ResidualTicket, ResidualVote>,
    /// Distinguishes attempts of one instant.
    number: u64,
    /// The owners whose claims have had no answer, and when these leases end.
    unanswered: HashMap<OwnerId, BootInstant>,
    purge_at: usize,
}

impl ResidualVotes {
    /// Frees a lock, not before `due`, unless it is [done](Self::done) by then.
    pub(super) fn add(&self, vote: ResidualVote, due: BootInstant) -> Option<ResidualTicket> {
        if !Safeguard::ResidualVotesAreFreed.is_on() {
            return None;
        }
        let mut state = self.state();
        if state.queue.len() >= MOST {
            return None;
        }
        let ticket = state.push(vote, due);
        let is_first = state.queue.first_key_value().is_some_and(|(first, _)| *first == ticket);
        drop(state);
        if is_first {
            self.added.notify_one();
        }
        Some(ticket)
    }

    /// The store has given a definite answer to another request that frees the lock.
    pub(super) fn done(&self, ticket: Option<ResidualTicket>) {
        if let Some(ticket) = ticket {
            self.state().queue.remove(&ticket);
        }
    }

    /// The claim of this owner is being sent. The store may grant it at any time.
    pub(super) fn claim_is_open(&self, owner: OwnerId, until: BootInstant) {
        let mut state = self.state();
        if state.unanswered.len() >= state.purge_at.max(FIRST_PURGE) {
            let now = BootInstant::now();
            state.unanswered.retain(|_, until| *until > now);
            state.purge_at = state.unanswered.len() * 2;
        }
        state.unanswered.insert(owner, until);
    }

    /// Whether the store has given no definite answer to the claim of this owner.
    pub(super) fn is_claim_open(&self, owner: OwnerId) -> bool {
        self.state().unanswered.contains_key(&owner)
    }

    /// The store has given a definite answer to the claim of this owner, or its lock is being released. Returns
    /// whether there was none before.
    pub(super) fn close_claim(&self, owner: OwnerId) -> bool {
        self.state().unanswered.remove(&owner).is_some()
    }

    /// Frees locks at `store`, which has so much time for an answer, until the runtime ends.
    pub(super) async fn run(self: Arc<Self>, store: Arc<dyn LockStore>, within: Duration) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            let now = BootInstant::now();
            let due = self.take_due(now);
            if due.is_empty() {
                let next = self.state().queue.first_key_value().map(|(ticket, _)| ticket.0);
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

    /// Takes locks that are to be freed now, without those whose leases have ended.
    fn take_due(&self, now: BootInstant) -> Vec<ResidualVote> {
        let (mut state, mut due) = (self.state(), Vec::new());
        while due.len() < BATCH
            && let Some(first) = state.queue.first_entry().filter(|first| first.key().0 <= now)
        {
            let vote = first.remove();
            if vote.until > now {
                due.push(vote);
            }
        }
        due
    }

    /// Returns whether the store has answered any of these requests.
    async fn send(&self, store: &dyn LockStore, due: Vec<ResidualVote>, within: Duration) -> bool {
        let now = BootInstant::now();
        let releases: Vec<Release<'_>> = due.iter().map(|one| one.release(now)).collect();
        let answered = timeout(within, store.release_all(&releases, Lane::Background)).await;
        let mut answers = answered.map(|batch| batch.answers).unwrap_or_default().into_iter();
        let (mut state, now, mut is_any) = (self.state(), BootInstant::now(), false);
        for mut vote in due {
            let is_answered = answers.next().is_some_and(|answer| answer.is_ok());
            is_any |= is_answered;
            match (is_answered, vote.is_certain) {
                (true, true) => {}
                (true, false) => {
                    vote.is_certain = true;
                    state.push(vote, now.after(LATE));
                }
                (false, _) => {
                    state.push(vote, now.after(PAUSES.0));
                }
            }
        }
        is_any
    }

    fn state(&self) -> MutexGuard<'_, ResidualQueue> {
        lock(&self.state)
    }
}

impl ResidualVote {
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
        let ticket = ResidualTicket(due, self.number);
        self.queue.insert(ticket, vote);
        ticket
    }
}
