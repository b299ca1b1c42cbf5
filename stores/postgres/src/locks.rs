//! The locks of a client.

use std::sync::Arc;
use std::time::Duration;

use super::client::{Owned, PostgresClient};
use lock_core::maybe_ready::MaybeReady;
use lock_core::store::contract::{
    Acquired, Capabilities, Claim, Fenced, Lane, Layout, LockStore, Release, Released, Renewal,
    Renewed, Resource, SendTrace, StoreAnswer, StoreError,
};
use lock_core::store::owner::OwnerId;
use lock_core::store::runner::{AsyncClient, AsyncRequests, SHORTEST_TERM};
use lock_core::store::subscriptions::Subscription;
use lock_core::timeout::RequestTimeout;

/// The plain locks of a client.
pub(super) struct PostgresLocks {
    pub(super) client: Arc<PostgresClient>,
    pub(super) requests: Arc<AsyncRequests>,
}

impl PostgresLocks {
    fn owned(&self, resource: Resource<'_>, owner: OwnerId) -> Owned {
        Owned { key: resource.key.to_owned(), owner: self.requests.token(owner) }
    }
}

impl LockStore for PostgresLocks {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> StoreAnswer<'a, Acquired> {
        let owned = self.owned(claim.resource, claim.owner);
        // A request of a call that waits tells the holder so.
        let is_fresh = claim.fresh && !self.requests.is_waited_for(&owned.key);
        let (client, term) = (Arc::clone(&self.client), claim.term);
        let late = Arc::new((Arc::clone(&self.client), owned.clone()));
        let acquire = async move { client.acquire(&owned, term, is_fresh).await };
        self.requests.runner.acquire(&claim, (timeout, trace), acquire, move |keep| {
            let late = Arc::clone(&late);
            async move { late.0.release(&late.1, keep).await }
        })
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        let client = Arc::clone(&self.client);
        let all: Vec<_> = batch
            .iter()
            .map(|one| (self.owned(one.resource, one.owner), one.term.max(SHORTEST_TERM)))
            .collect();
        self.requests.runner.renew(batch.len(), async move { client.renew(&all).await })
    }

    fn release<'a>(&'a self, release: Release<'a>, lane: Lane) -> StoreAnswer<'a, Released> {
        let sent = (Arc::clone(&self.client), self.owned(release.resource, release.owner));
        let (sent, keep) = (Arc::new(sent), release.keep);
        MaybeReady::pending(self.requests.runner.release((release.owner, keep), lane, move || {
            let sent = Arc::clone(&sent);
            async move { sent.0.release(&sent.1, keep).await }
        }))
    }

    fn fence<'a>(
        &'a self,
        resource: Resource<'a>,
        owner: OwnerId,
        at_least: u64,
    ) -> StoreAnswer<'a, Fenced> {
        let (client, hold) = (Arc::clone(&self.client), self.owned(resource, owner));
        self.requests
            .runner
            .request(Lane::Caller, async move { client.fence(&hold, at_least).await })
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
        self.requests.subscribe(resource.key, owner)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { counts_waiters: false, acknowledges: false, ..Capabilities::ALL }
    }

    fn shown(&self) -> String {
        PostgresClient::SHOWN.to_owned()
    }

    fn name_in_transactions(&self, owner: OwnerId) -> Option<String> {
        Some(self.requests.token(owner))
    }

    fn layout(&self) -> &'static str {
        Layout::TOKEN.value()
    }
}
