//! The place of this process in a queue of the store, between two calls.
//!
//! A call that gives up leaves its place to the next call of this process that waits for the same
//! key. The place then keeps its turn, and costs no request. If there is no such call, the claim
//! leaves the queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::lease::Locked;
use crate::store::contract::{LockStore, Mode, is_same};
use crate::store::owner::OwnerId;
use crate::store::queueing::QueueEntries;
use crate::store::subscriptions::Subscription;

/// Removes claims from queues.
pub(crate) trait QueueKeeper: Send + Sync {
    /// Removes a claim from its queue in the background, or releases the key that was given to it.
    fn leave_queue(&self, locked: Locked);
}

/// A claim in a queue of the store. Dropping it makes the claim leave the queue.
pub(crate) struct QueuePlace {
    keeper: Arc<dyn QueueKeeper>,
    locked: Locked,
    entries: QueueEntries,
    /// `None` once another call has it.
    subscription: Option<Subscription>,
}

impl fmt::Debug for QueuePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePlace").field("key", &self.locked.key).finish_non_exhaustive()
    }
}

impl QueuePlace {
    pub(crate) fn new(
        keeper: Arc<dyn QueueKeeper>,
        locked: Locked,
        entries: QueueEntries,
        subscription: Subscription,
    ) -> Self {
        Self { keeper, locked, entries, subscription: Some(subscription) }
    }

    /// Takes the place over for a claim of `term` in the layout of `store` and in this mode. `None` if the
    /// claim does not match.
    pub(crate) fn take_over(
        mut self,
        (store, mode): (&Arc<dyn LockStore>, Mode),
        term: Duration,
    ) -> Option<(OwnerId, QueueEntries, Subscription)> {
        let is_same = is_same(&self.locked.store, store) && self.locked.mode == mode;
        if self.locked.term != term || !is_same {
            return None;
        }
        Some((self.locked.owner, self.entries, self.subscription.take()?))
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if self.subscription.take().is_some() {
            self.keeper.leave_queue(self.locked.clone());
        }
    }
}
