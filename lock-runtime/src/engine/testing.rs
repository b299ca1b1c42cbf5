//! Helpers for the unit tests of the engine.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::{self, AcquireRequest};
use super::extend::LeaseExtension;
use super::fairness::limit::HandoffLimit;
use super::handoff::{Hold, LocalQueues, Permit};
use super::lease::{Locked, Terms};
use super::local_queue::Entered;
use super::shutdown::wait_until;
use super::{Config, Engine};
use crate::clock::BootInstant;
use crate::error::LockError;
use crate::replicas::RequiredReplicas;
use crate::store::contract::{
    Acquired, Backend, Grant, Lane, LockStore, Mode, Release, Resource, SendTrace,
};
pub(crate) use crate::store::faulty::claim;
use crate::store::faulty::{FaultyStore, OneStore};
use crate::store::memory::MemoryStore;
use crate::store::owner::OwnerId;
use crate::telemetry::SiteMetrics;
use crate::timeout::{RequestTimeout, Timeout, Wait};

/// The unit of all durations, and the lease of tests that wait for its end.
pub(crate) const LEASE: Duration = Duration::from_millis(300);

/// The lease of tests that rely on its renewals. A busy machine may renew it two thirds of it late.
pub(crate) const RENEWED_LEASE: Duration = LEASE.saturating_mul(10);

/// An engine, and the store of its requests.
#[derive(Clone)]
pub(crate) struct TestEngine {
    engine: Arc<Engine>,
    store: Arc<dyn LockStore>,
}

impl Deref for TestEngine {
    type Target = Arc<Engine>;

    fn deref(&self) -> &Arc<Engine> {
        &self.engine
    }
}

impl TestEngine {
    #[cfg(lock_shuttle)]
    pub(crate) fn new(engine: Arc<Engine>, store: Arc<dyn LockStore>) -> Self {
        Self { engine, store }
    }

    /// An engine on this store.
    pub(crate) fn on(store: Arc<dyn LockStore>, handoff_limit: HandoffLimit) -> Self {
        let backend = OneStore(Arc::clone(&store));
        Self { engine: start(&backend, handoff_limit), store }
    }

    pub(crate) fn store(&self) -> &Arc<dyn LockStore> {
        &self.store
    }

    /// Shuts the engine down, whose store has no work of its own.
    pub(crate) async fn shut_down(&self, grace: Duration) -> usize {
        self.engine.shut_down(grace, std::future::ready(())).await.0
    }

    /// The request as the engine takes it, for the store of this engine.
    pub(crate) fn request(&self, request: Request) -> AcquireRequest {
        let Request { key, mode, wait, terms } = request;
        let (store, timeout) = (Arc::clone(&self.store), Timeout::new(wait));
        AcquireRequest { key, mode, store, timeout, terms, is_fair: false }
    }
}

/// An engine with short timeouts.
pub(crate) fn start(backend: &dyn Backend, handoff_limit: HandoffLimit) -> Arc<Engine> {
    let (response_timeout, wait) = (LEASE / 3, Wait::For(LEASE * 10));
    let config =
        Config { response_timeout, wait, handoff_limit, quarantine: None, unavailable_after: None };
    Engine::start(config, backend, Arc::default())
}

/// An engine on a faulty memory store.
pub(crate) fn engine() -> (Arc<FaultyStore>, TestEngine) {
    engine_with(HandoffLimit::default())
}

/// The same with a handoff limit.
pub(crate) fn engine_with(handoff_limit: HandoffLimit) -> (Arc<FaultyStore>, TestEngine) {
    engine_on(Arc::new(FaultyStore::new(MemoryStore::new())), handoff_limit)
}

/// The same on a given store.
pub(crate) fn engine_on(
    store: Arc<FaultyStore>,
    handoff_limit: HandoffLimit,
) -> (Arc<FaultyStore>, TestEngine) {
    let engine = TestEngine::on(Arc::clone(&store) as _, handoff_limit);
    (store, engine)
}

/// The measurements of holds that no test looks at.
pub(crate) static UNREAD: SiteMetrics = SiteMetrics::new();

/// What a test asks for.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) key: Arc<str>,
    pub(crate) mode: Mode,
    pub(crate) wait: Wait,
    pub(crate) terms: Terms,
}

