//! What the checks of stores share.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::builder::source::StoreSource;
use crate::client::LockClient;
use crate::store::contract::{
    self, Acquired, Backend, BackgroundRuntimes, Claim, Fenced, Lane, Layout, LockStore, Queueing,
    Release, Released, Renewal, Renewed, Resource, SendTrace, StoreError,
};
use crate::store::hold_reports::HoldReports;
use crate::store::owner::OwnerId;
use crate::store::{OpenStore, Settings, StoreAddress};
use crate::sync::{Mutex, lock};
use crate::timeout::RequestTimeout;

/// A lease that does not end during a check.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// A lease whose end a check waits for.
pub(super) const SHORT: Duration = Duration::from_millis(400);

/// How long something may take that has to happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The response timeout of the clients.
const RESPONSE: Duration = Duration::from_secs(10);

/// A store that is checked. Each check makes clients of it: see [`store_conformance!`](crate::store_conformance).
pub struct CheckedStore {
    source: StoreSource,
    is_fresh: bool,
}

/// Without its URL.
impl fmt::Debug for CheckedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckedStore").field("is_fresh", &self.is_fresh).finish_non_exhaustive()
    }
}

impl CheckedStore {
    /// A custom store.
    pub fn new(store: impl OpenStore) -> Self {
        Self { source: StoreSource::Custom(Arc::new(store)), is_fresh: false }
    }

    /// The store of this URL.
    pub fn url(url: impl Into<String>) -> Self {
        let source = StoreSource::Address(StoreAddress::Url(url.into()));
        Self { source, is_fresh: false }
    }

    /// The same store, but each key seems to be free, so that the store may begin with its cheapest request.
    #[must_use]
    pub fn fresh(self) -> Self {
        Self { is_fresh: true, ..self }
    }

    /// A client of the library.
    pub(super) async fn client(&self, lease: Duration) -> LockClient {
        let builder = LockClient::builder().lease(lease);
        let connected = builder.from(&self.source).connect().await;
        connected.expect("the store connects")
    }

    /// Its plain locks, without the engine of a client.
    pub(super) async fn connect(&self) -> CheckedLocks {
        self.connect_to(Layout::TOKEN).await.expect("the check has failed otherwise")
    }

    /// Its locks in this layout, if it has some.
    pub(super) async fn connect_to(&self, layout: Layout) -> Option<CheckedLocks> {
        let backend = self.source.open(&Settings::new(LONG, RESPONSE)).expect("the store");
        let here = Handle::current();
        let runtimes = BackgroundRuntimes { renewals: here.clone(), wake_ups: here };
        backend.adopt(&runtimes, HoldReports::new(drop));
        backend.connect().await.expect("the store connects");
        let locks = match backend.handle(layout) {
            Ok(locks) => locks,
            Err(lacking) => {
                assert!(layout != Layout::TOKEN, "each store has plain locks: {lacking:?}");
                let is_config = matches!(lacking, StoreError::Config { .. });
                assert!(is_config, "what a store lacks is a mistake of its user: {lacking:?}");
                return None;
            }
        };
        let again = backend.handle(layout).expect("a layout that the store has");
        assert!(contract::is_same(&locks, &again), "a layout has one handle");
        let asked = Mutex::default();
        Some(CheckedLocks { backend, locks, is_fresh: self.is_fresh, asked })
    }
}

/// The locks of a client in one layout.
pub(super) struct CheckedLocks {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) locks: Arc<dyn LockStore>,
    is_fresh: bool,
    /// What was asked for: the second request of an owner is never a fresh one.
    asked: Mutex<HashSet<(String, OwnerId)>>,
}

impl CheckedLocks {
    pub(super) async fn acquire(
        &self,
        key: &str,
        owner: OwnerId,
        term: Duration,
    ) -> Result<Acquired, StoreError> {
        self.attempt(Claim::exclusive(key, owner, term)).await
    }

    async fn attempt(&self, claim: Claim<'_>) -> Result<Acquired, StoreError> {
        let is_first = lock(&self.asked).insert((claim.resource.key.to_owned(), claim.owner));
        // A claim that waits is never a fresh one.
        let fresh = self.is_fresh && is_first && claim.queueing == Queueing::None;
        let claim = Claim { fresh, ..claim };
        let trace = SendTrace::default();
        self.locks.try_acquire(claim, RequestTimeout::of(RESPONSE), &trace).await
    }

    /// Whether an owner gets a resource for a [`LONG`] term.
    pub(super) async fn takes(&self, resource: Resource<'_>, owner: OwnerId) -> bool {
        self.claim(Claim { resource, ..Claim::exclusive(resource.key, owner, LONG) })
            .await
            .is_grant()
    }

