//! The store of a client whose requests are asynchronous functions.

use std::sync::{Arc, OnceLock};

use super::leases::{LeaseInspector, StoredLeases};
use super::requests::{RequestRunner, RunsOn};
use super::wake_ups::WakeUps;
use super::watches::WatchedKeys;
use crate::client_info::ClientInfo;
use crate::error::LockError;
use crate::maybe_ready::MaybeReady;
use crate::store::contract::{
    Asker, Backend, BackgroundRuntimes, KeyInspector, Lane, Layout, LockStore, StoreAnswer,
    StoreError,
};
use crate::store::hold_reports::HoldReports;
use crate::store::key_holder::KeyHolder;
use crate::store::owner::{ClientTag, OwnerId};
use crate::store::settings::Settings;
use crate::store::subscriptions::{Subscription, Subscriptions};
use crate::store::unsupported::UnsupportedLocks;

/// A client of a store.
pub trait AsyncClient: WatchedKeys + StoredLeases {
    /// What errors call the store, such as "the store `etcd`".
    const SHOWN: &'static str;

    /// Connects to the store and checks it. From now on, the store calls `wake_ups` when keys become free, if it can.
    fn connect(
        self: &Arc<Self>,
        wake_ups: WakeUps,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Fails unless locks can be acquired and renewed now.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// What the locks of a client need to run its requests.
pub struct AsyncRequests {
    pub runner: Arc<RequestRunner>,
    /// What the client tells about itself, with its id.
    pub told: Option<ClientInfo>,
    subscriptions: Arc<Subscriptions>,
    tag: ClientTag,
}

impl AsyncRequests {
    /// Those of a new client.
    pub fn new(settings: &Settings, runs_on: RunsOn) -> Result<Arc<Self>, LockError> {
        let tag = ClientTag::of_new_client()?;
        let told = settings.told.clone().map(|told| told.with_id(tag.to_text()));
        let runner = RequestRunner::start(settings.response_timeout, runs_on)?;
        let subscriptions = Subscriptions::remote(Arc::default());
        Ok(Arc::new(Self { runner, told, subscriptions, tag }))
    }

    /// The token of an owner: 32 letters, digits and the characters `-`, `_` and `.`. No other acquisition has the same one.
    /// Who knows it can release the lock, so it must not be logged.
    pub fn token(&self, owner: OwnerId) -> String {
        self.tag.owner_name(owner)
    }

    /// Whether calls of the client wait for a key.
    pub fn is_waited_for(&self, key: &str) -> bool {
        self.subscriptions.is_live(key)
    }

    /// See [`LockStore::subscribe`].
    pub fn subscribe(&self, key: &str, owner: OwnerId) -> Subscription {
        self.subscriptions.listen(key, key, Layout::TOKEN, owner)
    }
}

/// The store of a client that has plain locks only.
pub struct AsyncBackend<C> {
    client: Arc<C>,
    requests: Arc<AsyncRequests>,
    locks: Arc<dyn LockStore>,
    unsupported: [Arc<UnsupportedLocks>; Layout::ALL.len()],
    inspector: LeaseInspector<C>,
    reports: OnceLock<HoldReports>,
}

impl<C: AsyncClient> AsyncBackend<C> {
    /// `locks` are the plain locks of the client.
    pub fn new(
        client: Arc<C>,
        requests: Arc<AsyncRequests>,
        locks: Arc<dyn LockStore>,
    ) -> Arc<Self> {
        let (leases, runner) = (Arc::clone(&client), Arc::clone(&requests.runner));
        let inspector = LeaseInspector::new(leases, runner, (requests.told.clone(), requests.tag));
        let unsupported = UnsupportedLocks::of_all(C::SHOWN, "");
        Arc::new(Self { client, requests, locks, unsupported, inspector, reports: OnceLock::new() })
    }
}

impl<C: AsyncClient> Backend for AsyncBackend<C> {
    fn adopt(&self, _: &BackgroundRuntimes, reports: HoldReports) {
        // It is called once.
        let _ = self.reports.set(reports);
    }

    fn connect(&self) -> MaybeReady<'_, Result<(), LockError>> {
        let AsyncRequests { runner, subscriptions, .. } = &*self.requests;
        let wake_ups = WakeUps::new(subscriptions, self.reports.get().cloned());
        let client = Arc::clone(&self.client);
        let connected = async move { client.connect(wake_ups).await };
        runner.connect(connected, &self.client, subscriptions)
    }

    fn check_readiness(&self, layout: Layout) -> StoreAnswer<'_, ()> {
        if let Some(refusal) = self.unsupported[layout.index()].refusal() {
            return MaybeReady::ready(Err(refusal));
        }
        let client = Arc::clone(&self.client);
        self.requests.runner.request(Lane::Background, async move { client.check().await })
    }

    fn holder<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<KeyHolder>> {
        self.inspector.holder(key)
    }

    fn inspector(&self) -> Result<&dyn KeyInspector, StoreError> {
        Ok(&self.inspector)
    }

    fn has_questions(&self) -> bool {
        false
    }

    fn asker(&self, _: &str) -> Result<Box<dyn Asker>, StoreError> {
        Err(StoreError::lacking(C::SHOWN, "url", "clients that `LockAdmin` can ask"))
    }

    fn handle(&self, layout: Layout) -> Arc<dyn LockStore> {
        if layout == Layout::TOKEN {
            return Arc::clone(&self.locks);
        }
        Arc::clone(&self.unsupported[layout.index()]) as Arc<dyn LockStore>
    }
}
