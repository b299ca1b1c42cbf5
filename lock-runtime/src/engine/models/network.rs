//! The store of the models, at the far end of a network.
//!
//! This file contains no race. It supplies what the races need: delays, lost answers and refused
//! releases. The network has two lanes to the store, that of the callers and that of the background
//! threads. The requests of a lane are served in order, one at a time. The scheduler chooses when.
//! The network records the owner of the key, so that a model can assert at every instant that a
//! valid hold has its key.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shuttle::future::{spawn, yield_now};

use crate::clock::BootInstant;
use crate::engine::handoff::{Hold, Lease};
use crate::engine::testing::{claim, new_owner, owner, release};
use crate::maybe_ready::MaybeReady;
use crate::store::contract::{
    Acquired, Capabilities, Claim, Fenced, Grant, Lane, LockStore, Mode, Release, Released,
    ReleasedBatch, Renewal, Renewed, Resource, SendTrace, StoreError,
};
use crate::store::memory::MemoryStore;
use crate::store::owner::OwnerId;
use crate::store::subscriptions::Subscription;
use crate::sync::{oneshot, time};
use crate::timeout::RequestTimeout;

/// The timeout of requests that wait for their answers without a limit.
pub(super) const NO_TIMEOUT: RequestTimeout =
    RequestTimeout { answer: Duration::MAX, total: Duration::MAX };
/// The number of the only connection, which never breaks.
const CONNECTION: u64 = 1;
/// How long a renewal waits for its answer.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(3);
/// The lease with which a model checks whether the key is free.
const PROBE_TERM: Duration = Duration::from_secs(1);

/// Serves a request, and sends the answer.
type Job = Box<dyn FnOnce() + Send>;

/// A memory store, and the requests in flight to it. The mutexes are those of the standard library,
/// and are locked only for a moment. They have no scheduling points, so they are not part of the
/// model.
pub(super) struct Network {
    store: Arc<MemoryStore>,
    /// The lanes of the callers and of the background threads.
    lanes: [Mutex<RequestQueue>; 2],
    /// The owner of an exclusive lock on the key, according to the answers of the store.
    owner: Mutex<Option<OwnerId>>,
    releases: Mutex<Releases>,
    /// How many of the next renewals are served without an answer.
    unanswered: AtomicUsize,
    processes: AtomicUsize,
}

/// The requests in flight on one lane, in order.
#[derive(Default)]
struct RequestQueue {
    waiting: VecDeque<Job>,
    /// A request is being served. The next one has to wait.
    serving: bool,
}

impl RequestQueue {
    fn begin_next(&mut self) -> Option<Job> {
        let next = if self.serving { None } else { self.waiting.pop_front() };
        self.serving |= next.is_some();
        next
    }
}

/// What the store does with releases.
#[derive(Debug, Default)]
struct Releases {
    /// The store refuses all releases.
    refused: bool,
    /// The number of releases that have freed the key.
    freed: usize,
}

