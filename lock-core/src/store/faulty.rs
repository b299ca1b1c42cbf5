//! A store that injects faults, for unit tests.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use super::contract::{
    Acquired, Backend, BackgroundRuntimes, Capabilities, Claim, Fenced, Lane, Layout, LockStore,
    ModeChange, ModeChanged, Place, Queueing, Release, Released, ReleasedBatch, Renewal, Renewed,
    Resource, SendTrace, SetAcquired, SetClaim, Slot, StoreAnswer, StoreError,
};
use super::hold_reports::HoldReports;
use super::owner::OwnerId;
use super::subscriptions::Subscription;
use crate::maybe_ready::MaybeReady;
use crate::replicas::RequiredReplicas;
use crate::timeout::RequestTimeout;

/// The fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No fault. Used to skip a request.
    None,
    /// The store refuses the request, which has no effect.
    Refuse,
    /// The store denies the request, which has no effect.
    Deny,
    /// The store serves the request, and the sender gets an error instead of the answer.
    LoseReply,
    /// The store serves the request, and never answers.
    HangAfter,
    /// The request has no effect, and is never answered.
    Hang,
    /// The store serves the request after this time.
    Slow(Duration),
    /// The store serves the request, and answers after this time.
    SlowAnswer(Duration),
    /// The claim is sent after this time, because it waits for a connection.
    SentLate(Duration),
    /// The claim has no effect, and is sent again after this time.
    SentAgain(Duration),
    /// The key holds a value of another format.
    WrongFormat,
    /// The request panics.
    Panic,
}

/// A store whose requests meet the planned faults. Requests without a planned fault are served.
pub struct FaultyStore {
    inner: Arc<dyn LockStore>,
    /// The number of the connection.
    connection: AtomicU64,
    acquires: Mutex<VecDeque<Fault>>,
    renewals: Mutex<VecDeque<Fault>>,
    releases: Mutex<VecDeque<Fault>>,
    fences: Mutex<VecDeque<Fault>>,
    /// Higher fencing tokens are refused.
    highest_fence: AtomicU64,
    count_faults: Mutex<VecDeque<Fault>>,
    /// The number of requests to count waiters so far.
    counts: AtomicUsize,
    /// The next call of `is_immediate` by the background thread panics.
    panics: AtomicBool,
    /// The places of keys.
    places: Mutex<HashMap<String, Place>>,
    /// Whether leases can be renewed to another length.
    renews_to_any_length: AtomicBool,
    /// The number of releases in flight, and the highest number so far.
    releasing: Mutex<(usize, usize)>,
    /// The number of releases so far.
    released: AtomicUsize,
}

impl FaultyStore {
    pub fn new(inner: Arc<dyn LockStore>) -> Self {
        Self {
            inner,
            connection: AtomicU64::new(1),
            acquires: Mutex::default(),
            renewals: Mutex::default(),
            releases: Mutex::default(),
            fences: Mutex::default(),
            highest_fence: AtomicU64::new(u64::MAX),
            count_faults: Mutex::default(),
            counts: AtomicUsize::new(0),
            panics: AtomicBool::new(false),
            places: Mutex::default(),
            renews_to_any_length: AtomicBool::new(true),
            releasing: Mutex::default(),
            released: AtomicUsize::new(0),
        }
    }

    /// Serves `key` at this place.
    pub fn set_place(&self, key: &str, place: Place) {
        self.places.lock().expect("test").insert(key.to_owned(), place);
    }

    /// From now on, leases can only be renewed to the length of their grant.
    pub fn keep_terms(&self) {
        self.renews_to_any_length.store(false, Ordering::Relaxed);
    }

    /// From now on, another connection is used.
    pub fn reconnect(&self) {
        self.connection.fetch_add(1, Ordering::Relaxed);
    }

    /// The faults of the next acquire requests, one each.
    pub fn next_acquires(&self, faults: impl IntoIterator<Item = Fault>) {
        self.acquires.lock().expect("test").extend(faults);
    }

    /// The faults of the next renewals, one per batch.
    pub fn next_renewals(&self, faults: impl IntoIterator<Item = Fault>) {
        self.renewals.lock().expect("test").extend(faults);
    }

    /// The highest number of releases in flight so far.
    pub fn most_releases_at_once(&self) -> usize {
        self.releasing.lock().expect("test").1
    }

    /// The number of releases so far.
    pub fn releases(&self) -> usize {
        self.released.load(Ordering::Relaxed)
    }

    /// The faults of the next requests for a fencing token, one each.
    pub fn next_fences(&self, faults: impl IntoIterator<Item = Fault>) {
        self.fences.lock().expect("test").extend(faults);
    }

