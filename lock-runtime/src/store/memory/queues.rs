//! The queues of waiting claims in the memory store.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::capacity::Peak;
use crate::store::owner::OwnerId;
use crate::store::queueing::{QueueTicket, transfer_term};

/// The queues of all keys.
#[derive(Debug, Default)]
pub(super) struct MemoryQueues {
    by_key: HashMap<Box<str>, VecDeque<QueuedClaim>>,
    peak: Peak,
    /// The last ticket.
    last: u64,
}

/// A claim that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueuedClaim {
    pub(super) owner: OwnerId,
    pub(super) ticket: QueueTicket,
    /// The lease that a transfer gives.
    pub(super) term: Duration,
}

impl MemoryQueues {
    /// Adds a claim, unless it stands in the queue. Returns its ticket and the number of claims that
    /// come first.
    pub(super) fn enter(
        &mut self,
        key: &str,
        owner: OwnerId,
        term: Duration,
    ) -> (QueueTicket, usize) {
        let queue = self.by_key.entry(key.into()).or_default();
        if let Some(ahead) = queue.iter().position(|claim| claim.owner == owner) {
            return (queue[ahead].ticket, ahead);
        }
        self.last += 1;
        let ticket = QueueTicket(self.last);
        queue.push_back(QueuedClaim { owner, ticket, term: transfer_term(term) });
        (ticket, queue.len() - 1)
    }

    pub(super) fn leave(&mut self, key: &str, owner: OwnerId) {
        if let Some(queue) = self.by_key.get_mut(key) {
            queue.retain(|claim| claim.owner != owner);
            self.remove_if_empty(key);
        }
    }

    /// Takes the first claim.
    pub(super) fn pop(&mut self, key: &str) -> Option<QueuedClaim> {
        let first = self.by_key.get_mut(key)?.pop_front();
        self.remove_if_empty(key);
        first
    }

    /// The owner id of the first claim.
    pub(super) fn first(&self, key: &str) -> Option<OwnerId> {
        self.by_key.get(key)?.front().map(|claim| claim.owner)
    }

    pub(super) fn len(&self, key: &str) -> usize {
        self.by_key.get(key).map_or(0, VecDeque::len)
    }

    fn remove_if_empty(&mut self, key: &str) {
        if self.by_key.get(key).is_some_and(VecDeque::is_empty) {
            let before = self.by_key.len();
            self.by_key.remove(key);
            self.peak.give_back(&mut self.by_key, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> OwnerId {
        OwnerId::random().expect("randomness")
    }

    #[test]
    fn claims_keep_their_places_and_tickets() {
        let (mut queues, second) = (MemoryQueues::default(), Duration::from_secs(1));
        let owners = [owner(), owner(), owner()];
        for (ahead, owner) in owners.into_iter().enumerate() {
            let first = queues.enter("k", owner, second * 9);
            assert_eq!(first.1, ahead);
            assert_eq!(queues.enter("k", owner, second), first, "it stands there already");
        }
        queues.leave("k", owners[1]);
        assert_eq!((queues.len("k"), queues.first("k")), (2, Some(owners[0])));
        let claim = queues.pop("k").expect("two claims");
        assert_eq!((claim.owner, claim.term), (owners[0], second * 3));
        let (again, ahead) = queues.enter("k", owners[0], second);
        assert!(again != claim.ticket && ahead == 1, "a new place has a new ticket");
        queues.leave("k", owners[2]);
        queues.leave("k", owners[0]);
        assert!(queues.by_key.is_empty() && queues.pop("k").is_none());
    }
}