impl Network {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            store: MemoryStore::new(),
            lanes: Default::default(),
            owner: Mutex::default(),
            releases: Mutex::default(),
            unanswered: AtomicUsize::new(0),
            processes: AtomicUsize::new(0),
        })
    }

    /// The store as another process reaches it.
    pub(super) fn connect(self: &Arc<Self>) -> Arc<RemoteStore> {
        self.processes.fetch_add(1, Ordering::Relaxed);
        Arc::new(RemoteStore(Arc::clone(self)))
    }

    /// The number of processes that have connected.
    pub(super) fn processes(&self) -> usize {
        self.processes.load(Ordering::Relaxed)
    }

    /// Sends a request at the first poll of its future. The request is served even if that future
    /// is dropped.
    fn send<T: Send + 'static>(
        self: &Arc<Self>,
        lane: Lane,
        answer_timeout: Duration,
        serve: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> MaybeReady<'static, Result<T, StoreError>> {
        let network = Arc::clone(self);
        MaybeReady::pending(async move {
            let (answer, answered) = oneshot::channel();
            let lane = usize::from(lane == Lane::Background);
            let far_end = Arc::clone(&network);
            let job = Box::new(move || drop(answer.send(serve(&far_end))));
            lock(&network.lanes[lane]).waiting.push_back(job);
            drop(spawn(async move {
                let serve_next = loop {
                    yield_now().await;
                    let next = lock(&network.lanes[lane]).begin_next();
                    if let Some(next) = next {
                        break next;
                    }
                };
                serve_next();
                lock(&network.lanes[lane]).serving = false;
            }));
            let no_answer = || StoreError::Unknown("no answer in time".into());
            match answer_timeout {
                Duration::MAX => answered.await.map_err(|_| no_answer()),
                timeout => time::timeout_at(time::Instant::now() + timeout, answered)
                    .await
                    .map_err(|_| no_answer())?
                    .map_err(|_| no_answer()),
            }
        })
    }

    /// Whether a request is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.lanes.iter().map(lock).any(|lane| lane.serving || !lane.waiting.is_empty())
    }

    /// Whether the key has an owner.
    pub(super) fn is_taken(&self) -> bool {
        lock(&self.owner).is_some()
    }

    /// From now on, the store refuses all releases.
    pub(super) fn refuse_releases(&self) {
        lock(&self.releases).refused = true;
    }

    /// The store serves the next renewals, and their answers are lost.
    pub(super) fn lose_renewal_answers(&self, renewals: usize) {
        self.unanswered.store(renewals, Ordering::Relaxed);
    }

    /// Deletes the key of a lease from the store.
    pub(super) fn delete_key(&self, lease: &Lease) {
        let owner = lease.locked().owner;
        drop(self.store.release(release(owner), Lane::Background));
        lock(&self.owner).take_if(|current| *current == owner);
    }

    /// The number of processes that wait for a release.
    pub(super) fn waiters(&self) -> usize {
        let count = ready(self.store.count_waiters(Resource::exclusive("k"), Lane::Caller));
        count.expect("the memory store counts waiters")
    }

    /// The number of releases that have freed the key.
    pub(super) fn freed(&self) -> usize {
        lock(&self.releases).freed
    }

    /// Asserts that a hold has the key if it is valid, according to the answers of the store. If the
    /// store has given the key to a claim in its queue, no answer says so, and its content counts.
    pub(super) fn assert_owns_key(&self, hold: &Hold) {
        let deadline = hold.deadline();
        if BootInstant::now() < deadline {
            match *lock(&self.owner) {
                Some(answered) => assert_eq!(answered, owner(hold), "a valid hold has its key"),
                None => self.assert_owns_key_in_store(hold),
            }
        }
    }

    /// Asserts that a hold has the key if it is valid, according to the content of the store. This
    /// also finds a key that has expired too early.
    pub(super) fn assert_owns_key_in_store(&self, hold: &Hold) {
        let fenced = ready(self.store.fence(hold.lease().locked().resource(), owner(hold), 0));
        // After the request to the store, so that a hold that is lost in between is not valid here.
        if hold.is_valid(BootInstant::now()) {
            assert!(matches!(fenced, Ok(Fenced::With(_))), "a valid hold has its key: {fenced:?}");
        }
    }

    /// Asserts that the key is free, by acquiring and releasing it.
    pub(super) fn assert_free(&self) {
        let owner = new_owner();
        match self.store.try_acquire(claim(owner, PROBE_TERM), NO_TIMEOUT, &SendTrace::default()) {
            MaybeReady::Ready(Some(Ok(Acquired::Granted(_)))) => {}
            _ => panic!("the key is still taken"),
        }
        drop(self.store.release(release(owner), Lane::Background));
    }
}

/// Locks a mutex that is not part of the model.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer of the memory store, which is always ready.
pub(super) fn ready<T>(answer: MaybeReady<'_, T>) -> T {
    match answer {
        MaybeReady::Ready(Some(answer)) => answer,
        _ => unreachable!("the memory store answers immediately"),
    }
}

/// The store of one process, at the far end of the network.
pub(super) struct RemoteStore(Arc<Network>);

