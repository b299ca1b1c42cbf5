//! Requests that overtake each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::client::LockClient;
use crate::error::LockError;
use crate::store::runner::{AsyncBackend, AsyncClient, LeaseRequest, Owned, RunsOn, WakeUps};
use crate::store::{Acquired, Backend, Grant, OpenStore, Released, Renewed, Settings, StoreError};

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

    async fn acquire(&self, request: LeaseRequest) -> Result<Acquired, StoreError> {
        self.go.notified().await;
        self.is_taken.store(true, Ordering::SeqCst);
        Ok(Acquired::Granted(Grant::of(request.term)))
    }

    async fn renew(&self, leases: &[(Owned, Duration)]) -> Vec<Result<Renewed, StoreError>> {
        vec![Ok(Renewed::Extended); leases.len()]
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
        Ok(AsyncBackend::open(self.name(), settings, RunsOn::Callers, |_| Arc::clone(&self.0))?)
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
