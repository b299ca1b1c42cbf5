//! The locks of a client.

use std::sync::Arc;
use std::time::Duration;

use super::client::PostgresClient;
use lock_core::maybe_ready::MaybeReady;
use lock_core::store::contract::{
    Acquired, Capabilities, Claim, Extension, Fenced, Lane, Layout, LockStore, Release, Released,
    ReleasedBatch, Renewal, Renewed, Resource, SendTrace, StoreAnswer, StoreError,
};
use lock_core::store::owner::OwnerId;
use lock_core::store::runner::AsyncRequests;
use lock_core::store::subscriptions::Subscription;
use lock_core::timeout::RequestTimeout;

/// The plain locks of a client.
pub(super) struct PostgresLocks {
    pub(super) client: Arc<PostgresClient>,
    pub(super) requests: Arc<AsyncRequests>,
}

impl LockStore for PostgresLocks {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> StoreAnswer<'a, Acquired> {
        let owned = self.requests.owned(claim.resource, claim.owner);
        // A request of a call that waits tells the holder so.
        let is_fresh = claim.fresh && !self.requests.is_waited_for(&owned.key);
        let (client, term) = (Arc::clone(&self.client), claim.term);
        let acquire = async move { client.acquire(&owned, term, is_fresh).await };
        self.requests.acquire(&self.client, &claim, (timeout, trace), acquire)
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        let (client, leases) = (Arc::clone(&self.client), self.requests.leases(batch));
        self.requests.renew(batch, async move { client.renew(&leases).await })
    }

    fn release<'a>(&'a self, release: Release<'a>, lane: Lane) -> StoreAnswer<'a, Released> {
        self.requests.release(&self.client, release, lane)
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        self.requests.release_all(&self.client, batch, lane)
    }

    fn fence<'a>(
        &'a self,
        resource: Resource<'a>,
        owner: OwnerId,
        at_least: u64,
    ) -> StoreAnswer<'a, Fenced> {
        let (client, hold) = (Arc::clone(&self.client), self.requests.owned(resource, owner));
        self.requests.request(Lane::Caller, async move { client.fence(&hold, at_least).await })
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
        self.requests.subscribe(resource.key, owner)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::with(&[Extension::KeptKeys, Extension::Tokens])
    }

    fn shown(&self) -> String {
        "the store `PostgreSQL`".to_owned()
    }

    fn name_in_transactions(&self, owner: OwnerId) -> Option<String> {
        Some(self.requests.token(owner))
    }

    fn layout(&self) -> &'static str {
        Layout::TOKEN.value()
    }
}
