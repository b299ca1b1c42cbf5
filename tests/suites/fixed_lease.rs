//! A lock with a fixed lease ends with the lease.

use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason, WireFormat};
use lock_tests::{Proxy, RedisServer, running_time};
use tokio::time::{Instant, sleep};

use crate::support::{LEASE, client, on_every_store};

#[tokio::test]
async fn a_fixed_lease_is_not_renewed() {
    let server = RedisServer::start();
    let guard =
        client(&server.url()).await.lock("k").lease(LEASE * 2).acquire().await.expect("free");
    let mut last = i64::MAX;
    while guard.is_held() {
        let left = server.pttl("k");
        assert!(left <= last, "the time to live must not rise");
        last = left;
        tokio::time::sleep(LEASE / 20).await;
    }
}

#[tokio::test]
async fn a_body_is_dropped_at_the_end_of_its_fixed_lease() {
    let server = RedisServer::start();
    let start = Instant::now();
    let lock = client(&server.url()).await.lock("k").lease(LEASE);
    match lock.run(std::future::pending::<()>()).await {
        Err(LockError::Lost { key, reason, held_for, .. }) => {
            assert_eq!((key.as_str(), reason), ("k", LostReason::LeaseOver));
            assert!(held_for > LEASE / 2 && held_for <= LEASE * 3 / 2, "{held_for:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(running_time(start) < LEASE * 3 / 2, "the body was not dropped at once");
}

#[tokio::test]
async fn the_key_expires_with_its_fixed_lease_without_a_release() {
    let server = RedisServer::start();
    let guard = client(&server.url()).await.lock("k").lease(LEASE).acquire().await.expect("free");
    let left = u64::try_from(server.pttl("k")).expect("the key has an expiry");
    assert!(u128::from(left) <= LEASE.as_millis());
    std::mem::forget(guard);
}

on_every_store! {
    async fn a_fixed_lease_is_extended(pair: Pair) {
        let lock = pair.one.lock("k").lease(LEASE);
        let guard = lock.acquire().await.expect("free");
        guard.extend(LEASE * 3).await.expect("held");
        assert!(guard.remaining() > LEASE * 2);
        sleep(LEASE * 3 / 2).await;
        assert!(guard.is_held());
        assert!(pair.two.lock("k").try_acquire().await.expect("no error").is_none());
        // This would end it earlier.
        let before = guard.remaining();
        guard.extend(LEASE / 10).await.expect("held");
        assert!(guard.remaining() + LEASE > before);
        assert_eq!(guard.lost().await, LostReason::LeaseOver);
        let lost = guard.extend(LEASE).await;
        assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
        assert!(pair.two.lock("k").acquire().await.expect("over").is_held());
    }

    async fn only_a_fixed_lease_can_be_extended_and_only_to_a_lease(pair: Pair) {
        let renewed = pair.one.lock("renewed").acquire().await.expect("free");
        let fixed = pair.one.lock("fixed").lease(LEASE).acquire().await.expect("free");
        let of = async |guard: &lock_runtime::LockGuard, lease| match guard.extend(lease).await {
            Err(LockError::Config { option: "lease", problem, .. }) => problem,
            other => panic!("{other:?}"),
        };
        assert!(of(&renewed, LEASE).await.contains("renewed"));
        for lease in [Duration::ZERO, Duration::from_millis(9), Duration::MAX] {
            assert!(of(&fixed, lease).await.contains("range"));
        }
        assert!(renewed.is_held() && fixed.is_held());
    }
}

#[tokio::test]
async fn an_extension_is_no_longer_than_the_quarantine() {
    let client = LockClient::builder().url("memory:").lease(LEASE).quarantine(LEASE * 2);
    let client = client.connect().await.expect("valid");
    let guard = client.lock("k").lease(LEASE).acquire().await.expect("free");
    let refused = guard.extend(LEASE * 3).await.expect_err("too long");
    assert!(refused.to_string().contains("quarantine"), "{refused}");
    guard.extend(LEASE * 2).await.expect("held");
}

#[tokio::test]
async fn an_extension_that_is_not_answered_changes_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = client(&proxy.url()).await;
    let guard = client.lock("k").lease(LEASE * 2).acquire().await.expect("free");
    let before = guard.remaining();
    proxy.partition();
    let failed = guard.extend(LEASE * 20).await;
    assert!(matches!(failed, Err(LockError::Unavailable { .. })), "{failed:?}");
    assert!(guard.remaining() < before, "the deadline is the earlier one");
    proxy.heal();
    guard.extend(LEASE * 20).await.expect("held");
    guard.release().await.expect("held");
    assert!(!server.exists("k"));
}

#[tokio::test]
async fn an_extension_notices_that_the_key_is_gone_and_that_another_has_it() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for (reason, value) in [(LostReason::Gone, None), (LostReason::Taken, Some("stranger"))] {
        let guard = client.lock("k").lease(LEASE * 5).acquire().await.expect("free");
        server.tell(&["DEL", "k"]);
        if let Some(value) = value {
            server.tell(&["SET", "k", value]);
        }
        match guard.extend(LEASE * 10).await {
            Err(LockError::Lost { reason: found, .. }) => assert_eq!(found, reason),
            other => panic!("{other:?}"),
        }
        assert!(!guard.is_held());
    }
    assert_eq!(server.command::<String>(&["GET", "k"]), "stranger", "it was not changed");
}

#[tokio::test]
async fn a_fixed_lease_is_extended_in_each_wire_format() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for format in [WireFormat::Token, WireFormat::Redisson, WireFormat::Timestamp] {
        let lock = client.lock(format!("{format:?}")).wire_format(format).lease(LEASE);
        let guard = lock.acquire().await.expect("free");
        guard.extend(LEASE * 10).await.expect("held");
        assert!(
            guard.remaining() > LEASE * 5
                && i128::from(server.pttl(guard.key())) > (LEASE * 5).as_millis().cast_signed()
        );
        guard.release().await.expect("held");
    }
}
