//! Servers that may have lost locks, and clients that hold grants back for that time (`quarantine`).

use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockError, LockGuard};
use lock_tests::{CapturedLog, Cluster, Expected, RedisServer, Sentinels};
use tokio::time::{sleep, timeout};

use crate::support::{FaultFixture, LEASE, LOCKER, start_keeper, take, until};

const QUARANTINE: Duration = LEASE.saturating_mul(2);

/// Longer than a failover takes.
const LONG: Duration = LEASE.saturating_mul(60);

async fn client_with_quarantine(url: &str) -> LockClient {
    let builder = LockClient::builder().url(url).lease(LEASE).wait(LONG);
    builder.quarantine(QUARANTINE).connect().await.expect("up")
}

/// Acquires a lock, and asserts that this takes as long as a quarantine.
async fn acquire_after_quarantine(client: &LockClient, key: &str) -> LockGuard {
    let began = Instant::now();
    let guard = client.lock(key).acquire().await.expect("granted");
    let took = began.elapsed();
    assert!(took > QUARANTINE * 9 / 10, "granted {took:?} after the restart or failover");
    guard
}

/// Acquires a lock, and asserts that no quarantine delays it.
async fn acquire_at_once(client: &LockClient, key: &str) -> LockGuard {
    let lock = client.lock(key);
    timeout(QUARANTINE / 2, lock.acquire()).await.expect("there is no quarantine").expect("free")
}

fn assert_in_quarantine(result: Result<LockGuard, LockError>) {
    match result {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("may have lost locks") && cause.contains("`quarantine`"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_has_lost_its_data_grants_nothing_until_its_locks_have_ended() {
    let mut fixture = FaultFixture::new().await;
    let url = fixture.server.url();
    let holder = client_with_quarantine(&url).await;
    acquire_after_quarantine(&holder, "first").await.release().await.expect("held");
    let (keeper, first) = start_keeper(&holder, &fixture).await;
    fixture.server.restart();
    let restarted = Instant::now();
    let other = client_with_quarantine(&url).await;
    let second = timeout(LONG, take(&other, &fixture)).await.expect("over").expect("granted");
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
    let renewed = acquire_after_quarantine(&client, "renewed").await;
    let released = acquire_at_once(&client, "released").await;
    let begun = || log.lines(&["WARN", "the server may have lost locks"]).len();
    assert_eq!(begun(), 1);
    server.restart();
    assert_in_quarantine(client.lock("k").wait(LEASE / 2).acquire().await);
    assert_eq!(begun(), 2);
    released.release().await.expect("held");
    assert!(!server.exists("released"));
    sleep(LEASE).await;
    assert!(renewed.is_held());
    drop(acquire_at_once(&client, "k").await);
    renewed.release().await.expect("held");
}

#[tokio::test]
async fn a_client_that_connects_later_waits_for_the_rest_of_a_quarantine() {
    let server = RedisServer::start();
    let early = client_with_quarantine(&server.url()).await;
    assert_in_quarantine(early.lock("k").wait(LEASE / 4).acquire().await);
    sleep(QUARANTINE / 2).await;
    let late = client_with_quarantine(&server.url()).await;
    assert_in_quarantine(late.lock("k").wait(LEASE / 4).acquire().await);
    let rest = timeout(QUARANTINE * 3 / 4, late.lock("k").acquire()).await;
    drop(rest.expect("it has begun before").expect("free"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_grants_nothing_until_the_locks_of_its_predecessor_have_ended() {
    let sentinels = Sentinels::steady(&[]);
    let client = client_with_quarantine(&sentinels.url()).await;
    let guard = acquire_after_quarantine(&client, "k").await;
    let is_replicated = || (0..3).all(|server| sentinels.server(server).exists("k"));
    assert!(until(LONG, is_replicated).await.is_some(), "k is replicated");
    guard.release().await.expect("held");
    sentinels.failover();
    sentinels.wait_for_another_master(0).await;
    // The client has noticed the failover when it reads a marker of another process.
    let is_in_quarantine = async || {
        let waited = client.lock("other").wait(LEASE / 10).acquire().await;
        matches!(waited, Err(LockError::Unavailable { .. }))
    };
    let end = Instant::now() + LONG;
    while !is_in_quarantine().await {
        assert!(Instant::now() < end, "the promoted replica has no quarantine");
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
    let first = |shard: usize| acquire_after_quarantine(&client, &keys[shard]);
    drop(tokio::join!(first(0), first(1), first(2)));
    cluster.kill(0);
    cluster.wait_for_another_master(&keys[0], 0).await;
    drop(acquire_at_once(&client, &cluster.key_of(1, 1)).await);
    drop(acquire_after_quarantine(&client, &keys[0]).await);
    // Locks that move with their slot are not lost.
    let slot = cluster.slot_of(&keys[1]);
    cluster.move_slot(slot, 1, 2);
    drop(acquire_at_once(&client, &keys[1]).await);
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
    let client = client_with_quarantine(&server.url_as("locker:c4nary")).await;
    for missing in ["+info", "~lock_quarantine:* -info"] {
        change(missing);
        match client.lock("k").acquire().await {
            Err(LockError::Denied { cause, .. }) => {
                let names = ["`quarantine`", "`+info`", "`~lock_quarantine:*`"];
                assert!(names.iter().all(|name| cause.contains(name)), "{cause}");
            }
            other => panic!("{other:?}"),
        }
        assert!(!server.exists("k"), "no request was sent");
    }
    change(permitted);
    acquire_after_quarantine(&client, "k").await.release().await.expect("held");
}
