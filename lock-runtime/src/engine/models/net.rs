//! The store of the models, at the far end of a network.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shuttle::future::{spawn, yield_now};

use crate::clock::BootInstant;
use crate::engine::lease::Lease;
use crate::eventually::Eventually;
use crate::format::WireFormat;
use crate::store::{
    Attempt, Background, Claim, Fenced, Lane, LockStore, MemoryStore, Patience, Release, Released,
    ReleasedBatch, Renewal, Renewed, StoreError, Subscription, Token, Trace,
};
use crate::sync::{oneshot, time};

/// How long a request waits for its answer that is never too late.
pub(super) const PATIENT: Patience = Patience { answer: Duration::MAX, total: Duration::MAX };
/// There is only one, which never breaks.
const CONNECTION: u64 = 1;
/// How long a renewal waits.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(3);
/// For how long a key is taken to see whether it is free.
const PROBE: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// A memory store, and what is on its way to it. Its own fields are under the standard library's
/// mutexes, and locked for a moment only, so that they are no part of what is modelled.
pub(super) struct Net {
    store: Arc<MemoryStore>,
    /// The callers' lane and the keeper's.
    lanes: [Mutex<Requests>; 2],
    /// Who has the key, by what the store has answered.
    owner: Mutex<Option<Token>>,
    releases: Mutex<Releases>,
    /// How many renewals in a row are served without an answer.
    unanswered: AtomicUsize,
    processes: AtomicUsize,
}

/// What is on its way on one lane, to be served in order.
#[derive(Default)]
struct Requests {
    waiting: VecDeque<Job>,
    /// One is being served, and the next has to wait.
    serving: bool,
}

impl Requests {
    fn begin_next(&mut self) -> Option<Job> {
        let next = if self.serving { None } else { self.waiting.pop_front() };
        self.serving |= next.is_some();
        next
    }
}

/// What becomes of requests to release.
#[derive(Debug, Default)]
struct Releases {
    /// None gets through.
    refused: bool,
    /// How many have freed the key.
    served: usize,
}

impl Net {
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

    /// The way to it, of one process more.
    pub(super) fn connect(self: &Arc<Self>) -> Arc<Wire> {
        self.processes.fetch_add(1, Ordering::Relaxed);
        Arc::new(Wire(Arc::clone(self)))
    }

    /// How many processes there are.
    pub(super) fn processes(&self) -> usize {
        self.processes.load(Ordering::Relaxed)
    }

    /// Sends a request when the answer is first asked for. It is served even if the answer is not
    /// awaited any more.
    fn send<T: Send + 'static>(
        self: &Arc<Self>,
        lane: Lane,
        within: Duration,
        serve: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Eventually<'static, Result<T, StoreError>> {
        let net = Arc::clone(self);
        Eventually::pending(async move {
            let (answer, answered) = oneshot::channel();
            let lane = usize::from(lane == Lane::Keeper);
            let job_net = Arc::clone(&net);
            let job = Box::new(move || drop(answer.send(serve(&job_net))));
            lock(&net.lanes[lane]).waiting.push_back(job);
            drop(spawn(async move {
                let first = loop {
                    yield_now().await;
                    let first = lock(&net.lanes[lane]).begin_next();
                    if let Some(first) = first {
                        break first;
                    }
                };
                first();
                lock(&net.lanes[lane]).serving = false;
            }));
            let too_late = || StoreError::Unknown("too late".into());
            match within {
                Duration::MAX => answered.await.map_err(|_| too_late()),
                within => time::timeout_at(time::Instant::now() + within, answered)
                    .await
                    .map_err(|_| too_late())?
                    .map_err(|_| too_late()),
            }
        })
    }

    pub(super) fn is_busy(&self) -> bool {
        self.lanes.iter().map(lock).any(|lane| lane.serving || !lane.waiting.is_empty())
    }

    pub(super) fn is_taken(&self) -> bool {
        lock(&self.owner).is_some()
    }

    pub(super) fn refuse_releases(&self) {
        lock(&self.releases).refused = true;
    }

    /// The next renewals are served, and their answers lost.
    pub(super) fn answer_no_renewals(&self, renewals: usize) {
        self.unanswered.store(renewals, Ordering::Relaxed);
    }

    /// Loses the key of a lease.
    pub(super) fn forget(&self, lease: &Lease) {
        drop(self.store.release(lease.key(), lease.token(), Duration::ZERO, Lane::Keeper));
        lock(&self.owner).take_if(|owner| owner == lease.token());
    }

    /// How many processes wait for a release.
    pub(super) fn others(&self) -> usize {
        at_once(self.store.others("k", WireFormat::Token)).expect("it can tell")
    }

    /// How often a key was freed.
    pub(super) fn freed(&self) -> usize {
        lock(&self.releases).served
    }

    /// A valid lease has the key, at every instant.
    pub(super) fn assert_kept(&self, lease: &Lease) {
        let deadline = lease.deadline();
        if BootInstant::now() < deadline {
            assert_eq!(lock(&self.owner).as_ref(), Some(lease.token()), "its key is its own");
        }
    }

    /// The same, by what is in the store, where a key may also have run out.
    pub(super) fn assert_in_store(&self, lease: &Lease) {
        let kept = at_once(self.store.fence(lease.key(), lease.token()));
        // Looked at behind the store, so that a lease which is lost in between is not valid here.
        if lease.is_valid(BootInstant::now()) {
            assert!(matches!(kept, Ok(Fenced::With(_))), "its key is its own: {kept:?}");
        }
    }

    pub(super) fn assert_free(&self) {
        let token = Token::random().expect("randomness");
        let claim = Claim { key: "k", token: &token, lease: PROBE, fresh: true };
        match self.store.try_acquire(claim, PATIENT, &Trace::default()) {
            Eventually::Ready(Some(Ok(Attempt::Granted))) => {}
            _ => panic!("the key is still taken"),
        }
        drop(self.store.release("k", &token, Duration::ZERO, Lane::Keeper));
    }
}

