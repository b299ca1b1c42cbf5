//! The kinds of locks that a quorum does not have.

use std::time::Duration;

use lock_core::maybe_ready::MaybeReady;
use lock_core::store::contract::{
    Acquired, Capabilities, Claim, Fenced, Lane, Layout, LockStore, Release, Released,
    ReleasedBatch, Renewal, Renewed, Resource, SendTrace, StoreAnswer, StoreError,
};
use lock_core::store::owner::OwnerId;
use lock_core::store::subscriptions::{Subscription, Subscriptions};
use lock_core::timeout::RequestTimeout;

/// Refuses all requests about locks in a layout.
pub(super) struct UnsupportedStore {
    layout: Layout,
}

impl UnsupportedStore {
    pub(super) fn new(layout: Layout) -> Self {
        Self { layout }
    }

    fn refusal(&self) -> StoreError {
        let (option, kind) = match self.layout {
            Layout::ReadWrite => ("mode", "read-write locks"),
            Layout::Semaphore => ("permits", "semaphores"),
            Layout::Wire(_) | Layout::Vote => {
                ("wire_format", "locks in other formats than `Token`")
            }
        };
        let problem = format!(
            "a quorum has no {kind}, because its servers could disagree about their holders; use exclusive locks, or \
             a single server, sentinels or a cluster"
        );
        StoreError::Config { option, problem }
    }

    fn refuse<T>(&self) -> StoreAnswer<'static, T> {
        MaybeReady::ready(Err(self.refusal()))
    }
}

impl LockStore for UnsupportedStore {
    fn try_acquire<'a>(
        &'a self,
        _: Claim<'a>,
        _: RequestTimeout,
        _: &'a SendTrace,
    ) -> StoreAnswer<'a, Acquired> {
        self.refuse()
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        MaybeReady::ready(vec![Err(self.refusal()); batch.len()])
    }

    fn release<'a>(&'a self, _: Release<'a>, _: Lane) -> StoreAnswer<'a, Released> {
        self.refuse()
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        _: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        let answers = vec![Err(self.refusal()); batch.len()];
        MaybeReady::ready(ReleasedBatch { connection: None, answers })
    }

    fn fence<'a>(&'a self, _: Resource<'a>, _: OwnerId, _: u64) -> StoreAnswer<'a, Fenced> {
        self.refuse()
    }

    fn count_waiters<'a>(&'a self, _: Resource<'a>, _: Lane) -> StoreAnswer<'a, usize> {
        self.refuse()
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
        Subscriptions::local().listen(resource.key, resource.key, self.layout, owner)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn layout(&self) -> &'static str {
        self.layout.value()
    }
}
