//! Whether a client tells that its store can grant no locks now.

use std::time::Duration;

use lock_runtime::{LockClient, LockError, WireFormat};
use lock_tests::{Cluster, RedisServer, Sentinels, running_time};
use tokio::time::Instant;

use crate::support::{LEASE, LOCKER, client_with_lease};

/// With this lease, a busy server answers a check in time.
const LONG_LEASE: Duration = LEASE.saturating_mul(4);

/// The cause for which the client of a lease of at most [`LONG_LEASE`] is not ready.
async fn cause(client: &LockClient) -> String {
    let began = Instant::now();
    let outcome = client.ready().await;
    // Documented are 5/12 of the lease, and the machine may be busy.
    let limit = LONG_LEASE * 5 / 12 + LEASE;
    assert!(running_time(began) < limit, "took {:?}", began.elapsed());
    match outcome {
        Err(LockError::Unavailable { key: None, cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

/// Waits until the client is ready.
async fn becomes_ready(client: &LockClient) {
    let began = Instant::now();
    while let Err(error) = client.ready().await {
        assert!(running_time(began) < LEASE * 60, "{error}");
        tokio::time::sleep(LEASE / 20).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_down_or_suspended_is_not_ready() {
    let mut server = RedisServer::plain(&[]);
    let client = client_with_lease(&server.url(), LEASE).await;
    becomes_ready(&client).await;
    server.freeze();
    let suspended = cause(&client).await;
    assert!(suspended.contains("no answer from"), "{suspended}");
    server.thaw();
    becomes_ready(&client).await;
    server.kill();
    cause(&client).await;
    server.restart();
    becomes_ready(&client).await;
    client.lock("k").run(async {}).await.expect("ready");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_rejects_writes_is_not_ready() {
    let server = RedisServer::plain(&[]);
    let client = client_with_lease(&server.url(), LONG_LEASE).await;
    for (code, begin, end) in [
        ("OOM", ["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
        (
            "NOREPLICAS",
            ["CONFIG", "SET", "min-replicas-to-write", "1"],
            ["CONFIG", "SET", "min-replicas-to-write", "0"],
        ),
    ] {
        client.ready().await.expect("up");
        server.tell(&begin);
        let cause = cause(&client).await;
        assert!(cause.contains(code), "{cause}");
        server.tell(&end);
        becomes_ready(&client).await;
    }
    server.tell(&["REPLICAOF", "127.0.0.1", "1"]);
    let cause = cause(&client).await;
    assert!(cause.contains("READONLY"), "{cause}");
    server.tell(&["REPLICAOF", "NO", "ONE"]);
    becomes_ready(&client).await;
    assert_eq!(server.key_count(), 0, "a check leaves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_permissions_is_denied() {
    let server = RedisServer::plain(&[]);
    let words: Vec<&str> = LOCKER.split_whitespace().collect();
    server.tell(&words);
    let url = server.url_as("locker:c4nary");
    let client = client_with_lease(&url, LONG_LEASE).await;
    let redisson =
        LockClient::builder().url(&url).lease(LONG_LEASE).wire_format(WireFormat::Redisson);
    let redisson = redisson.connect().await.expect("up");
    client.ready().await.expect("these permissions are enough");
    server.tell(&["ACL", "SETUSER", "locker", "-zadd"]);
    match client.ready().await {
        Err(LockError::Denied { .. }) => {}
        other => panic!("{other:?}"),
    }
    redisson.ready().await.expect("its locks have no queues");
    server.tell(&["ACL", "SETUSER", "locker", "resetpass", ">other"]);
    server.kill_all_connections();
    for client in [&client, &redisson] {
        let is_denied = async || matches!(client.ready().await, Err(LockError::Denied { .. }));
        let mut outcomes = 0;
        while !is_denied().await {
            outcomes += 1;
            assert!(outcomes < 100, "{:?}", client.ready().await);
            tokio::time::sleep(LEASE / 20).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_in_quarantine_is_not_ready() {
    let mut server = RedisServer::plain(&[]);
    let builder = LockClient::builder().url(server.url()).lease(LEASE).quarantine(LEASE * 5);
    let client = builder.connect().await.expect("up");
    becomes_ready(&client).await;
    server.kill();
    server.restart();
    let began = Instant::now();
    becomes_ready(&client).await;
    assert!(began.elapsed() > LEASE * 3, "ready after {:?}", began.elapsed());
    client.lock("k").wait(Duration::ZERO).run(async {}).await.expect("ready");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_not_ready_without_one_of_its_masters() {
    let mut cluster = Cluster::start();
    let client = client_with_lease(&cluster.url(), LONG_LEASE).await;
    client.ready().await.expect("up");
    let replica = cluster.replica_of(1);
    let key = cluster.key_of(1, 0);
    cluster.kill(1);
    match client.ready().await {
        Err(LockError::Unavailable { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(cluster.wait_for_another_master(&key, 1).await, replica);
    becomes_ready(&client).await;
    client.lock(key).run(async {}).await.expect("ready");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_ready_after_a_failover() {
    let mut sentinels = Sentinels::start();
    let client = client_with_lease(&sentinels.url(), LONG_LEASE).await;
    client.ready().await.expect("up");
    sentinels.kill(0);
    match client.ready().await {
        Err(LockError::Unavailable { .. }) => {}
        other => panic!("{other:?}"),
    }
    sentinels.wait_for_another_master(0).await;
    becomes_ready(&client).await;
    client.lock("k").run(async {}).await.expect("ready");
}

#[tokio::test]
async fn a_client_that_is_shut_down_is_not_ready() {
    let client = LockClient::memory();
    client.ready().await.expect("always");
    client.shutdown().await.expect("idle");
    assert_eq!(client.ready().await, Err(LockError::ShutDown));
}
