//! Renewals that fail, and renewals that meet a release.

use std::time::Duration;

use lock_runtime::LockClient;
use lock_tests::{Log, Proxy, RedisServer, Toward};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::{LEASE, client, milliseconds, until, until_at_rest};

/// Takes so many keys at once and gives each back after a time of its own, by a release or a drop.
async fn hold_and_release(client: &LockClient, holds: u32, time: impl Fn(u32) -> Duration) {
    let mut running = JoinSet::new();
    for n in 0..holds {
        let (client, time) = (client.clone(), time(n));
        running.spawn(async move {
            let guard = client.lock(format!("k{n}")).acquire().await.expect("free");
            sleep(time).await;
            if n % 2 == 0 {
                guard.release().await.expect("held");
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.expect("no panic");
    }
}

/// A third of a lease after the grant there is a renewal; releases fall before it, into it and behind
/// it. Whatever was on its way extends nothing, and nothing comes after.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_renewed_once_its_release_has_begun() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // Long enough for the releases of a busy machine to fall where they ought to.
    let lease = LEASE * 4;
    let client = LockClient::builder().url(proxy.url()).watchdog(lease).connect().await;
    let client = client.expect("up");
    // Renewals are on their way for a while.
    proxy.delay(Toward::Server, lease / 50);
    let holds = 200;
    hold_and_release(&client, holds, |n| lease / 5 + lease * (n % 20) / 100).await;
    // Every release and every renewal looks at its key once, and a renewal in time extends it.
    let extended = server.calls("pexpire");
    assert!((10..190).contains(&extended), "some were renewed before and some not: {extended}");
    until_at_rest(&client, lease).await;
    let late = server.calls("get") - u64::from(holds) - server.calls("pexpire");
    assert!(late < 60, "{late} renewals after the release, and only what was on its way may be");
    // What comes now would be too late by far.
    let (looked, extended) = (server.calls("get"), server.calls("pexpire"));
    sleep(lease).await;
    assert_eq!((server.calls("get"), server.calls("pexpire")), (looked, extended));
    assert_eq!(server.command::<u32>(&["DBSIZE"]), 0);
}

/// The same without a network in between, and all at the moment of the renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_releases_that_meet_their_renewals_leave_no_key() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    hold_and_release(&client, 1000, |n| LEASE * 31 / 100 + LEASE * (n % 10) / 250).await;
    until_at_rest(&client, LEASE).await;
    assert_eq!(server.command::<u32>(&["DBSIZE"]), 0);
    let looked = server.calls("get");
    sleep(LEASE).await;
    assert_eq!(server.calls("get"), looked, "nothing is renewed any more");
    assert_eq!(server.calls("set"), 1000, "each was taken once, and none was made again");
}

/// Holds `k`, releases it while a renewal is on its way, does something, and lets the renewal arrive.
/// Returns the milliseconds that the key has left before that and after it.
async fn late_renewal(min_hold: Option<Duration>, then: impl FnOnce(&RedisServer)) -> (i64, i64) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // Patient enough for the release not to wait for it.
    let client = LockClient::builder().url(proxy.url()).watchdog(LEASE * 6).connect().await;
    let client = client.expect("up");
    let lock = client.lock("k");
    let lock = min_hold.map_or(lock.clone(), |min_hold| lock.min_hold(min_hold));
    let guard = lock.acquire().await.expect("free");
    proxy.hold("EVALSHA");
    assert!(until(LEASE * 3, || proxy.struck() == 1).await.is_some(), "it is on its way");
    guard.release().await.expect("over the other connection");
    then(&server);
    let (left, asked) = (server.pttl("k"), server.calls("evalsha"));
    proxy.deliver();
    assert!(until(LEASE, || server.calls("evalsha") > asked).await.is_some(), "there it comes");
    until_at_rest(&client, LEASE).await;
    (left, server.pttl("k"))
}

#[tokio::test]
async fn a_renewal_that_arrives_after_the_release_makes_no_lock() {
    let (before, after) = late_renewal(None, |_| {}).await;
    assert_eq!((before, after), (-2, -2), "there is no such key");
}

#[tokio::test]
async fn a_renewal_that_arrives_after_the_release_extends_no_successor() {
    let brief = milliseconds(LEASE * 2);
    let succeed = |server: &RedisServer| server.tell(&["SET", "k", "somebody", "PX", &brief]);
    let (before, after) = late_renewal(None, succeed).await;
    assert!(before > 0 && after <= before, "{after} after {before}");
}

/// With `min_hold` the key is still there.
#[tokio::test]
async fn a_renewal_that_arrives_after_the_release_of_a_key_that_stays_does_not_extend_it() {
    let (before, after) = late_renewal(Some(LEASE * 3), |_| {}).await;
    assert!(before > 0 && after <= before, "{after} after {before}");
}

#[tokio::test]
async fn a_renewal_that_fails_once_or_twice_loses_nothing_and_is_logged() {
    let log = Log::here();
    for failures in [1, 2] {
        let server = RedisServer::start();
        let proxy = Proxy::to(server.port());
        let client = LockClient::builder().url(proxy.url()).watchdog(LEASE).connect().await;
        let client = client.expect("up");
        let key = format!("failing:{failures}:{}", server.port());
        let guard = client.lock(&key).acquire().await.expect("free");
        for _ in 0..failures {
            // Only a renewal comes from the watchdog; this client does nothing else.
            proxy.lose_reply_to("EVALSHA");
        }
        let struck = until(LEASE * 2, || proxy.struck() == failures).await;
        assert!(struck.is_some(), "they fail");
        let works = || !log.lines(&["INFO", &key, "renewal works again"]).is_empty();
        assert!(until(LEASE, works).await.is_some(), "it is tried again");
        assert!(!log.lines(&["WARN", &key, "renewal failed"]).is_empty(), "and says so");
        assert!(log.lines(&[&key, "lost"]).is_empty());
        let start = Instant::now();
        while start.elapsed() < LEASE * 2 {
            assert!(guard.is_held());
            sleep(LEASE / 10).await;
        }
        guard.release().await.expect("held");
    }
}
