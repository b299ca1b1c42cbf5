//! Renewals that fail, and renewals that race with a release.

use std::time::Duration;

use lock_runtime::{Identity, LockClient};
use lock_tests::{CapturedLog, Proxy, RedisServer, Toward};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::{LEASE, client_without_reports, milliseconds, until, until_idle};

/// Takes `holds` keys at once, and frees each key after a time of its own by a release or a drop.
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

/// The renewal is due a third of a lease after the grant. The releases begin before, during and
/// after it. A renewal that is already in flight extends nothing, and none is sent later.
#[tokio::test(flavor = "multi_thread")]
async fn no_renewal_is_sent_after_the_release_has_begun() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // Long enough for releases to begin at the intended times on a busy machine.
    let lease = LEASE * 4;
    // Reports of the server would make the first renewal earlier.
    let client = client_without_reports(&proxy.url(), lease).await;
    // Renewals are in flight for a while.
    proxy.delay(Toward::Server, lease / 50);
    let holds = 200;
    hold_and_release(&client, holds, |n| lease / 5 + lease * (n % 20) / 100).await;
    // Every release and every renewal reads its key once. A renewal in time also extends it.
    let extended = server.calls("pexpire");
    assert!(
        (10..190).contains(&extended),
        "some, but not all locks must be renewed before the release: {extended}"
    );
    until_idle(&client, lease).await;
    let late = server.calls("get") - u64::from(holds) - server.calls("pexpire");
    assert!(late < 60, "{late} renewals after the release, more than were in flight");
    // From now on, any renewal would be far too late.
    let (looked, extended) = (server.calls("get"), server.calls("pexpire"));
    sleep(lease).await;
    assert_eq!((server.calls("get"), server.calls("pexpire")), (looked, extended));
    assert_eq!(server.key_count(), 0);
}

/// The same without a proxy, and with all releases at the time of the renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_releases_that_race_with_renewals_leave_no_key() {
    let server = RedisServer::start();
    // Long enough for a busy machine to renew a thousand locks in time.
    let lease = LEASE * 4;
    // Without a presence, which is written with the same command.
    let builder = LockClient::builder().url(server.url()).lease(lease).identity(Identity::none());
    let client = builder.connect().await.expect("up");
    hold_and_release(&client, 1000, |n| lease * 31 / 100 + lease * (n % 10) / 250).await;
    until_idle(&client, lease).await;
    assert_eq!(server.key_count(), 0);
    let looked = server.calls("get");
    sleep(lease).await;
    assert_eq!(server.calls("get"), looked, "no renewal is sent after the release");
    assert_eq!(server.calls("set"), 1000, "each key is taken once, and none is created again");
}

/// Releases `k` while a renewal is in flight, calls `then`, and lets the renewal arrive. Returns
/// the time to live of the key in milliseconds, before and after the renewal.
async fn late_renewal(min_hold: Option<Duration>, then: impl FnOnce(&RedisServer)) -> (i64, i64) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // The release does not time out while the renewal is held back.
    let client = LockClient::builder().url(proxy.url()).lease(LEASE * 6).connect().await;
    let client = client.expect("up");
    let lock = client.lock("k");
    let lock = min_hold.map_or(lock.clone(), |min_hold| lock.min_hold(min_hold));
    let guard = lock.acquire().await.expect("free");
    proxy.hold("EVALSHA");
    assert!(
        until(LEASE * 3, || proxy.triggered() == 1).await.is_some(),
        "the renewal is in flight"
    );
    guard.release().await.expect("over the other connection");
    then(&server);
    let (left, asked) = (server.pttl("k"), server.calls("evalsha"));
    proxy.deliver();
    assert!(
        until(LEASE * 10, || server.calls("evalsha") > asked).await.is_some(),
        "the renewal arrives"
    );
    until_idle(&client, LEASE).await;
    (left, server.pttl("k"))
}

#[tokio::test]
async fn a_renewal_that_arrives_after_the_release_does_not_recreate_the_key() {
    let (before, after) = late_renewal(None, |_| {}).await;
    assert_eq!((before, after), (-2, -2), "the key does not exist");
}

#[tokio::test]
async fn a_renewal_that_arrives_after_the_release_does_not_extend_the_lock_of_a_successor() {
    let brief = milliseconds(LEASE * 2);
    let succeed = |server: &RedisServer| server.tell(&["SET", "k", "stranger", "PX", &brief]);
    let (before, after) = late_renewal(None, succeed).await;
    assert!(before > 0 && after <= before, "{after} after {before}");
}

/// With `min_hold`, the key still exists after the release.
#[tokio::test]
async fn a_renewal_that_arrives_after_the_release_does_not_extend_the_min_hold() {
    let (before, after) = late_renewal(Some(LEASE * 3), |_| {}).await;
    assert!(before > 0 && after <= before, "{after} after {before}");
}

#[tokio::test]
async fn a_renewal_that_fails_once_or_twice_costs_no_lock_and_is_logged() {
    let log = CapturedLog::here();
    for failures in [1, 2] {
        let server = RedisServer::start();
        let proxy = Proxy::to(server.port());
        let client = LockClient::builder().url(proxy.url()).lease(LEASE).connect().await;
        let client = client.expect("up");
        let key = format!("failing:{failures}:{}", server.port());
        let guard = client.lock(&key).acquire().await.expect("free");
        for _ in 0..failures {
            // The client sends only renewals, so each lost reply is that of a renewal.
            proxy.lose_reply_to("EVALSHA");
        }
        let triggered = until(LEASE * 2, || proxy.triggered() == failures).await;
        assert!(triggered.is_some(), "the renewals fail");
        let works = || !log.lines(&["INFO", &key, "renewal works again"]).is_empty();
        assert!(until(LEASE, works).await.is_some(), "the renewal is retried");
        assert!(!log.lines(&["WARN", &key, "renewal failed"]).is_empty(), "the failure is logged");
        assert!(log.lines(&[&key, "lost"]).is_empty());
        let start = Instant::now();
        while start.elapsed() < LEASE * 2 {
            assert!(guard.is_held());
            sleep(LEASE / 10).await;
        }
        guard.release().await.expect("held");
    }
}
