//! The layouts that a store does not have.

use std::sync::Arc;
use std::time::Duration;

use super::contract::{
    Acquired, Claim, Lane, Layout, LockStore, Release, Released, Renewal, Renewed, Resource,
    SendTrace, StoreAnswer, StoreError,
};
use super::owner::OwnerId;
use super::subscriptions::{Subscription, Subscriptions};
use crate::maybe_ready::MaybeReady;
use crate::timeout::RequestTimeout;

/// Refuses all requests about locks in a layout.
pub struct UnsupportedLocks {
    layout: Layout,
    refusal: StoreError,
}

impl UnsupportedLocks {
    /// A store that has only plain locks lacks `layout`. `shown` is what errors call the store, and `advice`, which may be empty,
    /// says what to do instead.
    pub fn new(layout: Layout, shown: &str, advice: &str) -> Self {
        let (option, what) = match layout {
            Layout::ReadWrite => ("mode", "read-write locks"),
            Layout::Semaphore => ("permits", "semaphores"),
            Layout::Vote => ("quorum", "votes"),
            Layout::Wire(_) => ("wire_format", "locks in other formats than `Token`"),
        };
        let refusal = StoreError::lacking(shown, option, &format!("{what}{advice}"));
        Self { layout, refusal }
    }

    /// One for each layout. That of plain locks is not to be used.
    pub fn of_all(shown: &str, advice: &str) -> [Arc<Self>; Layout::ALL.len()] {
        Layout::ALL.map(|layout| Arc::new(Self::new(layout, shown, advice)))
    }

    /// The error of each request; `None` for plain locks.
    pub fn refusal(&self) -> Option<StoreError> {
        (self.layout != Layout::TOKEN).then(|| self.refusal.clone())
    }
}

impl LockStore for UnsupportedLocks {
    fn try_acquire<'a>(
        &'a self,
        _: Claim<'a>,
        _: RequestTimeout,
        _: &'a SendTrace,
    ) -> StoreAnswer<'a, Acquired> {
        MaybeReady::ready(Err(self.refusal.clone()))
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        MaybeReady::ready(vec![Err(self.refusal.clone()); batch.len()])
    }

    fn release<'a>(&'a self, _: Release<'a>, _: Lane) -> StoreAnswer<'a, Released> {
        MaybeReady::ready(Err(self.refusal.clone()))
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
        Subscriptions::local().listen(resource.key, resource.key, self.layout, owner)
    }

    fn layout(&self) -> &'static str {
        self.layout.value()
    }
}
