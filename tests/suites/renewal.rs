//! A lock without a fixed lease is renewed for as long as its body runs.

use std::time::Duration;

use lock_runtime::LockError;
use lock_tests::RedisServer;

use crate::support::{LEASE, client};

#[tokio::test]
async fn a_body_of_three_leases_keeps_its_lock() {
    let server = RedisServer::start();
    let lock = client(&server.url()).await.lock("k");
    let body = tokio::spawn(async move { lock.run(tokio::time::sleep(LEASE * 3)).await });
    let (mut lowest, mut rises, mut last) = (i64::MAX, 0, 0);
    while !body.is_finished() {
        let left = server.pttl("k");
        if left >= 0 {
            lowest = lowest.min(left);
            rises += u32::from(left > last);
            last = left;
        }
        tokio::time::sleep(LEASE / 50).await;
    }
    body.await.expect("no panic").expect("kept");
    // The first reading counts as a rise too.
    assert!(rises > 4, "only {rises} renewals; one is due per third of a lease");
    assert!(lowest > 0, "the key was about to expire: {lowest} ms");
    assert!(!server.exists("k"));
}

/// The control of the test above: without renewals, the same body loses its lock.
#[tokio::test]
async fn without_renewals_a_body_of_three_leases_loses_its_lock() {
    let server = RedisServer::start();
    let lock = client(&server.url()).await.lock("k").lease(LEASE);
    let outcome = lock.run(tokio::time::sleep(LEASE * 3)).await;
    assert!(matches!(outcome, Err(LockError::Lost { .. })), "{outcome:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_body_that_blocks_its_thread_keeps_every_lock() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let other = client.lock("other").acquire().await.expect("free");
    let body = async { std::thread::sleep(LEASE * 3) };
    client.lock("k").run(body).await.expect("renewed by the background thread");
    assert!(other.is_held());
}

#[tokio::test]
async fn temporary_renewal_failures_cost_no_lock() {
    let server = RedisServer::start();
    let lease = LEASE * 3;
    let builder = lock_runtime::LockClient::builder().url(server.url()).lease(lease);
    let guard = builder.connect().await.expect("up").lock("k").acquire().await.expect("free");
    tokio::time::sleep(lease / 4).await;
    server.freeze();
    // A renewal is due and gets no reply.
    tokio::time::sleep(lease / 4).await;
    server.thaw();
    tokio::time::sleep(lease * 2 / 3).await;
    assert!(guard.is_held(), "{guard:?}");
    assert!(server.pttl("k") > 0);
    guard.release().await.expect("held");
}

#[tokio::test]
async fn a_released_lock_is_not_renewed() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for _ in 0..50 {
        client.lock("k").run(tokio::time::sleep(Duration::from_millis(1))).await.expect("free");
    }
    let renewals = server.calls("pexpire");
    tokio::time::sleep(LEASE).await;
    assert_eq!(server.calls("pexpire"), renewals);
    assert!(!server.exists("k"));
}