impl LockStore for RemoteStore {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> MaybeReady<'a, Result<Acquired, StoreError>> {
        let (key, mode) = (claim.resource.key.to_owned(), claim.resource.mode);
        let Claim { owner, term, renewed, fresh, .. } = claim;
        let Claim { acknowledged_by, queueing, queued_before, .. } = claim;
        let answer_timeout = timeout.answer.min(timeout.total);
        let sent = self.0.send(Lane::Caller, answer_timeout, move |network| {
            let resource = Resource { key: &key, mode };
            let claim = Claim {
                resource,
                owner,
                term,
                renewed,
                fresh,
                acknowledged_by,
                queueing,
                queued_before,
            };
            let answer = ready(network.store.try_acquire(claim, timeout, &SendTrace::default()));
            if answer == Ok(Acquired::Granted(Grant::of(term))) && mode == Mode::Exclusive {
                *lock(&network.owner) = Some(owner);
            }
            answer
        });
        MaybeReady::pending(async move {
            trace.sent(CONNECTION);
            sent.await?
        })
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        let first = batch.first().copied();
        let Some(Renewal { resource, owner, term, acknowledged_by }) = first else {
            return MaybeReady::ready(vec![]);
        };
        assert_eq!(batch.len(), 1, "the models have one key");
        let (key, mode) = (resource.key.to_owned(), resource.mode);
        let sent = self.0.send(lane, RENEWAL_TIMEOUT, move |network| {
            let resource = Resource { key: &key, mode };
            let renewal = [Renewal { resource, owner, term, acknowledged_by }];
            ready(network.store.renew(&renewal, lane)).swap_remove(0)
        });
        let lost = self
            .0
            .unanswered
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok();
        MaybeReady::pending(async move {
            let answer = sent.await.and_then(|answer| answer);
            vec![if lost { Err(StoreError::Unknown("the answer was lost".into())) } else { answer }]
        })
    }

    fn release<'a>(
        &'a self,
        release: Release<'a>,
        lane: Lane,
    ) -> MaybeReady<'a, Result<Released, StoreError>> {
        let Release { resource, owner, keep, queued, leaves_gap } = release;
        let (key, mode) = (resource.key.to_owned(), resource.mode);
        let sent = self.0.send(lane, Duration::MAX, move |network| {
            if lock(&network.releases).refused {
                return Err(StoreError::Refused("the model refuses all releases".into()));
            }
            let resource = Resource { key: &key, mode };
            let release = Release { resource, owner, keep, queued, leaves_gap };
            let answer = ready(network.store.release(release, lane));
            if let Ok(Released::Freed { .. }) = answer {
                lock(&network.owner).take_if(|current| *current == owner);
                lock(&network.releases).freed += 1;
            }
            answer
        });
        MaybeReady::pending(async { sent.await? })
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        MaybeReady::pending(async move {
            let mut answers = Vec::with_capacity(batch.len());
            for release in batch {
                answers.push(self.release(*release, lane).await);
            }
            ReleasedBatch { connection: NonZeroU64::new(CONNECTION), answers }
        })
    }

    fn fence<'a>(
        &'a self,
        resource: Resource<'a>,
        owner: OwnerId,
        at_least: u64,
    ) -> MaybeReady<'a, Result<Fenced, StoreError>> {
        self.0.store.fence(resource, owner, at_least)
    }

    fn count_waiters<'a>(
        &'a self,
        resource: Resource<'a>,
        lane: Lane,
    ) -> MaybeReady<'a, Result<usize, StoreError>> {
        let (key, mode) = (resource.key.to_owned(), resource.mode);
        let sent = self.0.send(lane, Duration::MAX, move |network| {
            ready(network.store.count_waiters(Resource { key: &key, mode }, Lane::Caller))
        });
        MaybeReady::pending(async { sent.await? })
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, term: Duration) -> Subscription {
        self.0.store.subscribe(resource, owner, term)
    }

    fn capabilities(&self) -> Capabilities {
        self.0.store.capabilities()
    }

    fn layout(&self) -> &'static str {
        self.0.store.layout()
    }
}
