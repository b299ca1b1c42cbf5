//! Servers that may have lost locks, and clients that hold grants back for that time (`quarantine`).

use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockError, LockGuard};
use lock_tests::{
    CapturedLog, Cluster, Expected, Proxy, RedisServer, Sentinels, running_time, within,
};
use tokio::time::{sleep, timeout};

use crate::support::{FaultFixture, LEASE, LOCKER, start_keeper, take, until};

const QUARANTINE: Duration = LEASE.saturating_mul(2);

/// The slots of a cluster of three masters are divided evenly.
const FIRST_SLOT_OF_NODE_1: u16 = 16_384 / 3 + 1;

/// Longer than a failover takes.
const LONG: Duration = LEASE.saturating_mul(60);

async fn client_with_quarantine(url: &str) -> LockClient {
    let builder = LockClient::builder().url(url).lease(LEASE).wait(LONG);
    builder.quarantine(QUARANTINE).connect().await.expect("up")
}

/// Waits for the end of the quarantine of a server that has not been used before.
async fn begin(client: &LockClient, key: &str) {
    client.lock(key).run(async {}).await.expect("granted");
}

/// Acquires a lock, and asserts that this takes as long as a quarantine that begins with `event`.
async fn acquire_after(event: &str, client: &LockClient, key: &str) -> LockGuard {
    let began = Instant::now();
    let guard = client.lock(key).acquire().await.expect("granted");
    let took = began.elapsed();
    assert!(took > QUARANTINE * 9 / 10, "granted {took:?} after {event}");
    guard
}

/// Acquires a lock, and asserts that no quarantine delays it.
async fn acquire_at_once(client: &LockClient, key: &str) -> LockGuard {
    let lock = client.lock(key);
    within(QUARANTINE / 2, lock.acquire()).await.expect("there is no quarantine").expect("free")
}

