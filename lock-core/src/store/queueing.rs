//! Claims that wait in the queues of a store.

use std::time::Duration;

use super::left::Left;

/// The longest lease that a transfer gives. The owner extends it as soon as necessary. If the owner
/// does not react, the others wait for no longer than this.
const LONGEST_TRANSFER: Duration = Duration::from_secs(3);

/// The lease that a transfer gives to a claim of `term`.
pub fn transfer_term(term: Duration) -> Duration {
    term.min(LONGEST_TRANSFER)
}

/// How a claim waits in a queue of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queueing {
    /// It does not.
    None,
    /// Its subscription receives a message when the resource is given to it.
    Woken,
    /// It receives no messages, and makes attempts instead.
    Polling,
}

/// The entries that a claim may have in a queue, by the way in which it waits. A claim that begins to
/// wait in another way replaces its entry, and has both for as long as that request is not answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueEntries {
    woken: bool,
    polling: bool,
}

impl QueueEntries {
    pub fn only(queueing: Queueing) -> Self {
        Self::default().and(queueing)
    }

    /// These, and another one.
    pub fn and(self, queueing: Queueing) -> Self {
        Self {
            woken: self.woken || queueing == Queueing::Woken,
            polling: self.polling || queueing == Queueing::Polling,
        }
    }

    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Whether messages to the claim are expected.
    pub fn is_woken(self) -> bool {
        self.woken
    }

    /// The entry that a new one replaces, or that a claim has which does not wait any more.
    pub fn replaced_by(self, queueing: Queueing) -> Queueing {
        match queueing {
            Queueing::Woken | Queueing::None if self.polling => Queueing::Polling,
            Queueing::Polling | Queueing::None if self.woken => Queueing::Woken,
            _ => Queueing::None,
        }
    }
}

/// A claim in the queue of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// The rest of the holder's lease.
    pub left: Left,
    pub ticket: QueueTicket,
    /// The number of claims that come first.
    pub ahead: usize,
}

/// Identifies one stay of a claim in a queue. If a claim loses its place, its next stay has another
/// ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueTicket(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_replaced_by_one_of_the_other_kind() {
        let (woken, polling) = (Queueing::Woken, Queueing::Polling);
        assert!(QueueEntries::only(Queueing::None).is_empty());
        for (one, other) in [(woken, polling), (polling, woken)] {
            let entries = QueueEntries::only(one);
            assert_eq!(entries.replaced_by(other), one);
            assert_eq!(entries.replaced_by(one), Queueing::None);
            assert_eq!(entries.replaced_by(Queueing::None), one);
            assert_eq!(entries.is_woken(), one == woken);
            let both = entries.and(other);
            assert_eq!([both.replaced_by(one), both.replaced_by(other)], [other, one]);
            assert!(!both.is_empty());
        }
    }
}
