//! The holds of read-write locks that the readers of this process share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::handoff::Hold;
use crate::capacity::Peak;
use crate::clock::BootInstant;
use crate::store::contract::Mode;
use crate::sync::{Mutex, lock};

/// The holds that readers may join.
#[derive(Debug, Default)]
pub(crate) struct SharedReads {
    holds: Mutex<ReadHolds>,
}

#[derive(Debug, Default)]
struct ReadHolds {
    by_key: HashMap<Arc<str>, Hold>,
    peak: Peak,
}

impl SharedReads {
    /// Lets readers join a hold, if its terms allow it. So many readers wait for it already.
    /// Returns whether they do.
    pub(super) fn share(&self, hold: &Hold, waiting: usize) -> bool {
        let is_shared = hold.share(waiting);
        if is_shared {
            let before = lock(&self.holds).by_key.insert(Arc::clone(hold.key()), hold.clone());
            drop(before);
        }
        is_shared
    }

    /// The hold that readers of this key may join.
    pub(super) fn of(&self, key: &str) -> Option<Hold> {
        lock(&self.holds).by_key.get(key).cloned()
    }

    /// Lets no more readers join a hold.
    pub(super) fn forget(&self, hold: &Hold) {
        let mut holds = lock(&self.holds);
        let ReadHolds { by_key, peak } = &mut *holds;
        let before = by_key.len();
        let Entry::Occupied(entry) = by_key.entry(Arc::clone(hold.key())) else { return };
        let forgotten = entry.get().is(hold).then(|| entry.remove());
        peak.give_back(by_key, before);
        drop(holds);
        drop(forgotten);
    }

    /// A holder has left. If it was the last one, no reader can join the hold any more.
    pub(super) fn left(&self, hold: &Hold) {
        if hold.lease().locked().mode != Mode::Exclusive && hold.deadline() == BootInstant::PAST {
            self.forget(hold);
        }
    }
}
