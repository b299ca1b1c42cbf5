//! Many locks at once.

use lock_runtime::{LockClient, LockGuard};
use lock_tests::RedisServer;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::LEASE;

const LOCKS: usize = 10_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_held_locks_are_renewed_on_time() {
    let server = RedisServer::start();
    let lease = LEASE * 18;
    let builder = LockClient::builder().url(server.url()).lease(lease).wait(lease * 10);
    let client = builder.connect().await.expect("up");
    let mut acquiring = JoinSet::new();
    for n in 0..LOCKS {
        let lock = client.lock(format!("k{n}"));
        acquiring.spawn(async move { lock.acquire().await });
    }
    let mut guards: Vec<LockGuard> = Vec::with_capacity(LOCKS);
    while let Some(acquired) = acquiring.join_next().await {
        guards.push(acquired.expect("no panic").expect("free"));
    }

    // On a busy machine, some of the attempts were repeated.
    let (began, before) = (Instant::now(), server.calls("evalsha"));
    // Four renewals of each lock.
    let end = began + lease * 4 / 3;
    let mut lowest = lease;
    while Instant::now() < end {
        let now = guards.iter().map(LockGuard::remaining).min().unwrap_or_default();
        lowest = lowest.min(now);
        tokio::time::sleep(lease / 100).await;
    }
    // Renewals are due when two thirds of the lease remain. A quarter leaves a margin for a busy
    // machine.
    assert!(lowest > lease / 4, "the latest renewal left {lowest:?} of {lease:?}");
    assert_eq!(server.key_count(), LOCKS);
    let calls = server.calls("evalsha") - before;
    // Renewals go out three times in a lease, in batches of up to 100, of which some are not full.
    let rounds = began.elapsed().as_secs() / (lease / 3).as_secs() + 2;
    let most = rounds * LOCKS as u64 / 50;
    assert!(calls <= most, "{calls} requests, so renewals are not batched");

    drop(guards);
    client.shutdown().await.expect("all released");
    assert_eq!(server.key_count(), 0);
}

/// A call that is answered makes room for another one below the limit of requests in flight.
#[tokio::test]
async fn more_calls_than_the_limit_of_requests_in_flight_succeed_one_after_the_other() {
    let server = RedisServer::start();
    let client = LockClient::builder().url(server.url()).lease(LEASE * 30);
    let client = client.connect().await.expect("up");
    for n in 0..1100 {
        let outcome = client.lock("k").wait(LEASE * 3 / 2).run(async {}).await;
        assert!(outcome.is_ok(), "{n}: {outcome:?}");
    }
}
