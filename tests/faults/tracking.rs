//! Reports of the server that a key has changed.

use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason};
use lock_tests::{RedisServer, within};
use tokio::time::Instant;

use crate::support::{
    LEASE, acquire_many, assert_all_held, client_with_lease, milliseconds, until, until_idle,
};

/// Renewals are due after a third of it.
const LONG: Duration = LEASE.saturating_mul(10);

/// The shortest time after which a claim that waits is checked without a report.
const CHECK: Duration = Duration::from_millis(750);

/// Resolves when the server reports changes of this many keys, or when it ought to.
async fn watched(server: &RedisServer, count: usize, within: Duration) {
    let _ = until(within, || server.tracked_keys() >= count).await;
}

async fn client(server: &RedisServer) -> LockClient {
    client_with_lease(&server.url(), LONG).await
}

#[tokio::test]
async fn a_lock_whose_key_is_deleted_is_lost_at_once() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let guard = client.lock("k").acquire().await.expect("free");
    watched(&server, 1, LONG / 6).await;
    server.tell(&["DEL", "k"]);
    let reason = within(LONG / 10, guard.lost()).await.expect("the loss is noticed at once");
    assert_eq!(reason, LostReason::Gone);
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
}

#[tokio::test]
async fn a_lock_that_another_client_takes_by_force_is_lost_at_once() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let guard = client.lock("k").acquire().await.expect("free");
    watched(&server, 1, LONG / 6).await;
    server.tell(&["SET", "k", "another", "PX", &milliseconds(LONG)]);
    let reason = within(LONG / 10, guard.lost()).await.expect("the loss is noticed at once");
    assert_eq!(reason, LostReason::Taken);
    drop(guard);
    until_idle(&client, LEASE * 5).await;
    assert!(server.exists("k"), "the lock of the other client stays");
}

#[tokio::test]
async fn a_fixed_lease_whose_key_is_deleted_is_lost_at_once() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let guard = client.lock("k").lease(LONG).acquire().await.expect("free");
    let (granted, left) = (Instant::now(), server.pttl("k"));
    // The request with which the reports begin is held up.
    tokio::time::sleep(LONG / 40).await;
    server.freeze();
    tokio::time::sleep(LONG / 12).await;
    server.thaw();
    watched(&server, 1, LONG / 6).await;
    let extended =
        left - server.pttl("k") - i64::try_from(granted.elapsed().as_millis()).expect("few");
    assert!(extended.abs() < 250, "the key expires when it would: {extended} ms");
    server.tell(&["DEL", "k"]);
    let reason = within(LONG / 10, guard.lost()).await.expect("the loss is noticed at once");
    assert_eq!(reason, LostReason::Gone);
}

#[tokio::test]
async fn all_locks_are_lost_at_once_when_all_keys_are_deleted() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let guards = acquire_many(&client, 20).await;
    watched(&server, 20, LONG / 6).await;
    server.tell(&["FLUSHALL"]);
    for guard in &guards {
        let lost = within(LONG / 10, guard.lost()).await.expect("the loss is noticed at once");
        assert_eq!(lost, LostReason::Gone);
    }
}

/// Holds `k` as a client that sends no messages, and frees it with this command while a call waits
/// for it. Returns the shortest time of a few until the call got it.
async fn freed_by(release: &[&str]) -> Duration {
    let server = RedisServer::start();
    let client = client(&server).await;
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        server.tell(&["SET", "k", "another", "PX", &milliseconds(LONG)]);
        let lock = client.lock("k");
        let waiter = tokio::spawn(async move {
            let guard = lock.acquire().await.expect("the server is up");
            (guard, Instant::now())
        });
        assert!(until(LEASE * 10, || server.queued("k") == 1).await.is_some(), "it waits");
        watched(&server, 1, CHECK / 3).await;
        let freed = Instant::now();
        server.tell(release);
        let (guard, granted) = waiter.await.expect("no panic");
        shortest = shortest.min(granted - freed);
        guard.release().await.expect("held");
    }
    shortest
}

#[tokio::test]
async fn a_release_without_a_message_wakes_the_first_claim_at_once() {
    let woken = freed_by(&["DEL", "k"]).await;
    assert!(woken < CHECK / 4, "the call is woken at once: {woken:?}");
}

/// The client has several claims for the key, and the first one is watched.
#[tokio::test]
async fn a_release_without_a_message_wakes_the_first_of_several_fair_calls_at_once() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        server.tell(&["SET", "k", "another", "PX", &milliseconds(LONG)]);
        let mut calls = Vec::new();
        for n in 1..=5 {
            calls.push(tokio::spawn(client.lock("k").fair().acquire()));
            assert!(until(LEASE * 10, || server.queued("k") == n).await.is_some(), "it waits");
        }
        watched(&server, 1, CHECK / 3).await;
        let freed = Instant::now();
        server.tell(&["DEL", "k"]);
        for (n, call) in calls.into_iter().enumerate() {
            let guard = call.await.expect("no panic").expect("the server is up");
            if n == 0 {
                shortest = shortest.min(freed.elapsed());
            }
            guard.release().await.expect("held");
        }
    }
    assert!(shortest < CHECK / 4, "the call is woken at once: {shortest:?}");
}

