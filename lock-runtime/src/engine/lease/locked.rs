//! The key of a lease, its owner, and its store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::store::contract::{LockStore, Mode, Origin, Release, Resource};
use crate::store::owner::OwnerId;

/// The key of a lease, its owner, and its store.
#[derive(Clone)]
pub(crate) struct Locked {
    pub(crate) key: Arc<str>,
    /// The mode of the request that acquired the lock.
    pub(crate) mode: Mode,
    pub(crate) owner: OwnerId,
    /// The handle that granted the lease.
    pub(crate) store: Arc<dyn LockStore>,
    /// The origin of the requests of the acquisition that may still take effect, if there are any.
    pub(crate) doubt: Option<Origin>,
    /// The term of the claim.
    pub(crate) term: Duration,
    /// Whether the claim may have an entry in a queue of the store.
    pub(crate) queued: bool,
}

impl Locked {
    pub(crate) fn resource(&self) -> Resource<'_> {
        Resource { key: &self.key, mode: self.mode }
    }

    pub(crate) fn release(&self, keep: Duration, leaves_gap: bool) -> Release<'_> {
        let queued = self.queued.then_some(self.term);
        Release { resource: self.resource(), owner: self.owner, keep, queued, leaves_gap }
    }
}

impl fmt::Debug for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, mode, owner, store: _, doubt, term: _, queued: _ } = self;
        let mut locked = f.debug_struct("Locked");
        locked
            .field("key", key)
            .field("mode", mode)
            .field("owner", owner)
            .field("doubt", doubt)
            .finish_non_exhaustive()
    }
}
