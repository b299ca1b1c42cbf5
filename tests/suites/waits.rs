//! Calls that hold locks and wait for them, for tests of locks with several holders.

use std::time::Duration;

use lock_runtime::{Lock, LockGuard};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::{LEASE, Pair, until};

/// Longer than any of these tests takes.
pub(crate) const LONG: Duration = LEASE.saturating_mul(200);

pub(crate) async fn held(lock: Lock) -> LockGuard {
    lock.acquire().await.expect("free")
}

pub(crate) async fn release(guard: LockGuard) {
    guard.release().await.expect("held");
}

pub(crate) async fn is_free(lock: Lock) -> bool {
    let Some(guard) = lock.try_acquire().await.expect("store is up") else { return false };
    release(guard).await;
    true
}

/// The number of claims that wait for `k` in the queue of the store.
pub(crate) fn queued(pair: &Pair) -> usize {
    pair.server.as_ref().map_or(0, |server| server.queued("k"))
}

/// Starts a call that waits for `k`. Returns when it has its place behind `before` others.
pub(crate) async fn waiting(pair: &Pair, lock: Lock, before: usize) -> JoinHandle<LockGuard> {
    let call = tokio::spawn(async move { lock.acquire().await.expect("its turn") });
    if pair.server.is_none() {
        // The call takes its place when it is first polled.
        tokio::task::yield_now().await;
        return call;
    }
    let is_queued = || pair.server.as_ref().is_some_and(|it| it.has_woken_claims("k", before + 1));
    assert!(until(LEASE * 20, is_queued).await.is_some(), "the call does not wait");
    call
}

pub(crate) async fn its_turn(call: JoinHandle<LockGuard>) -> LockGuard {
    timeout(LEASE * 60, call).await.expect("its turn").expect("no panic")
}
