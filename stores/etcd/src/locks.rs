//! The locks of a client.

use std::sync::Arc;
use std::time::Duration;

use super::client::EtcdClient;
use super::errors::EtcdFailure;
use super::members::Members;
use super::presence::LeasePresence;
use super::transactions::SeenKey;
use super::watcher::WatchCommand;
use lock_core::client_info::ClientInfo;
use lock_core::error::LockError;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::{
    Acquired, Backend, Extension, Extensions, Fenced, Released, Renewed, StoreError,
};
use lock_core::store::runner::{
    AsyncBackend, AsyncClient, LeasePage, LeaseRequest, LeaseScan, Owned, RunsOn, StoredLease,
    WakeUps,
};
use lock_core::store::settings::Settings;

/// How often a waiting call makes an attempt. Deletions are told reliably, and an attempt is a write of etcd.
const POLL: Duration = Duration::from_secs(5);

/// The store of a client that uses these members.
pub(super) fn open(members: Members, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
    let client = |told: Option<ClientInfo>| {
        let client = EtcdClient::new(members, settings);
        let presence = |told| LeasePresence::new(told, &settings.namespace);
        client.leases.introduce(told.as_ref().map(presence));
        Arc::new(client)
    };
    Ok(AsyncBackend::open("etcd", settings, RunsOn::Callers, client)?)
}

impl AsyncClient for EtcdClient {
    async fn connect(self: &Arc<Self>, wake_ups: WakeUps) -> Result<(), StoreError> {
        self.start(wake_ups).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.check_writes().await
    }

    async fn acquire(&self, request: LeaseRequest) -> Result<Acquired, StoreError> {
        self.take(request).await.map_err(EtcdFailure::into_error)
    }

    async fn renew(&self, leases: &[(Owned, Duration)]) -> Vec<Result<Renewed, StoreError>> {
        self.extend(leases).await
    }

    async fn release(&self, owned: &Owned, keep: Duration) -> Result<Released, StoreError> {
        self.free(owned, keep).await.map_err(EtcdFailure::into_error)
    }

    async fn fence(&self, owned: &Owned, at_least: u64) -> Result<Fenced, StoreError> {
        let raised = self.members.raise_fence(owned, at_least).await;
        Ok(match raised.map_err(EtcdFailure::into_error)? {
            Ok(token) => Fenced::With(token),
            Err(SeenKey::Gone) => Fenced::Gone,
            Err(_) => Fenced::Taken,
        })
    }

    fn extensions(&self) -> Extensions {
        Extensions::of(&[Extension::KeptKeys, Extension::Tokens])
    }

    fn reports_changes(&self) -> bool {
        Safeguard::Tracking.is_on()
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

    async fn inspect(&self, key: &str) -> Result<Vec<StoredLease>, StoreError> {
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
