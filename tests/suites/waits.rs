//! Calls that hold locks and wait for them, for tests of locks with several holders.

use std::time::Duration;

use lock_runtime::{Lock, LockClient, LockError, LockGuard};
use lock_tests::support::until_idle;
use lock_tests::{RedisServer, within};
use tokio::task::JoinHandle;

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
    let of_store = || pair.store.as_ref().map_or(0, |store| store.queued("k"));
    pair.server.as_ref().map_or_else(of_store, |server| server.queued("k"))
}

/// Starts a call that waits for `k`. Returns when it has its place behind `before` others.
pub(crate) async fn waiting(pair: &Pair, lock: Lock, before: usize) -> JoinHandle<LockGuard> {
    let call = tokio::spawn(async move { lock.acquire().await.expect("its turn") });
    if pair.server.is_none() && pair.store.is_none() {
        // The call takes its place when it is first polled.
        tokio::task::yield_now().await;
        return call;
    }
    let of_store = || pair.store.as_ref().is_some_and(|it| it.has_woken_claims("k", before + 1));
    let of_server = |server: &RedisServer| server.has_woken_claims("k", before + 1);
    let is_queued = || pair.server.as_ref().map_or_else(of_store, of_server);
    assert!(until(LEASE * 20, is_queued).await.is_some(), "the call does not wait");
    call
}

pub(crate) async fn its_turn(call: JoinHandle<LockGuard>) -> LockGuard {
    within(LEASE * 60, call).await.expect("its turn").expect("no panic")
}

/// Asserts that `k` holds a lock of the kind `found` and not of the kind `expected`.
pub(crate) fn assert_wrong_kind(error: &LockError, found: &str, expected: &str) {
    match error {
        LockError::WrongFormat { key, found: has, expected: wants, .. } => {
            assert_eq!((key.as_str(), has.as_str(), *wants), ("k", found, expected));
        }
        _ => panic!("{error:?}"),
    }
}

/// Values that are no locks of ours, and what is said of them. The key is the second word of each command.
pub(crate) const FOREIGN: [(&str, &[&str]); 8] = [
    ("string", &["SET", "k", "7", "PX", "100000"]),
    ("hash", &["HSET", "k", "field", "1"]),
    ("Redisson read-write lock", &["HSET", "k", "mode", "read", "a:1", "1"]),
    ("list", &["RPUSH", "k", "a"]),
    ("set", &["SADD", "k", "a"]),
    ("stream", &["XADD", "k", "*", "a", "b"]),
    ("zset", &["ZADD", "k", "1700000000000", "a"]),
    ("zset", &["ZADD", "k", "90000000000000", "a"]),
];

/// Asserts for each foreign value under `k` that the call fails with its kind, and does not change it.
pub(crate) async fn assert_foreign_values_are_errors(
    server: &RedisServer,
    client: &LockClient,
    expected: &str,
    call: impl AsyncFn() -> LockError,
) {
    for (found, set) in FOREIGN {
        // A string under the key of an exclusive lock is a lock.
        if found == expected {
            continue;
        }
        server.tell(set);
        let before: Vec<u8> = server.command(&["DUMP", "k"]);
        assert_wrong_kind(&call().await, found, expected);
        until_idle(client, LEASE * 5).await;
        assert_eq!(server.command::<Vec<u8>>(&["DUMP", "k"]), before, "{found}");
        server.tell(&["DEL", "k"]);
    }
}
