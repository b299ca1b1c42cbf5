//! The queues of waiting claims in the memory store.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::capacity::Peak;
use crate::store::owner::OwnerId;
use crate::store::queueing::{QueueTicket, transfer_term};

/// More claims than this are not counted, because the number only says how soon a turn may come.
pub(super) const MOST_AHEAD: usize = 100;

/// The queues of all keys.
#[derive(Debug, Default)]
pub(super) struct MemoryQueues {
    by_key: HashMap<Box<str>, MemoryQueue>,
    peak: Peak,
    /// The last ticket.
    last: u64,
}

/// The queue of one key.
#[derive(Debug, Default)]
struct MemoryQueue {
    by_ticket: BTreeMap<u64, QueuedClaim>,
    by_owner: HashMap<OwnerId, u64>,
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
    /// come first, up to [`MOST_AHEAD`].
    pub(super) fn enter(
        &mut self,
        key: &str,
        owner: OwnerId,
        term: Duration,
    ) -> (QueueTicket, usize) {
        let MemoryQueue { by_ticket, by_owner } = self.by_key.entry(key.into()).or_default();
        let ticket = *by_owner.entry(owner).or_insert_with(|| {
            self.last += 1;
            let (ticket, term) = (QueueTicket(self.last), transfer_term(term));
            by_ticket.insert(self.last, QueuedClaim { owner, ticket, term });
            self.last
        });
        (QueueTicket(ticket), by_ticket.range(..ticket).take(MOST_AHEAD).count())
    }

    pub(super) fn leave(&mut self, key: &str, owner: OwnerId) {
        let Some(queue) = self.by_key.get_mut(key) else { return };
        if let Some(ticket) = queue.by_owner.remove(&owner) {
            queue.by_ticket.remove(&ticket);
            self.remove_if_empty(key);
        }
    }

    /// Takes the first claim.
    pub(super) fn pop(&mut self, key: &str) -> Option<QueuedClaim> {
        let queue = self.by_key.get_mut(key)?;
        let (_, first) = queue.by_ticket.pop_first()?;
        queue.by_owner.remove(&first.owner);
        self.remove_if_empty(key);
        Some(first)
    }

    /// The owner id of the first claim.
    pub(super) fn first(&self, key: &str) -> Option<OwnerId> {
        let (_, first) = self.by_key.get(key)?.by_ticket.first_key_value()?;
        Some(first.owner)
    }

    pub(super) fn len(&self, key: &str) -> usize {
        self.by_key.get(key).map_or(0, |queue| queue.by_ticket.len())
    }

    fn remove_if_empty(&mut self, key: &str) {
        if self.by_key.get(key).is_some_and(|queue| queue.by_ticket.is_empty()) {
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
        OwnerId::new().expect("randomness")
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