    /// From now on, requests for higher fencing tokens are refused, as by a server whose clock is behind.
    pub fn refuse_fences_above(&self, highest: u64) {
        self.highest_fence.store(highest, Ordering::Relaxed);
    }

    /// The faults of the next requests to count waiters, one each.
    pub fn next_counts(&self, faults: impl IntoIterator<Item = Fault>) {
        self.count_faults.lock().expect("test").extend(faults);
    }

    /// The number of requests to count waiters so far.
    pub fn counts(&self) -> usize {
        self.counts.load(Ordering::Relaxed)
    }

    /// The next call of `is_immediate` by the background thread panics.
    pub fn panic_once(&self) {
        self.panics.store(true, Ordering::Relaxed);
    }

    /// The faults of the next releases, one each.
    pub fn next_releases(&self, faults: impl IntoIterator<Item = Fault>) {
        self.releases.lock().expect("test").extend(faults);
    }

    /// From now on, releases are served.
    pub fn serve_releases(&self) {
        self.releases.lock().expect("test").clear();
    }
}

/// A claim to the key `k`, without a queue.
pub fn claim(owner: OwnerId, term: Duration) -> Claim<'static> {
    Claim {
        resource: Resource::exclusive("k"),
        owner,
        term,
        renewed: true,
        fresh: true,
        acknowledged_by: RequiredReplicas::NONE,
        queueing: Queueing::None,
        queued_before: Queueing::None,
    }
}

fn refused() -> StoreError {
    StoreError::Refused("refused as planned".into())
}

fn denied() -> StoreError {
    StoreError::Denied("denied as planned".into())
}

fn wrong_format() -> StoreError {
    StoreError::WrongFormat { key: "k".into(), expected: "string", found: "list".into() }
}

fn unanswered() -> StoreError {
    StoreError::Unknown("reply lost as planned".into())
}

async fn with_fault<'a, T>(
    fault: Option<Fault>,
    // A closure, because a store may act as soon as its method is called.
    request: impl FnOnce() -> MaybeReady<'a, Result<T, StoreError>>,
) -> Result<T, StoreError>
where
    Result<T, StoreError>: Unpin + 'a,
{
    match fault {
        None | Some(Fault::None | Fault::SentLate(_) | Fault::SentAgain(_)) => request().await,
        Some(Fault::Refuse) => Err(refused()),
        Some(Fault::Deny) => Err(denied()),
        Some(Fault::Panic) => panic!("as planned"),
        Some(Fault::WrongFormat) => Err(wrong_format()),
        Some(Fault::LoseReply) => request().await.and(Err(unanswered())),
        Some(Fault::HangAfter) => {
            let _ = request().await;
            std::future::pending().await
        }
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Slow(pause)) => {
            tokio::time::sleep(pause).await;
            request().await
        }
        Some(Fault::SlowAnswer(pause)) => {
            let answer = request().await;
            tokio::time::sleep(pause).await;
            answer
        }
    }
}