/// For what is no part of the model.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn at_once<T>(answer: Eventually<'_, T>) -> T {
    match answer {
        Eventually::Ready(Some(answer)) => answer,
        _ => unreachable!("the memory store needs no time"),
    }
}

/// The way to the store.
pub(super) struct Wire(Arc<Net>);

impl LockStore for Wire {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        patience: Patience,
        trace: &'a Trace,
    ) -> Eventually<'a, Result<Attempt, StoreError>> {
        let (key, token) = (claim.key.to_owned(), claim.token.clone());
        let Claim { lease, fresh, .. } = claim;
        let within = patience.answer.min(patience.total);
        let sent = self.0.send(Lane::Caller, within, move |net| {
            let claim = Claim { key: &key, token: &token, lease, fresh };
            let answer = at_once(net.store.try_acquire(claim, patience, &Trace::default()));
            if answer == Ok(Attempt::Granted) {
                *lock(&net.owner) = Some(token);
            }
            answer
        });
        Eventually::pending(async move {
            trace.sent(CONNECTION);
            sent.await?
        })
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        lane: Lane,
    ) -> Eventually<'a, Vec<Result<Renewed, StoreError>>> {
        let one = batch.first().copied();
        let Some(Renewal { key, token, lease }) = one else { return Eventually::ready(vec![]) };
        assert_eq!(batch.len(), 1, "the models have one key");
        let (key, token) = (key.to_owned(), token.clone());
        let sent = self.0.send(lane, RENEWAL_TIMEOUT, move |net| {
            at_once(net.store.renew(&[Renewal { key: &key, token: &token, lease }], lane))
                .swap_remove(0)
        });
        let lost = self
            .0
            .unanswered
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok();
        Eventually::pending(async move {
            let answer = sent.await.and_then(|answer| answer);
            vec![if lost { Err(StoreError::Unknown("lost".into())) } else { answer }]
        })
    }

    fn release<'a>(
        &'a self,
        key: &'a str,
        token: &'a Token,
        keep: Duration,
        lane: Lane,
    ) -> Eventually<'a, Result<Released, StoreError>> {
        let (key, token) = (key.to_owned(), token.clone());
        let sent = self.0.send(lane, Duration::MAX, move |net| {
            if lock(&net.releases).refused {
                return Err(StoreError::Refused("as told".into()));
            }
            let answer = at_once(net.store.release(&key, &token, keep, lane));
            if let Ok(Released::Freed { .. }) = answer {
                lock(&net.owner).take_if(|owner| *owner == token);
                lock(&net.releases).served += 1;
            }
            answer
        });
        Eventually::pending(async { sent.await? })
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> Eventually<'a, ReleasedBatch> {
        Eventually::pending(async move {
            let mut answers = Vec::with_capacity(batch.len());
            for release in batch {
                answers.push(self.release(release.key, release.token, release.keep, lane).await);
            }
            ReleasedBatch { connection: NonZeroU64::new(CONNECTION), answers }
        })
    }

    fn fence<'a>(
        &'a self,
        key: &'a str,
        token: &'a Token,
    ) -> Eventually<'a, Result<Fenced, StoreError>> {
        self.0.store.fence(key, token)
    }

    fn others<'a>(
        &'a self,
        key: &'a str,
        format: WireFormat,
    ) -> Eventually<'a, Result<usize, StoreError>> {
        let key = key.to_owned();
        let ask = move |net: &Net| at_once(net.store.others(&key, format));
        let sent = self.0.send(Lane::Caller, Duration::MAX, ask);
        Eventually::pending(async { sent.await? })
    }

    fn subscribe(&self, key: &str, format: WireFormat) -> Subscription {
        self.0.store.subscribe(key, format)
    }

    fn adopt(&self, background: &Background) {
        self.0.store.adopt(background);
    }
}
