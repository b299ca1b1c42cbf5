//! The locks of a client.

use std::sync::Arc;
use std::time::Duration;

use super::client::{EtcdClient, KeyRequest};
use super::errors::EtcdFailure;
use super::members::Members;
use super::presence::LeasePresence;
use super::transactions::SeenKey;
use super::watcher::WatchCommand;
use lock_core::client_info::ClientInfo;
use lock_core::error::LockError;
use lock_core::maybe_ready::MaybeReady;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::{
    Acquired, Backend, Capabilities, Claim, Extension, Fenced, Lane, Layout, LockStore, Release,
    Released, ReleasedBatch, Renewal, Renewed, Resource, SendTrace, StoreAnswer, StoreError,
};
use lock_core::store::owner::OwnerId;
use lock_core::store::runner::{
    AsyncBackend, AsyncClient, AsyncRequests, LeasePage, LeaseScan, Owned, RunsOn, StoredLease,
    WakeUps,
};
use lock_core::store::settings::Settings;
use lock_core::store::subscriptions::Subscription;
use lock_core::timeout::RequestTimeout;

/// How often a waiting call makes an attempt. Deletions are told reliably, and an attempt is a write of etcd.
const POLL: Duration = Duration::from_secs(5);

/// The plain locks of a client.
struct EtcdLocks {
    client: Arc<EtcdClient>,
    requests: Arc<AsyncRequests>,
}

/// The store of a client that uses these members.
pub(super) fn open(members: Members, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
    let requests = AsyncRequests::new(settings, RunsOn::Callers)?;
    let client = EtcdClient::new(members, settings);
    let presence = |told| LeasePresence::new(told, &settings.namespace);
    client.leases.introduce(requests.told.as_ref().map(presence));
    let locks = EtcdLocks { client: Arc::clone(&client), requests: Arc::clone(&requests) };
    Ok(AsyncBackend::new(client, requests, Arc::new(locks)))
}

impl LockStore for EtcdLocks {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> StoreAnswer<'a, Acquired> {
        let owned = self.requests.owned(claim.resource, claim.owner);
        // A request of a call that waits tells the holder so.
        let fresh = claim.fresh && !self.requests.is_waited_for(&owned.key);
        let request = KeyRequest { owned, term: claim.term, renewed: claim.renewed, fresh };
        let client = Arc::clone(&self.client);
        let acquire = async move { client.acquire(request).await.map_err(EtcdFailure::into_error) };
        self.requests.acquire(&self.client, &claim, (timeout, trace), acquire)
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        let (client, leases) = (Arc::clone(&self.client), self.requests.leases(batch));
        self.requests.renew(batch, async move { client.extend(&leases).await })
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
        self.requests.request(Lane::Caller, async move {
            let raised = client.members.raise_fence(&hold, at_least).await;
            Ok(match raised.map_err(EtcdFailure::into_error)? {
                Ok(token) => Fenced::With(token),
                Err(SeenKey::Gone) => Fenced::Gone,
                Err(_) => Fenced::Taken,
            })
        })
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
        self.requests.subscribe(resource.key, owner)
    }

    fn capabilities(&self) -> Capabilities {
        if Safeguard::Tracking.is_on() {
            return Capabilities::with(&[
                Extension::KeptKeys,
                Extension::Tokens,
                Extension::ChangeReports,
            ]);
        }
        Capabilities::with(&[Extension::KeptKeys, Extension::Tokens])
    }

    fn shown(&self) -> String {
        "the store `etcd`".to_owned()
    }

    fn layout(&self) -> &'static str {
        Layout::TOKEN.value()
    }
}

impl AsyncClient for EtcdClient {
    async fn connect(self: &Arc<Self>, wake_ups: WakeUps) -> Result<(), StoreError> {
        self.start(wake_ups).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.check_writes().await
    }

    async fn release(&self, owned: &Owned, keep: Duration) -> Result<Released, StoreError> {
        self.free(owned, keep).await.map_err(EtcdFailure::into_error)
    }

    async fn watch(&self, key: &str) -> Result<(), StoreError> {
        self.watch_released(key).await.map_err(EtcdFailure::into_error)
    }

    async fn unwatch(&self, key: &str) {
        self.tell_watcher(WatchCommand::NoWait { key: key.to_owned() });
    }

    fn poll_interval(&self) -> Duration {
        POLL
    }

    async fn inspect(&self, key: &str) -> Result<Option<StoredLease>, StoreError> {
        self.members.inspect(key).await.map_err(EtcdFailure::into_error)
    }

    async fn scan(&self, scan: LeaseScan<'_>) -> Result<LeasePage, StoreError> {
        self.members.scan(scan).await.map_err(EtcdFailure::into_error)
    }

    async fn clients(&self, ids: &[String]) -> Result<Vec<ClientInfo>, StoreError> {
        match self.members.clients(ids, &self.namespace).await {
            Err(failure) if failure.is_missing_permission() => Ok(Vec::new()),
            found => found.map_err(EtcdFailure::into_error),
        }
    }
}
