//! Requests that overtake each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::client::LockClient;
use crate::error::LockError;
use crate::maybe_ready::MaybeReady;
use crate::store::runner::{AsyncBackend, AsyncClient, AsyncRequests, Owned, RunsOn, WakeUps};
use crate::store::{
    Acquired, Backend, Claim, Grant, Lane, Layout, LockStore, OpenStore, OwnerId, Release,
    Released, ReleasedBatch, Renewal, Renewed, RequestTimeout, Resource, SendTrace, Settings,
    StoreAnswer, StoreError, Subscription,
};

/// Its response timeout is 2 s.
const LEASE: Duration = Duration::from_secs(30);

/// A store with one key, whose acquires wait until they are told to take effect.
#[derive(Clone, Default)]
struct SlowStore(Arc<SlowKey>);

#[derive(Default)]
struct SlowKey {
    go: Notify,
    is_taken: AtomicBool,
    releases: AtomicUsize,
}

impl AsyncClient for SlowKey {
    async fn connect(self: &Arc<Self>, _: WakeUps) -> Result<(), StoreError> {
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn release(&self, _: &Owned, _: Duration) -> Result<Released, StoreError> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        let was_taken = self.is_taken.swap(false, Ordering::SeqCst);
        Ok(if was_taken { Released::Freed { woken: 0 } } else { Released::Gone })
    }
}

impl OpenStore for SlowStore {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn open(&self, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
        let requests = AsyncRequests::new(settings, RunsOn::Callers)?;
        let locks = SlowLocks { key: Arc::clone(&self.0), requests: Arc::clone(&requests) };
        Ok(AsyncBackend::new(Arc::clone(&self.0), requests, Arc::new(locks)))
    }
}

struct SlowLocks {
    key: Arc<SlowKey>,
    requests: Arc<AsyncRequests>,
}

impl LockStore for SlowLocks {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> StoreAnswer<'a, Acquired> {
        let (key, term) = (Arc::clone(&self.key), claim.term);
        let acquire = async move {
            key.go.notified().await;
            key.is_taken.store(true, Ordering::SeqCst);
            Ok(Acquired::Granted(Grant::of(term)))
        };
        self.requests.acquire(&self.key, &claim, (timeout, trace), acquire)
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        MaybeReady::ready(vec![Ok(Renewed::Extended); batch.len()])
    }

    fn release<'a>(&'a self, release: Release<'a>, lane: Lane) -> StoreAnswer<'a, Released> {
        self.requests.release(&self.key, release, lane)
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        self.requests.release_all(&self.key, batch, lane)
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
        self.requests.subscribe(resource.key, owner)
    }

    fn layout(&self) -> &'static str {
        Layout::TOKEN.value()
    }
}

async fn until(condition: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !condition() && began.elapsed() < LEASE {
        sleep(LEASE / 3000).await;
    }
    condition()
}

#[tokio::test]
async fn an_acquire_that_ends_after_the_release_of_its_owner_frees_the_key() {
    let store = SlowStore::default();
    let key = Arc::clone(&store.0);
    let client = LockClient::builder().store(store).lease(LEASE).connect().await.expect("it is up");
    let call = timeout(LEASE / 300, client.lock("k").acquire()).await;
    assert!(call.is_err(), "the request has no answer");
    let releases = || key.releases.load(Ordering::SeqCst);
    assert!(until(|| releases() > 0).await, "the release does not wait for the request");
    let before = releases();
    key.go.notify_one();
    assert!(until(|| releases() > before).await, "the key stays taken");
    assert!(!key.is_taken.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_guard_that_is_dropped_sends_one_release_and_reports_no_loss() {
    let store = SlowStore::default();
    let key = Arc::clone(&store.0);
    let client = LockClient::builder().store(store).lease(LEASE).connect().await.expect("it is up");
    for releases in 1..4 {
        key.go.notify_one();
        drop(client.lock("k").acquire().await.expect("free"));
        assert!(until(|| client.stats().is_idle()).await);
        assert_eq!(key.releases.load(Ordering::SeqCst), releases);
    }
    assert_eq!(client.stats().lost, 0);
}

#[cfg(lock_controls)]
#[test]
fn controls_of_late_acquires() {
    crate::safeguard::assert_fails_without(
        "late-acquires-are-released",
        "store::tests::late_acquires::an_acquire_that_ends_after_the_release_of_its_owner_frees_the_key",
        "the key stays taken",
    );
}
