//! The store of a client whose requests are asynchronous functions.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::client::{AsyncClient, Owned};
use super::leases::LeaseInspector;
use super::requests::{CONNECTION, RequestRunner, RunsOn};
use super::wake_ups::WakeUps;
use crate::client_info::ClientInfo;
use crate::error::LockError;
use crate::join::join_all;
use crate::maybe_ready::MaybeReady;
use crate::store::contract::{
    Acquired, Backend, BackgroundRuntimes, Claim, KeyInspector, Lane, Layout, LockStore, Release,
    Released, ReleasedBatch, Renewal, Renewed, Resource, SendTrace, StoreAnswer, StoreError,
};
use crate::store::hold_reports::HoldReports;
use crate::store::key_holder::KeyHolder;
use crate::store::owner::{ClientTag, OwnerId};
use crate::store::settings::Settings;
use crate::store::subscriptions::{Subscription, Subscriptions};
use crate::timeout::RequestTimeout;

/// The shortest term that a store is asked for.
const SHORTEST_TERM: Duration = Duration::from_millis(10);

/// What the locks of a client need to run its requests.
pub struct AsyncRequests {
    /// What the client tells about itself, with its id.
    pub told: Option<ClientInfo>,
    runner: Arc<RequestRunner>,
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
        Ok(Arc::new(Self { told, runner, subscriptions, tag }))
    }

    /// A resource and its owner.
    pub fn owned(&self, resource: Resource<'_>, owner: OwnerId) -> Owned {
        Owned { key: resource.key.to_owned(), owner: self.token(owner) }
    }

    /// The leases that renewals ask for, with their terms.
    pub fn leases(&self, batch: &[Renewal<'_>]) -> Vec<(Owned, Duration)> {
        // A shorter term stands for a verification.
        let lease =
            |one: &Renewal<'_>| (self.owned(one.resource, one.owner), one.term.max(SHORTEST_TERM));
        batch.iter().map(lease).collect()
    }

    /// The token of an owner: 32 letters, digits and the characters `-`, `_` and `.`. No other acquisition has the same one.
    /// Who knows it can release the lock, so it must not be logged.
    pub fn token(&self, owner: OwnerId) -> String {
        self.tag.owner_name(owner)
    }

    /// Runs a request of a lane, for a response timeout at most.
    pub fn request<T: Send + 'static>(
        &self,
        lane: Lane,
        request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> StoreAnswer<'static, T> {
        self.runner.request(lane, request)
    }

    /// Runs an attempt to acquire a key. It goes on for a response timeout after its caller has given up. If its owner was
    /// released meanwhile, it is released again.
    pub fn acquire<C: AsyncClient>(
        &self,
        client: &Arc<C>,
        claim: &Claim<'_>,
        limits: (RequestTimeout, &SendTrace),
        request: impl Future<Output = Result<Acquired, StoreError>> + Send + 'static,
    ) -> StoreAnswer<'static, Acquired> {
        self.runner.acquire(
            claim.owner,
            limits,
            request,
            self.releasing(client, claim.resource, claim.owner),
        )
    }

    /// Runs a batch of renewals. Answers that are missing are unknown.
    pub fn renew(
        &self,
        batch: &[Renewal<'_>],
        request: impl Future<Output = Vec<Result<Renewed, StoreError>>> + Send + 'static,
    ) -> MaybeReady<'static, Vec<Result<Renewed, StoreError>>> {
        self.runner.renew(batch.len(), request)
    }

    /// Runs a release after the acquires of its owner.
    pub fn release<C: AsyncClient>(
        &self,
        client: &Arc<C>,
        Release { resource, owner, keep, .. }: Release<'_>,
        lane: Lane,
    ) -> StoreAnswer<'static, Released> {
        self.runner.release((owner, keep), lane, self.releasing(client, resource, owner))
    }

    /// Runs several releases. None of them has to be repeated because of an acquire that ends later: see
    /// [`acquire`](Self::acquire).
    pub fn release_all<'a, C: AsyncClient>(
        &self,
        client: &Arc<C>,
        batch: &[Release<'_>],
        lane: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        let releases: Vec<_> =
            batch.iter().map(|release| self.release(client, *release, lane)).collect();
        MaybeReady::pending(async move {
            ReleasedBatch {
                connection: Some(CONNECTION),
                answers: join_all(releases.into_iter()).await,
            }
        })
    }

    /// Releases an owner, as often as it is called.
    fn releasing<C: AsyncClient>(
        &self,
        client: &Arc<C>,
        resource: Resource<'_>,
        owner: OwnerId,
    ) -> impl Fn(Duration) -> BoxedRelease + Send + Sync + use<C> {
        let released = Arc::new((Arc::clone(client), self.owned(resource, owner)));
        move |keep| {
            let released = Arc::clone(&released);
            Box::pin(async move { released.0.release(&released.1, keep).await })
        }
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

type BoxedRelease = Pin<Box<dyn Future<Output = Result<Released, StoreError>> + Send>>;

/// The store of a client that has plain locks only.
pub struct AsyncBackend<C> {
    client: Arc<C>,
    requests: Arc<AsyncRequests>,
    locks: Arc<dyn LockStore>,
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
        Arc::new(Self { client, requests, locks, inspector, reports: OnceLock::new() })
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
        if let Err(refusal) = self.handle(layout) {
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

    fn handle(&self, layout: Layout) -> Result<Arc<dyn LockStore>, StoreError> {
        match layout.extension() {
            None => Ok(Arc::clone(&self.locks)),
            Some(extension) => Err(extension.lacking(&self.locks.shown())),
        }
    }
}
