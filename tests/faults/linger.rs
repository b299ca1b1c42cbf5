//! Locks that are kept for a moment after their release, for the next call of their client.

use std::time::Duration;

use lock_runtime::{Identity, LockClient};
use lock_tests::{RedisServer, running_time, running_time_between, within};
use tokio::time::{Instant, sleep};

use crate::support::{LEASE, client, client_without_reports, until, until_idle};

/// Long enough for a busy machine to make the next call.
const LINGER: Duration = LEASE.checked_div(4).expect("not zero");

/// The requests that take or free locks.
fn requests(server: &RedisServer) -> u64 {
    server.calls("set") + server.calls("evalsha")
}

async fn client_with_linger(url: &str, linger: Duration) -> LockClient {
    let builder = LockClient::builder().url(url).lease(LEASE * 10).wait(LEASE * 60);
    // A tenure at its limit would end by a request for the number of waiting processes.
    let builder = builder.linger(linger).handoff_limit(u32::MAX, LEASE);
    // Without a presence, whose `SET` would be counted.
    builder.identity(Identity::none()).connect().await.expect("up")
}

async fn lingering(server: &RedisServer) -> LockClient {
    client_with_linger(&server.url(), LINGER).await
}

/// Holds the lock on `k`, and leaves it lingering. A lock that others have waited for a moment ago does
/// not linger.
async fn linger(client: &LockClient) {
    let began = Instant::now();
    while client.stats().lingering == 0 {
        client.lock("k").run(async {}).await.expect("free");
        assert_eq!(client.stats().held, 0);
        assert!(running_time(began) < LEASE * 5, "the lock does not linger");
    }
}

#[tokio::test]
async fn the_next_call_needs_no_request() {
    let server = RedisServer::start();
    let client = lingering(&server).await;
    linger(&client).await;
    let before = requests(&server);
    let began = Instant::now();
    for _ in 0..100 {
        client.lock("k").run(async {}).await.expect("free");
    }
    // The first tenure of a busy machine may end before.
    if began.elapsed() < LINGER / 10 {
        assert_eq!(requests(&server), before);
    }
    assert!(requests(&server) <= before + 20, "{} requests", requests(&server) - before);
    assert!(server.exists("k"));
    until_idle(&client, LEASE * 5).await;
    assert!(!server.exists("k"), "it is freed in the end");
    assert_eq!(client.stats().lost, 0);
}

#[tokio::test]
async fn a_lock_lingers_for_no_longer_than_its_time() {
    let server = RedisServer::start();
    let client = lingering(&server).await;
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        linger(&client).await;
        let freed = until(LEASE * 5, || !server.exists("k")).await.expect("it is freed");
        shortest = shortest.min(freed);
    }
    assert!(shortest < LINGER + LEASE / 20, "{shortest:?}");
    assert_eq!(client.stats().lingering, 0);
}

/// The next call would take a lock that another client has by now.
#[tokio::test]
async fn a_lock_that_is_deleted_while_it_lingers_lingers_no_longer() {
    let server = RedisServer::start();
    let client = client_with_linger(&server.url(), LEASE).await;
    let guard = client.lock("k").acquire().await.expect("free");
    assert!(until(LEASE * 5, || server.tracked_keys() > 0).await.is_some(), "not watched");
    guard.release().await.expect("held");
    assert_eq!(client.stats().lingering, 1);
    server.tell(&["SET", "k", "another", "PX", "60000"]);
    let ended = until(LEASE / 2, || client.stats().lingering == 0).await;
    assert!(ended.is_some(), "the report ends the lingering");
    assert!(client.lock("k").try_acquire().await.expect("up").is_none(), "there are two holders");
}

#[tokio::test]
async fn a_lost_connection_ends_the_lingering() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).lease(LEASE * 10).linger(LEASE);
    let client = builder.tracking(false).connect().await.expect("up");
    linger(&client).await;
    server.kill_all_connections();
    let ended = until(LEASE / 2, || client.stats().lingering == 0).await;
    assert!(ended.is_some(), "the lock lingers although the server may have lost it");
    until_idle(&client, LEASE * 5).await;
}