/// A request for the key `k`, with a fixed `lease`, or with [`RENEWED_LEASE`].
pub(crate) fn request(lease: Option<Duration>) -> Request {
    let terms = Terms {
        term: lease.unwrap_or(RENEWED_LEASE),
        renewed: lease.is_none(),
        max_hold: None,
        min_hold: Duration::ZERO,
        acknowledged_by: RequiredReplicas::NONE,
        linger: Duration::ZERO,
        site: &UNREAD,
    };
    let (key, mode) = (Arc::from("k"), Mode::Exclusive);
    Request { key, mode, wait: Wait::For(LEASE * 10), terms }
}

pub(crate) async fn acquire(engine: &TestEngine, request: Request) -> Result<Hold, LockError> {
    let request = engine.request(request);
    let hold = acquire::acquire(Arc::clone(engine), request, |_, hold, _| hold).await;
    hold.map_err(|error| *error)
}

/// An extension that needs no acknowledgement.
pub(crate) fn extension(term: Option<Duration>, min_hold: Duration) -> LeaseExtension {
    LeaseExtension { term, min_hold, acknowledged_by: RequiredReplicas::NONE }
}

/// The owner of a hold.
pub(crate) fn owner(hold: &Hold) -> OwnerId {
    hold.lease().locked().owner
}

pub(crate) fn new_owner() -> OwnerId {
    OwnerId::new().expect("randomness")
}

/// Takes the key `k` without the engine.
pub(crate) async fn take(store: &dyn LockStore, owner: OwnerId, term: Duration) {
    let taken = store.try_acquire(claim(owner, term), timeout(), &SendTrace::default()).await;
    assert_eq!(taken, Ok(Acquired::Granted(Grant::of(term))));
}

/// The timeout of requests.
pub(crate) fn timeout() -> RequestTimeout {
    RequestTimeout::of(LEASE)
}

/// The release of the key `k`.
pub(crate) fn release(owner: OwnerId) -> Release<'static> {
    let (resource, keep) = (Resource::exclusive("k"), Duration::ZERO);
    Release { resource, owner, keep, queued: Some(LEASE), leaves_gap: false }
}

/// Whether the key `k` is free, according to the store.
pub(crate) async fn is_free(store: &FaultyStore) -> bool {
    let owner = new_owner();
    let trace = SendTrace::default();
    let answer = store.try_acquire(claim(owner, LEASE), timeout(), &trace).await;
    let free = answer == Ok(Acquired::Granted(Grant::of(LEASE)));
    if free {
        store.release(release(owner), Lane::Background).await.expect("the store is up");
    }
    free
}

/// Waits until no lock is open and no key has a queue, and asserts that.
pub(crate) async fn assert_nothing_left(engine: &Engine) {
    wait_until(LEASE * 100, || engine.queues().keys() == 0 && engine.open() == 0).await;
    let queues = engine.queues();
    assert_eq!((queues.keys(), queues.queued(), engine.open()), (0, 0, 0));
}

/// The permit of a free key.
pub(crate) fn permit(queues: &Arc<LocalQueues>, key: &str) -> Permit {
    match queues.enter(&Arc::from(key), false) {
        Entered::Permit(permit) => permit,
        other => panic!("{other:?}"),
    }
}

/// A lock on `key` with a new owner. Nothing is requested from the store.
pub(crate) fn locked_in(key: &str, store: Arc<dyn LockStore>) -> Locked {
    Locked {
        key: Arc::from(key),
        mode: Mode::Exclusive,
        owner: new_owner(),
        store,
        doubt: None,
        term: LEASE,
        queued: true,
    }
}

/// A new hold of `key` in a memory store of its own, granted at `sent`.
pub(crate) fn hold(queues: &Arc<LocalQueues>, key: &str, terms: &Terms, sent: BootInstant) -> Hold {
    let locked = locked_in(key, MemoryStore::new());
    let grant = Grant::of(terms.in_store());
    Hold::new(locked, terms, (grant, (sent, sent)), Some(permit(queues, key)), false)
}

/// The same in a given store, without a permit.
pub(crate) fn hold_in(
    store: Arc<dyn LockStore>,
    key: &str,
    terms: &Terms,
    sent: BootInstant,
) -> Hold {
    let grant = Grant::of(terms.in_store());
    Hold::new(locked_in(key, store), terms, (grant, (sent, sent)), None, false)
}
