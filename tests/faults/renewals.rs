//! Renewals that fail, and renewals that meet a release.

use lock_runtime::LockClient;
use lock_tests::{Proxy, RedisServer, keep_log, logged};
use tokio::time::{Instant, sleep};

use crate::support::{LEASE, until, until_at_rest};

/// A third of the watchdog's lease after the grant there is a renewal; a release falls before it, into
/// it and behind it. Whatever was on its way extends nothing, and nothing comes after.
#[tokio::test]
async fn nothing_is_renewed_once_its_release_has_begun() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // The shortest that there is.
    let lease = LEASE / 10;
    let client = LockClient::builder().url(proxy.url()).watchdog(lease).wait(LEASE * 20);
    let client = client.connect().await.expect("up");
    // Renewals are on their way for a while.
    proxy.delay(lock_tests::Toward::Server, lease / 30);
    let renewals = || server.calls("pexpire");
    let mut met = 0;
    for n in 0..200 {
        let key = format!("k{n}");
        let guard = client.lock(&key).acquire().await.expect("free");
        let before = renewals();
        sleep(lease / 5 + (lease * (n % 20)) / 100).await;
        guard.release().await.expect("held");
        met += u32::from(renewals() > before);
        // A successor with the same key, and no other token: nobody of ours may extend it.
        server.tell(&["SET", &key, "somebody", "PX", "100000"]);
    }
    assert!((10..190).contains(&met), "some were renewed before and some not: {met}");
    // One release each, and what is left are renewals that came too late: those that were on their
    // way, which the network makes a few.
    let late = server.calls("evalsha") - 200 - renewals();
    assert!(late < 60, "{late} renewals after the release");
    until_at_rest(&client, LEASE).await;
    // What was on its way has arrived.
    sleep(lease).await;
    let (extended, asked) = (renewals(), server.calls("evalsha"));
    sleep(lease * 3).await;
    assert_eq!((renewals(), server.calls("evalsha")), (extended, asked), "nothing comes after");
    for n in 0..200 {
        let left = server.pttl(&format!("k{n}"));
        assert!(left > 0 && left <= 100_000, "k{n}: {left}");
    }
}

/// The same without a pause: each hold is given up while its renewal is due.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_releases_that_meet_their_renewals_leave_no_key() {
    let server = RedisServer::start();
    let lease = LEASE / 10;
    let client = LockClient::builder().url(server.url()).watchdog(lease).wait(LEASE * 20);
    let client = client.connect().await.expect("up");
    let mut running = tokio::task::JoinSet::new();
    for n in 0..1000_u32 {
        let client = client.clone();
        running.spawn(async move {
            let guard = client.lock(format!("k{n}")).acquire().await.expect("free");
            sleep(lease * 47 / 150 + lease * (n % 10) / 250).await;
            if n % 2 == 0 {
                guard.release().await.expect("held");
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.expect("no panic");
    }
    until_at_rest(&client, LEASE).await;
    assert!(until(LEASE / 2, || server.command::<u32>(&["DBSIZE"]) == 0).await.is_some());
    let asked = server.calls("evalsha");
    sleep(lease * 3).await;
    assert_eq!(server.calls("evalsha"), asked, "nothing is renewed any more");
    assert_eq!(server.calls("set"), 1000, "each was taken once, and none was made again");
}

/// With `min_hold` the key stays after the release, and a renewal that was on its way finds it.
#[tokio::test]
async fn a_renewal_that_arrives_after_the_release_of_a_key_that_stays_does_not_extend_it() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // Patient enough for the release not to wait for it.
    let lease = LEASE * 6;
    let client = LockClient::builder().url(proxy.url()).watchdog(lease).connect().await;
    let client = client.expect("up");
    let stays = lease / 2;
    let guard = client.lock("k").min_hold(stays).acquire().await.expect("free");
    proxy.hold("EVALSHA");
    assert!(until(lease / 2, || proxy.struck() == 1).await.is_some(), "the renewal is on its way");
    guard.release().await.expect("over the other connection");
    let (left, asked) = (server.pttl("k"), server.calls("evalsha"));
    assert!(left > 0, "it stays for a while");
    proxy.deliver();
    assert!(until(LEASE, || server.calls("evalsha") > asked).await.is_some(), "there it comes");
    let now = server.pttl("k");
    assert!(now <= left, "{now} after {left}");
    until_at_rest(&client, LEASE).await;
}

#[tokio::test]
async fn a_renewal_that_fails_once_or_twice_loses_nothing_and_is_logged() {
    keep_log();
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
        let works = || !logged(&["INFO", &key, "renewal works again"]).is_empty();
        assert!(until(LEASE, works).await.is_some(), "it is tried again");
        assert!(!logged(&["WARN", &key, "renewal failed"]).is_empty(), "and says so");
        assert!(logged(&[&key, "lost"]).is_empty());
        let start = Instant::now();
        while start.elapsed() < LEASE * 2 {
            assert!(guard.is_held());
            sleep(LEASE / 10).await;
        }
        guard.release().await.expect("held");
    }
}
