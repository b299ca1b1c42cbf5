//! Calls that hold locks and wait for them, for tests of locks with several holders.

use std::time::Duration;

use lock_runtime::{Lock, LockGuard};
use lock_tests::{RedisServer, within};
use tokio::task::JoinHandle;

use crate::support::{LEASE, until};

/// The lease of a transfer: how long a call delays the others that hears of its lock and does nothing.
pub(crate) const TRANSFER: Duration = Duration::from_secs(3);

pub(crate) async fn held(lock: Lock) -> LockGuard {
    lock.acquire().await.expect("free")
}

pub(crate) async fn release(guard: LockGuard) {
    guard.release().await.expect("held");
}

/// A call that waits for `k`.
pub(crate) async fn waiting(server: &RedisServer, lock: Lock) -> JoinHandle<LockGuard> {
    let before = server.queued("k");
    let call = tokio::spawn(async move { lock.acquire().await.expect("its turn") });
    assert_queued(server, before + 1).await;
    call
}

/// Waits until so many claims stand in the queue of `k`, and a message would wake each of them.
pub(crate) async fn assert_queued(server: &RedisServer, count: usize) {
    let are_queued = until(LEASE * 20, || server.has_woken_claims("k", count)).await;
    assert!(are_queued.is_some(), "{} claims, not {count}", server.queued("k"));
}

pub(crate) async fn its_turn(call: JoinHandle<LockGuard>, limit: Duration) -> LockGuard {
    within(limit, call).await.expect("its turn").expect("no panic")
}