fn assert_in_quarantine(result: Result<LockGuard, LockError>) {
    match result {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("may have lost locks") && cause.contains("QUARANTINE"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_has_lost_its_data_grants_nothing_until_its_locks_have_ended() {
    let mut fixture = FaultFixture::new().await;
    let url = fixture.server.url();
    let holder = client_with_quarantine(&url).await;
    begin(&holder, "k").await;
    let (keeper, first) = start_keeper(&holder, &fixture).await;
    fixture.server.restart();
    let restarted = Instant::now();
    let other = client_with_quarantine(&url).await;
    let second = within(LONG, take(&other, &fixture)).await.expect("over").expect("granted");
    let took = restarted.elapsed();
    assert!(took > QUARANTINE * 9 / 10, "granted {took:?} after the restart");
    assert!(second > first, "{second} after {first}");
    assert!(keeper.await.expect("no panic").is_err(), "the holder has lost its lock");
    fixture.assert_history(Expected::EVERYTHING);
    // The server remembers when the quarantine began, and connections say nothing about it.
    drop(acquire_at_once(&client_with_quarantine(&url).await, "later").await);
    fixture.server.kill_connections("normal");
    drop(acquire_at_once(&holder, "again").await);
}

#[tokio::test]
async fn held_locks_are_renewed_and_released_during_a_quarantine() {
    let mut server = RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let log = CapturedLog::here();
    let client = client_with_quarantine(&server.url()).await;
    begin(&client, "renewed").await;
    let renewed = acquire_at_once(&client, "renewed").await;
    let released = acquire_at_once(&client, "released").await;
    let words = ["WARN", "the server may have lost locks", &server.address()];
    let begun = || log.lines(&words).len();
    assert_eq!(begun(), 1);
    server.restart();
    assert_in_quarantine(client.lock("k").wait(LEASE / 2).acquire().await);
    assert_eq!(begun(), 2);
    released.release().await.expect("held");
    assert!(!server.exists("released"));
    sleep(LEASE).await;
    assert!(renewed.is_held());
    drop(client.lock("k").acquire().await.expect("over"));
    renewed.release().await.expect("held");
}

#[tokio::test]
async fn a_client_that_connects_later_waits_for_the_rest_of_a_quarantine() {
    let server = RedisServer::start();
    let long = QUARANTINE * 4;
    let client = async || {
        let builder = LockClient::builder().url(server.url()).lease(LEASE).wait(LONG);
        builder.quarantine(long).connect().await.expect("up")
    };
    let began = Instant::now();
    let early = client().await;
    assert!(server.exists("lock_quarantine:"), "the quarantine begins at the connect");
    assert_in_quarantine(early.lock("k").wait(LEASE / 4).acquire().await);
    sleep(long / 2).await;
    let connected = Instant::now();
    let late = client().await;
    assert_in_quarantine(late.lock("k").wait(LEASE / 4).acquire().await);
    drop(late.lock("k").acquire().await.expect("free"));
    assert!(began.elapsed() > long * 9 / 10, "granted after {:?}", began.elapsed());
    assert!(running_time(connected) < long, "the quarantine has begun before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_grants_nothing_until_the_locks_of_its_predecessor_have_ended() {
    let sentinels = Sentinels::steady(&[]);
    let client = client_with_quarantine(&sentinels.url()).await;
    begin(&client, "k").await;
    let guard = acquire_at_once(&client, "k").await;
    let is_replicated = || (0..3).all(|server| sentinels.server(server).exists("k"));
    assert!(until(LONG, is_replicated).await.is_some(), "k is replicated");
    guard.release().await.expect("held");
    sentinels.fail_over(0).await;
    // The client has noticed the failover when it reads a marker of another process.
    let is_in_quarantine = async || {
        let waited = client.lock("other").wait(LEASE / 10).acquire().await;
        matches!(waited, Err(LockError::Unavailable { cause, .. }) if cause.contains("may have lost locks"))
    };
    let end = Instant::now() + QUARANTINE * 5;
    while !is_in_quarantine().await {
        assert!(Instant::now() < end, "the promoted replica has no quarantine");
        sleep(LEASE / 100).await;
    }
    let late = client_with_quarantine(&sentinels.url()).await;
    assert_in_quarantine(late.lock("k").wait(LEASE / 10).acquire().await);
    drop(late.lock("k").acquire().await.expect("over"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_a_cluster_have_separate_quarantines() {
    let mut cluster = Cluster::start();
    let client = client_with_quarantine(&cluster.url()).await;
    let keys: Vec<String> = (0..3).map(|shard| cluster.key_of(shard, 0)).collect();
    tokio::join!(begin(&client, &keys[0]), begin(&client, &keys[1]), begin(&client, &keys[2]));
    cluster.kill(0);
    cluster.wait_for_another_master(&keys[0], 0).await;
    drop(acquire_at_once(&client, &cluster.key_of(1, 1)).await);
    drop(acquire_after("the failover", &client, &keys[0]).await);
    // The lowest slots of two nodes change with this move, and their highest ones do not.
    cluster.move_slot(FIRST_SLOT_OF_NODE_1, 1, 2);
    let late = client_with_quarantine(&cluster.url_of(&[1, 2])).await;
    for key in &keys[1..] {
        drop(acquire_at_once(&late, key).await);
        drop(acquire_at_once(&client, key).await);
    }
}

/// The client has sent no request during the failover, so that it learns of it by a redirection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_a_redirection_has_named_has_its_quarantine() {
    let cluster = Cluster::start();
    let idle = client_with_quarantine(&cluster.url()).await;
    let key = cluster.key_of(0, 0);
    begin(&idle, &key).await;
    let replica = cluster.replica_of(0);
    cluster.freeze(0);
    assert_eq!(cluster.wait_for_another_master(&key, 0).await, replica);
    cluster.thaw(0);
    let is_replica = || {
        let role = cluster.try_command::<redis::Value>(0, &["ROLE"]);
        role.is_ok_and(|role| format!("{role:?}").contains("slave"))
    };
    assert!(until(LONG, is_replica).await.is_some(), "the earlier master is a replica");
    drop(acquire_after("the failover", &idle, &key).await);
}

/// The client's connections stay open.
#[tokio::test]
async fn a_server_that_was_a_replica_meanwhile_has_a_new_quarantine() {
    let (server, other) = (RedisServer::plain(&[]), RedisServer::plain(&[]));
    let client = client_with_quarantine(&server.url()).await;
    begin(&client, "k").await;
    server.tell(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    let is_connected = || {
        let info: String = server.command(&["INFO", "replication"]);
        info.contains("master_link_status:up")
    };
    assert!(until(LONG, is_connected).await.is_some(), "the server is a replica");
    server.tell(&["REPLICAOF", "NO", "ONE"]);
    // After this time, connections read the marker again.
    sleep(Duration::from_secs(1)).await;
    drop(acquire_after("the promotion", &client, "k").await);
}

#[tokio::test]
async fn a_server_that_cannot_tell_is_left_for_another_one() {
    for is_silent in [false, true] {
        let (earlier, later) = (RedisServer::plain(&[]), RedisServer::plain(&[]));
        let proxy = Proxy::to(earlier.port());
        let client = client_with_quarantine(&proxy.url()).await;
        begin(&client, "k").await;
        sleep(Duration::from_secs(1)).await;
        proxy.move_to(later.port());
        if is_silent {
            earlier.freeze();
        } else {
            // Neither a read of its marker fails nor a write to it, until it has lost its data.
            earlier.tell(&["FLUSHALL"]);
            earlier.tell(&["REPLICAOF", "127.0.0.1", "1"]);
        }
        let guard = within(LEASE * 8, client.lock("k").acquire()).await;
        let guard = guard.expect("the connection is discarded").expect("granted");
        assert!(later.exists("k"));
        guard.release().await.expect("held");
        if is_silent {
            earlier.thaw();
        }
    }
}

#[tokio::test]
async fn a_call_that_is_not_polled_delays_no_other_acquisition() {
    let server = RedisServer::start();
    let client = client_with_quarantine(&server.url()).await;
    let lock = client.lock("unpolled");
    let mut unpolled = Box::pin(lock.acquire());
    assert!(timeout(Duration::ZERO, &mut unpolled).await.is_err(), "the marker is being read");
    let other = timeout(QUARANTINE * 3 / 2, client.lock("k").acquire()).await;
    drop(other.expect("the read continues").expect("free"));
    drop(unpolled);
}

#[tokio::test]
async fn a_user_without_the_permissions_for_quarantines_is_denied() {
    let server = RedisServer::start();
    let page = include_str!("../../docs/redis.md");
    let permitted = "~lock_quarantine:* +info";
    assert!(page.contains(permitted), "{permitted} is documented");
    server.tell(&LOCKER.split_whitespace().collect::<Vec<_>>());
    let change = |words: &str| {
        let words: Vec<_> = words.split(' ').collect();
        server.tell(&[&["ACL", "SETUSER", "locker"], &words[..]].concat());
    };
    let url = server.url_as("locker:c4nary");
    let assert_denied = |error: LockError| match error {
        LockError::Denied { cause, .. } => {
            let names = ["`quarantine`", "`+info`", "`~lock_quarantine:*`"];
            assert!(names.iter().all(|name| cause.contains(name)), "{cause}");
        }
        other => panic!("{other:?}"),
    };
    let builder = || LockClient::builder().url(&*url).lease(LEASE).quarantine(QUARANTINE);
    change(permitted);
    let client = builder().wait(LONG).connect().await.expect("permitted");
    for missing in ["-info", "resetkeys ~k ~lock_queue:* +info"] {
        change(missing);
        assert_denied(builder().connect().await.expect_err("reported by the connect"));
        // Longer than the marker is remembered.
        sleep(LEASE * 6 / 5).await;
        assert_denied(client.lock("k").acquire().await.expect_err("not permitted"));
        assert!(!server.exists("k"), "no request was sent");
    }
    change(permitted);
    server.tell(&["FLUSHALL"]);
    sleep(LEASE * 6 / 5).await;
    acquire_after("the loss of the marker", &client, "k").await.release().await.expect("held");
}