#[tokio::test]
async fn a_lock_that_expires_early_wakes_the_first_claim_at_once() {
    let woken = freed_by(&["PEXPIRE", "k", "1"]).await;
    // The server may take a while to notice that a key has expired.
    assert!(woken < CHECK / 3, "the call is woken at once: {woken:?}");
}

#[tokio::test]
async fn only_long_holds_and_waits_are_watched_and_none_after_they_end() {
    let server = RedisServer::start();
    let (one, two) = (client(&server).await, client(&server).await);
    for _ in 0..20 {
        let guard = one.lock("short").acquire().await.expect("free");
        guard.release().await.expect("held");
    }
    assert_eq!(server.tracked_keys(), 0);
    let guards = acquire_many(&one, 20).await;
    let lock = two.lock("k0");
    let waiter = tokio::spawn(async move { lock.acquire().await.expect("the server is up") });
    let all = until(LONG, || server.tracked_keys() == 20).await;
    assert!(all.is_some(), "the server tracks {} keys", server.tracked_keys());
    for guard in guards {
        guard.release().await.expect("held");
    }
    // Released in the background.
    drop(waiter.await.expect("no panic"));
    let none = until(LONG, || server.tracked_keys() == 0).await;
    assert!(none.is_some(), "the server tracks {} keys", server.tracked_keys());
}

/// The locks of a client that the server sends no reports.
async fn locks_work_without_reports(server: &RedisServer, client: LockClient) {
    let guard = client.lock("k").acquire().await.expect("free");
    let lock = client.lock("k");
    let waiter = tokio::spawn(async move { lock.acquire().await.expect("the server is up") });
    assert!(until(LONG, || server.pttl("k") > 0).await.is_some());
    guard.release().await.expect("held");
    let guard = waiter.await.expect("no panic");
    server.tell(&["DEL", "k"]);
    let reason = within(LONG / 2, guard.lost()).await.expect("by the next renewal");
    assert_eq!(reason, LostReason::Gone);
    assert_eq!(server.described("tracking_clients:"), 0);
}

#[tokio::test]
async fn a_server_that_refuses_to_report_changes_is_used_without_reports() {
    let server = RedisServer::start();
    server.tell(&["ACL", "SETUSER", "u", "on", ">password", "~*", "&*", "+@all", "-client"]);
    let client = client_with_lease(&server.url_as("u:password"), LONG).await;
    locks_work_without_reports(&server, client).await;
}

#[tokio::test]
async fn reports_can_be_switched_off() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).lease(LONG).wait(LONG);
    let client = builder.tracking(false).connect().await.expect("up");
    locks_work_without_reports(&server, client).await;
}

/// Deleting the keys of another database is reported like deleting all keys.
#[tokio::test]
async fn many_wrong_reports_cost_few_requests_and_no_lock() {
    let server = RedisServer::with(&["--tracking-table-max-keys", "10"]);
    let client = client_with_lease(&server.url(), LONG / 4).await;
    let mut guards = acquire_many(&client, 20).await;
    let fixed = client.lock("fixed").lease(LONG * 6).acquire().await.expect("free");
    guards.push(fixed);
    watched(&server, 1, LONG / 24).await;
    let mut connection = server.connection();
    let (before, began) = (server.calls("evalsha"), Instant::now());
    while began.elapsed() < LONG / 2 {
        for _ in 0..10 {
            let flush = redis::cmd("SELECT").arg(5).query::<()>(&mut connection);
            flush.expect("a database");
            redis::cmd("FLUSHDB").query::<()>(&mut connection).expect("it is empty");
        }
        tokio::time::sleep(LEASE / 100).await;
    }
    assert_all_held(&guards);
    // Two leases have passed: six renewals, a few verifications before the pauses are as long, and those
    // of the fixed lease. Each is one request, for all locks or for some of them.
    let requests = server.calls("evalsha") - before;
    assert!(requests <= 60, "{requests} requests");
}

#[tokio::test]
async fn changes_during_a_lost_connection_are_noticed() {
    let server = RedisServer::start();
    let client = client(&server).await;
    let renewed = client.lock("k").acquire().await.expect("free");
    let fixed = client.lock("fixed").lease(LONG).acquire().await.expect("free");
    watched(&server, 2, LONG / 6).await;
    server.kill_all_connections();
    for key in ["k", "fixed"] {
        server.tell(&["DEL", key]);
    }
    for guard in [renewed, fixed] {
        let lost = within(LONG / 10, guard.lost()).await.expect("the loss is noticed at once");
        assert_eq!(lost, LostReason::Gone);
    }
}

#[tokio::test]
async fn a_server_that_refuses_reports_of_single_keys_costs_few_requests() {
    let server = RedisServer::start();
    let user = ["ACL", "SETUSER", "u", "on", ">password", "~*", "&*", "+@all", "-client|caching"];
    server.tell(&user);
    let client = client_with_lease(&server.url_as("u:password"), LONG).await;
    server.tell(&["SET", "k", "another"]);
    let lock = client.lock("k");
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    assert!(until(LEASE * 10, || server.queued("k") == 1).await.is_some(), "it waits");
    let before = server.calls("evalsha");
    tokio::time::sleep(CHECK * 4).await;
    let checks = server.calls("evalsha") - before;
    assert!(checks <= 8, "{checks} checks");
    server.tell(&["DEL", "k"]);
    within(CHECK * 5, waiter).await.expect("by a check").expect("no panic").expect("granted");
}
