//! A lock with a fixed lease ends with the lease.

use lock_runtime::{LockError, LostReason};
use lock_tests::RedisServer;
use tokio::time::Instant;

use crate::support::{LEASE, client};

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
    assert!(start.elapsed() < LEASE * 3 / 2, "the body was not dropped at once");
}

#[tokio::test]
async fn the_key_expires_with_its_fixed_lease_without_a_release() {
    let server = RedisServer::start();
    let guard = client(&server.url()).await.lock("k").lease(LEASE).acquire().await.expect("free");
    let left = u64::try_from(server.pttl("k")).expect("the key has an expiry");
    assert!(u128::from(left) <= LEASE.as_millis());
    std::mem::forget(guard);
}