    pub(super) async fn claim(&self, claim: Claim<'_>) -> Acquired {
        let answer = self.attempt(claim).await;
        answer.unwrap_or_else(|error| panic!("an attempt failed: {error:?}"))
    }

    /// An owner of a resource loses it.
    pub(super) async fn frees(&self, resource: Resource<'_>, owner: OwnerId) {
        let release = Release { resource, ..Release::exclusive(resource.key, owner) };
        let released = self.locks.release(release, Lane::Caller).await;
        assert!(
            matches!(released, Ok(Released::Freed { .. })),
            "a release by an owner: {released:?}"
        );
    }

    /// Extends leases of keys in one place to this term.
    pub(super) async fn renew(
        &self,
        leases: &[(&str, OwnerId)],
        term: Duration,
    ) -> Vec<Result<Renewed, StoreError>> {
        let renewal = |&(key, owner)| Renewal::exclusive(key, owner, term);
        let batch: Vec<_> = leases.iter().map(renewal).collect();
        self.locks.renew(&batch, Lane::Background).await
    }

    pub(super) async fn release(
        &self,
        key: &str,
        owner: OwnerId,
        keep: Duration,
    ) -> Result<Released, StoreError> {
        let release = Release { keep, ..Release::exclusive(key, owner) };
        self.locks.release(release, Lane::Caller).await
    }

    pub(super) async fn fence(
        &self,
        key: &str,
        owner: OwnerId,
        at_least: u64,
    ) -> Result<Fenced, StoreError> {
        self.locks.fence(Resource::exclusive(key), owner, at_least).await
    }
}

/// A key and owners of a check.
#[derive(Debug, Clone)]
pub(super) struct Fixture {
    pub(super) key: String,
    pub(super) owners: [OwnerId; 2],
}

impl Fixture {
    /// One that no other check uses.
    pub(super) fn new() -> Self {
        Self { key: new_key(), owners: [owner(), owner()] }
    }

    /// The same owners, for a key that begins with this one.
    pub(super) fn behind(&self, end: &str) -> Self {
        Self { key: format!("{}{end}", self.key), owners: self.owners }
    }

    /// The owner extends its lease to this term.
    pub(super) async fn renew(
        &self,
        locks: &CheckedLocks,
        owner: usize,
        term: Duration,
    ) -> Result<Renewed, StoreError> {
        let mut renewed = locks.renew(&[(&self.key, self.owners[owner])], term).await;
        assert_eq!(renewed.len(), 1, "one lease has one answer");
        renewed.remove(0)
    }

    /// The owner releases the key, which then stays taken for `keep`.
    pub(super) async fn release(
        &self,
        locks: &CheckedLocks,
        owner: usize,
        keep: Duration,
    ) -> Result<Released, StoreError> {
        locks.release(&self.key, self.owners[owner], keep).await
    }

    /// One owner gets the key. Returns the fencing token of the grant.
    pub(super) async fn acquire(
        &self,
        locks: &CheckedLocks,
        owner: usize,
        term: Duration,
    ) -> Option<u64> {
        match locks.acquire(&self.key, self.owners[owner], term).await {
            Ok(Acquired::Granted(grant)) => grant.fence,
            other => panic!("a free key was not granted: {other:?}"),
        }
    }

    /// The owner loses the key.
    pub(super) async fn free(&self, locks: &CheckedLocks, owner: usize) {
        let released = self.release(locks, owner, Duration::ZERO).await;
        assert!(
            matches!(released, Ok(Released::Freed { .. })),
            "a release by the owner: {released:?}"
        );
    }

    /// Whether the owner gets the key, if it is free now.
    pub(super) async fn tries(&self, locks: &CheckedLocks, owner: usize, term: Duration) -> bool {
        match locks.acquire(&self.key, self.owners[owner], term).await {
            Ok(acquired) => acquired.is_grant(),
            Err(error) => panic!("an attempt failed: {error:?}"),
        }
    }

    /// The owner gets the key as soon as it is free.
    pub(super) async fn gets(&self, locks: &CheckedLocks, owner: usize, term: Duration) {
        let began = Instant::now();
        while !self.tries(locks, owner, term).await {
            assert!(
                began.elapsed() < PATIENCE,
                "the key of a lease of {SHORT:?} is not free after {PATIENCE:?}"
            );
            tokio::time::sleep(SHORT / 20).await;
        }
    }
}

/// A new key. Keys that begin with it are in one slot of a cluster.
pub(super) fn new_key() -> String {
    format!("{{conformance:{}}}", String::from_utf8_lossy(&owner().to_text()))
}

/// A new owner.
pub(super) fn owner() -> OwnerId {
    OwnerId::new().expect("randomness")
}