impl LockStore for FaultyStore {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> MaybeReady<'a, Result<Acquired, StoreError>> {
        let fault = self.acquires.lock().expect("test").pop_front();
        MaybeReady::pending(async move {
            let inner = SendTrace::default();
            let within = timeout.answer.min(timeout.total);
            if let Some(Fault::SentLate(pause) | Fault::SentAgain(pause)) = fault {
                if matches!(fault, Some(Fault::SentAgain(_))) {
                    trace.sent(self.connection.load(Ordering::Relaxed));
                }
                tokio::time::sleep(pause).await;
            }
            let answer = with_fault(fault, || self.inner.try_acquire(claim, timeout, &inner));
            // A request that hangs uses a connection of its own.
            let connection = self.connection.load(Ordering::Relaxed);
            trace.sent(connection + u64::from(fault == Some(Fault::Hang)));
            tokio::time::timeout(within, answer).await.unwrap_or_else(|_| Err(unanswered()))
        })
    }

    fn try_acquire_all<'a>(
        &'a self,
        claim: SetClaim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> MaybeReady<'a, Result<SetAcquired, StoreError>> {
        let fault = self.acquires.lock().expect("test").pop_front();
        MaybeReady::pending(async move {
            let answer = with_fault(fault, || self.inner.try_acquire_all(claim, timeout, trace));
            let within = timeout.answer.min(timeout.total);
            trace.sent(1);
            tokio::time::timeout(within, answer).await.unwrap_or_else(|_| Err(unanswered()))
        })
    }

    fn slot(&self, key: &str) -> Slot {
        self.inner.slot(key)
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        let fault = self.renewals.lock().expect("test").pop_front();
        MaybeReady::pending(async move {
            match fault {
                None | Some(Fault::None | Fault::SentLate(_) | Fault::SentAgain(_)) => {
                    self.inner.renew(batch, lane).await
                }
                Some(Fault::Refuse) => batch.iter().map(|_| Err(refused())).collect(),
                Some(Fault::Deny) => batch.iter().map(|_| Err(denied())).collect(),
                Some(Fault::Panic) => panic!("as planned"),
                Some(Fault::WrongFormat) => batch.iter().map(|_| Err(wrong_format())).collect(),
                Some(Fault::LoseReply) => {
                    self.inner.renew(batch, lane).await;
                    batch.iter().map(|_| Err(unanswered())).collect()
                }
                Some(Fault::HangAfter | Fault::Hang) => std::future::pending().await,
                Some(Fault::Slow(pause)) => {
                    tokio::time::sleep(pause).await;
                    self.inner.renew(batch, lane).await
                }
                Some(Fault::SlowAnswer(pause)) => {
                    let answers = self.inner.renew(batch, lane).await;
                    tokio::time::sleep(pause).await;
                    answers
                }
            }
        })
    }

    fn release<'a>(
        &'a self,
        release: Release<'a>,
        lane: Lane,
    ) -> MaybeReady<'a, Result<Released, StoreError>> {
        let fault = self.releases.lock().expect("test").pop_front();
        self.released.fetch_add(1, Ordering::Relaxed);
        MaybeReady::pending(async move {
            {
                let mut releasing = self.releasing.lock().expect("test");
                releasing.0 += 1;
                releasing.1 = releasing.1.max(releasing.0);
            }
            let answer = with_fault(fault, || self.inner.release(release, lane)).await;
            self.releasing.lock().expect("test").0 -= 1;
            answer
        })
    }

    /// Each release has a fault of its own.
    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        MaybeReady::pending(async move {
            let mut releases: Vec<_> =
                batch.iter().map(|release| (self.release(*release, lane), None)).collect();
            poll_fn(|cx| {
                for (release, answer) in releases.iter_mut().filter(|(_, answer)| answer.is_none())
                {
                    if let Poll::Ready(given) = Pin::new(release).poll(cx) {
                        *answer = Some(given);
                    }
                }
                let all = releases.iter().all(|(_, answer)| answer.is_some());
                if all { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let answers = releases.into_iter().filter_map(|(_, answer)| answer).collect();
            ReleasedBatch { connection: NonZeroU64::new(1), answers }
        })
    }

    fn fence<'a>(
        &'a self,
        resource: Resource<'a>,
        owner: OwnerId,
        at_least: u64,
    ) -> MaybeReady<'a, Result<Fenced, StoreError>> {
        let fault = self.fences.lock().expect("test").pop_front();
        if at_least > self.highest_fence.load(Ordering::Relaxed) {
            return MaybeReady::ready(Ok(Fenced::Refused("ahead of the clock as planned".into())));
        }
        MaybeReady::pending(with_fault(fault, move || self.inner.fence(resource, owner, at_least)))
    }

    fn change_mode<'a>(&'a self, change: ModeChange<'a>) -> StoreAnswer<'a, ModeChanged> {
        self.inner.change_mode(change)
    }

    fn count_waiters<'a>(
        &'a self,
        resource: Resource<'a>,
        lane: Lane,
    ) -> MaybeReady<'a, Result<usize, StoreError>> {
        self.counts.fetch_add(1, Ordering::Relaxed);
        let fault = self.count_faults.lock().expect("test").pop_front();
        MaybeReady::pending(with_fault(fault, move || self.inner.count_waiters(resource, lane)))
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, term: Duration) -> Subscription {
        self.inner.subscribe(resource, owner, term)
    }

    fn place(&self, key: &str) -> Place {
        *self.places.lock().expect("test").get(key).unwrap_or(&Place::ONLY)
    }

    fn capabilities(&self) -> Capabilities {
        let renews_to_any_length = self.renews_to_any_length.load(Ordering::Relaxed);
        Capabilities { renews_to_any_length, ..self.inner.capabilities() }
    }

    fn layout(&self) -> &'static str {
        self.inner.layout()
    }

    fn is_immediate(&self) -> bool {
        let panics = std::thread::current().name() == Some("lock-background")
            && self.panics.swap(false, Ordering::Relaxed);
        assert!(!panics, "as planned");
        false
    }
}

/// A backend of one store, which is used for every layout.
pub struct OneStore(pub Arc<dyn LockStore>);

impl Backend for OneStore {
    fn adopt(&self, _: &BackgroundRuntimes, _: HoldReports) {}

    fn handle(&self, _: Layout) -> Result<Arc<dyn LockStore>, StoreError> {
        Ok(Arc::clone(&self.0))
    }
}
