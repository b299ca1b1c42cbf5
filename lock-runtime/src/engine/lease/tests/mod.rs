//! Unit tests of a lease and its holds. No request is sent to a store.

mod ending;
mod extension;
mod handoff;
mod loss;
mod transfer;

use super::*;
use crate::engine::fairness::limit::HandoffLimit;
use crate::engine::handoff::{Hold, LocalQueues, Permit};
use crate::engine::testing::{self, UNREAD};
use crate::replicas::RequiredReplicas;

const TERM: Duration = Duration::from_secs(10);

/// The terms of a renewed lease.
fn terms() -> Terms {
    Terms {
        term: TERM,
        renewed: true,
        max_hold: None,
        min_hold: Duration::ZERO,
        acknowledged_by: RequiredReplicas::NONE,
        linger: Duration::ZERO,
        site: &UNREAD,
    }
}

/// The same with the acknowledgement of this number of replicas.
fn acknowledged_by(at_least: u32) -> Terms {
    Terms { acknowledged_by: RequiredReplicas { at_least, all: false }, ..terms() }
}

/// The same with a fixed lease of this length.
fn fixed(term: Duration) -> Terms {
    Terms { term, renewed: false, ..terms() }
}

/// The first hold of a lease that was granted at `sent`.
fn granted(sent: BootInstant, terms: &Terms) -> (Arc<LocalQueues>, Hold) {
    let queues = Arc::new(LocalQueues::default());
    let hold = testing::hold(&queues, "k", terms, sent);
    (queues, hold)
}

/// The first hold of a renewed lease that was granted at `sent`.
fn renewed(sent: BootInstant) -> (Arc<LocalQueues>, Hold) {
    granted(sent, &terms())
}

/// A holder leaves, and there are no waiters.
fn leave(hold: &Hold) -> Ending<Permit> {
    hold.leave((None, true), None, BootInstant::now()).2
}

/// A holder leaves, and the lock is handed off to a waiter if that is possible.
fn hand_off(hold: &Hold) -> Option<Permit> {
    match hold.leave((Some(&HandoffLimit::default()), true), None, BootInstant::now()) {
        (None, _, Ending::HandOff { permit, .. }) => Some(permit),
        _ => None,
    }
}
