//! Votes that a hold gets back from stores that have lost them.
//!
//! A store that was away for longer than a lease, or has restarted, does not have the votes of the locks that were held
//! meanwhile. Without them, the next store that is away would end these holds. So when a majority has just confirmed a
//! hold, a claim of its owner goes to each store that has told that it does not have the key. Such a claim is like any
//! other: a store in quarantine refuses it. It counts only with the next renewal: in the same one, it could make a
//! majority of votes that did not exist at one time.
//!
//! A claim that arrives after the release of its hold would leave a vote. So no claim is sent once the release has
//! begun, and a release is repeated at stores whose claims are open.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::member::{OwnedClaim, QuorumMember};
use lock_core::clock::BootInstant;
use lock_core::store::contract::{SendTrace, StoreError};
use lock_core::store::owner::OwnerId;
use lock_core::sync::{Mutex, lock};
use lock_core::timeout::LONGEST_DELAY;

/// How many releases are remembered: more than begin while a batch of renewals is made.
const REMEMBERED: usize = 1024;

/// What gets votes back. Cheap to clone.
#[derive(Clone)]
pub(super) struct VoteRestorer {
    members: Arc<[Arc<QuorumMember>]>,
    state: Arc<Mutex<RestorerState>>,
    /// The timeout of a claim.
    limit: Duration,
}

#[derive(Default)]
struct RestorerState {
    /// The owners whose renewals are in progress and whose releases have not begun, with the number of renewals.
    renewing: HashMap<OwnerId, usize>,
    /// The claims that are in flight, with the numbers of their stores.
    claims: HashSet<(OwnerId, usize)>,
    /// The owners of the last releases.
    ended: HashSet<OwnerId>,
    ended_in_order: VecDeque<OwnerId>,
}

/// A batch of renewals, until the last store has answered.
pub(super) struct ConfirmedHolds {
    restorer: VoteRestorer,
    owners: Vec<OwnerId>,
    /// By their positions in the batch. `None` as long as no majority has confirmed the hold.
    claims: Vec<Option<OwnedClaim>>,
}

impl VoteRestorer {
    pub(super) fn new(members: Arc<[Arc<QuorumMember>]>, limit: Duration) -> Self {
        Self { members, state: Arc::default(), limit }
    }

    /// The renewals of these owners begin.
    pub(super) fn confirm(&self, owners: impl Iterator<Item = OwnerId>) -> ConfirmedHolds {
        let owners: Vec<_> = owners.collect();
        let mut state = lock(&self.state);
        for owner in &owners {
            if !state.ended.contains(owner) {
                *state.renewing.entry(*owner).or_default() += 1;
            }
        }
        let claims = owners.iter().map(|_| None).collect();
        ConfirmedHolds { restorer: self.clone(), owners, claims }
    }

    /// The release of this owner begins, or a majority no longer has its lock.
    pub(super) fn ends(&self, owner: OwnerId) {
        let mut state = lock(&self.state);
        state.renewing.remove(&owner);
        if state.ended.insert(owner) {
            state.ended_in_order.push_back(owner);
        }
        if state.ended.len() > REMEMBERED
            && let Some(first) = state.ended_in_order.pop_front()
        {
            state.ended.remove(&first);
        }
    }

    fn restore(&self, claim: OwnedClaim, number: usize) {
        let (member, owner) = (Arc::clone(&self.members[number]), claim.owner);
        let Ok(here) = Handle::try_current() else { return };
        let was_open = {
            let mut state = lock(&self.state);
            let is_awaited = member.residual_votes.is_claim_awaited(owner);
            let is_over = !state.renewing.contains_key(&owner);
            if is_over || is_awaited {
                return;
            }
            if !state.claims.insert((owner, number)) {
                return;
            }
            let was_open = member.residual_votes.is_claim_open(owner);
            let until = BootInstant::now().after(claim.term + LONGEST_DELAY);
            member.residual_votes.open_claim(owner, until);
            was_open
        };
        let traces: Arc<[SendTrace]> = self.members.iter().map(|_| SendTrace::default()).collect();
        let asking = member.claim(claim, &traces, self.limit);
        let state = Arc::clone(&self.state);
        here.spawn(async move {
            let answer = asking.await;
            let is_unknown = answer.is_err_and(|error: StoreError| error.may_have_run());
            let may_come = is_unknown && traces[number].connection().is_some();
            // An earlier claim without an answer may still come, so that this one closes nothing.
            if !may_come && !was_open {
                member.residual_votes.close_claim(owner);
            }
            lock(&state).claims.remove(&(owner, number));
        });
    }
}

impl ConfirmedHolds {
    /// A majority has confirmed the hold at this position. These stores do not have it.
    pub(super) fn confirmed(&mut self, index: usize, claim: OwnedClaim, gone: Vec<usize>) {
        self.claims[index] = Some(claim);
        for number in gone {
            self.is_gone(index, number);
        }
    }

    /// This store does not have the hold at this position.
    pub(super) fn is_gone(&self, index: usize, number: usize) {
        if let Some(claim) = self.claims.get(index).and_then(Option::as_ref) {
            self.restorer.restore(claim.clone(), number);
        }
    }
}

impl Drop for ConfirmedHolds {
    fn drop(&mut self) {
        let mut state = lock(&self.restorer.state);
        for owner in &self.owners {
            if let Some(count) = state.renewing.get_mut(owner) {
                *count -= 1;
                if *count == 0 {
                    state.renewing.remove(owner);
                }
            }
        }
    }
}
