//! Locks whose keys are deleted or overwritten while they are held.

use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason, distributed_lock};
use lock_tests::support::Pair;
use lock_tests::{TestedStore, within};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::support::LEASE;

#[derive(Debug, Clone, Copy)]
enum Mishap {
    Deleted,
    Overwritten,
}

impl Mishap {
    async fn befall(self, pair: &Pair) {
        let store = pair.store.as_ref().expect("the pair has one");
        match self {
            Self::Deleted => store.delete("k").await,
            Self::Overwritten => store.overwrite("k").await,
        }
    }

    fn reason(self) -> LostReason {
        match self {
            Self::Deleted => LostReason::Gone,
            Self::Overwritten => LostReason::Taken,
        }
    }
}

/// Two clients with this lease.
async fn pair(lease: Duration) -> Pair {
    TestedStore::start_shared().await.pair(lease).await
}

async fn is_free(client: &LockClient) -> bool {
    match client.lock("k").try_acquire().await {
        Ok(Some(guard)) => {
            guard.release().await.expect("held");
            true
        }
        // Some stores can tell that the new value is no owner.
        Ok(None) | Err(LockError::WrongFormat { .. }) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// A body that never ends loses its lock. Returns the reason, and the time until the body was dropped.
async fn lose(pair: &Pair, mishap: Mishap) -> (LostReason, Duration) {
    let lock = pair.one.lock("k");
    let (held, is_held) = oneshot::channel();
    let body = tokio::spawn(async move {
        let body = async {
            let _ = held.send(());
            std::future::pending::<()>().await;
        };
        lock.run(body).await
    });
    is_held.await.expect("free");
    // The lock is not lost without a reason.
    sleep(LEASE * 3 / 2).await;
    assert!(!body.is_finished());
    mishap.befall(pair).await;
    let began = Instant::now();
    match within(LEASE * 10, body).await.expect("it ends").expect("no panic") {
        Err(LockError::Lost { reason, .. }) => (reason, began.elapsed()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_whose_key_was_deleted_is_dropped_at_the_next_renewal() {
    let pair = pair(LEASE).await;
    let (reason, after) = lose(&pair, Mishap::Deleted).await;
    assert_eq!(reason, LostReason::Gone);
    assert!(after < LEASE, "{after:?}");
    assert!(is_free(&pair.two).await, "the key is not created again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_whose_key_was_overwritten_is_dropped_and_the_key_is_not_changed() {
    let pair = pair(LEASE).await;
    let (reason, after) = lose(&pair, Mishap::Overwritten).await;
    assert_eq!(reason, LostReason::Taken);
    assert!(after < LEASE, "{after:?}");
    pair.one.shutdown().await.expect("drained");
    assert!(!is_free(&pair.two).await, "another owner has the key");
    Mishap::Deleted.befall(&pair).await;
    assert!(is_free(&pair.two).await);
}

#[distributed_lock(key = "k", client = client, on_lost = "report")]
async fn reporting(
    client: &LockClient,
    body: impl Future<Output = ()>,
) -> Result<&'static str, LockError> {
    body.await;
    Ok("done")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_found_by_the_release_is_an_error_with_on_lost_report() {
    // No renewal is due before the release.
    let pair = pair(LEASE * 20).await;
    assert_eq!(reporting(&pair.one, async {}).await, Ok("done"), "the lock is not lost");
    for mishap in [Mishap::Deleted, Mishap::Overwritten] {
        match reporting(&pair.one, mishap.befall(&pair)).await {
            Err(LockError::Lost { key, reason, .. }) => {
                assert_eq!((key.as_str(), reason), ("k", mishap.reason()));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!is_free(&pair.two).await, "the release does not free the key of another owner");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lock_is_not_released_when_its_guard_is_dropped() {
    let pair = pair(LEASE).await;
    let guard = pair.one.lock("k").acquire().await.expect("free");
    Mishap::Deleted.befall(&pair).await;
    let next = within(LEASE * 10, pair.two.lock("k").acquire()).await.expect("soon").expect("free");
    drop(guard);
    pair.one.shutdown().await.expect("drained");
    sleep(LEASE).await;
    assert!(next.is_held());
    next.release().await.expect("held");
}