/// The server reports nothing over a new connection about a queue that was looked for over the last one.
#[tokio::test]
async fn a_process_that_begins_to_wait_after_a_reconnection_gets_the_lock_at_once() {
    let server = RedisServer::start();
    let (one, other) =
        (client_with_linger(&server.url(), LEASE).await, client(&server.url()).await);
    linger(&one).await;
    let guard = one.lock("k").acquire().await.expect("it lingers");
    server.kill_all_connections();
    // The client is connected again.
    until(LEASE * 5, || server.described("connected_clients:") >= 4).await;
    tokio::time::sleep(LEASE / 10).await;
    guard.release().await.expect("held");
    tokio::time::sleep(LEASE / 20).await;
    let began = Instant::now();
    let next = other.lock("k").wait(LEASE * 10).acquire().await.expect("free soon");
    let waited = running_time(began);
    assert!(waited < LEASE / 2, "the lock is passed on at once: {waited:?}");
    next.release().await.expect("held");
}

#[tokio::test]
async fn another_process_that_begins_to_wait_gets_the_lock_at_once() {
    let server = RedisServer::start();
    let (one, other) = (lingering(&server).await, client(&server.url()).await);
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        linger(&one).await;
        // The server reports that the other one waits.
        let _ = until(LINGER / 5, || server.tracked_keys() > 0).await;
        let began = Instant::now();
        let guard = other.lock("k").acquire().await.expect("free soon");
        shortest = shortest.min(running_time(began));
        guard.release().await.expect("held");
        until_idle(&one, LEASE * 5).await;
    }
    assert!(shortest < LINGER / 4, "the lock is passed on at once: {shortest:?}");
}

/// The first process asks whether others wait when its lock begins to linger.
#[tokio::test]
async fn a_process_that_waits_already_gets_the_lock_at_once() {
    let server = RedisServer::start();
    let (one, other) =
        (client_with_linger(&server.url(), LEASE).await, client(&server.url()).await);
    let guard = one.lock("k").acquire().await.expect("free");
    let lock = other.lock("k").wait(LEASE * 10);
    let waiter = tokio::spawn(async move {
        let guard = lock.acquire().await.expect("the server is up");
        (guard, Instant::now())
    });
    assert!(until(LEASE * 5, || server.queued("k") == 1).await.is_some());
    let released = Instant::now();
    guard.release().await.expect("held");
    let (guard, granted) = waiter.await.expect("no panic");
    let took = running_time_between(released, granted);
    assert!(took < LEASE / 2, "the lock is passed on at once: {took:?}");
    guard.release().await.expect("held");
}

#[tokio::test]
async fn a_process_that_uses_a_lock_all_the_time_does_not_keep_it_from_others() {
    let server = RedisServer::start();
    let one = client_without_reports(&server.url(), LEASE * 10).await;
    let lock = one.lock("k").linger(LINGER);
    let busy = tokio::spawn(async move {
        loop {
            lock.run(async {}).await.expect("free");
            sleep(LINGER / 50).await;
        }
    });
    let other = client(&server.url()).await;
    for _ in 0..3 {
        let granted = within(LEASE * 4, other.lock("k").wait(LEASE * 60).acquire()).await;
        granted.expect("its turn").expect("free").release().await.expect("held");
    }
    busy.abort();
}

#[tokio::test]
async fn a_lock_that_lingers_is_freed_by_a_shutdown_and_when_the_client_is_dropped() {
    let server = RedisServer::start();
    let client = lingering(&server).await;
    linger(&client).await;
    client.shutdown().await.expect("all is released");
    assert!(!server.exists("k"));
    let client = lingering(&server).await;
    linger(&client).await;
    drop(client);
    assert!(until(LEASE * 3, || !server.exists("k")).await.is_some(), "it is freed");
}

#[tokio::test]
async fn a_lock_that_lingers_is_freed_when_all_keys_are_deleted() {
    let server = RedisServer::start();
    let client = lingering(&server).await;
    linger(&client).await;
    server.tell(&["FLUSHALL"]);
    assert!(until(LINGER / 2, || client.stats().lingering == 0).await.is_some(), "not in time");
    until_idle(&client, LEASE * 5).await;
}
