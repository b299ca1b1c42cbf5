//! Locks whose holder is killed or suspended.

use lock_tests::RedisServer;
use tokio::time::Instant;

use crate::support::{LEASE, client, helper, milliseconds};

#[tokio::test]
async fn a_waiter_gets_the_lock_when_the_holder_is_killed() {
    let server = RedisServer::start();
    let mut holder = helper(&["hold", &server.url(), "k", &milliseconds(LEASE)]);
    assert_eq!(holder.line(), "held");
    let waiting = client(&server.url()).await.lock("k");
    let waiter =
        tokio::spawn(async move { waiting.acquire().await.map(|guard| (Instant::now(), guard)) });
    // The holder renews its lease until it is killed.
    tokio::time::sleep(LEASE * 2).await;
    assert!(!waiter.is_finished());
    let killed = Instant::now();
    holder.kill();
    let (got, _guard) = waiter.await.expect("no panic").expect("free after the lease");
    assert!(got - killed <= LEASE * 3 / 2, "{:?}", got - killed);
}

#[tokio::test]
async fn a_body_suspended_past_its_lease_does_not_resume() {
    let server = RedisServer::start();
    let mut holder = helper(&["body", &server.url(), "k", &milliseconds(LEASE)]);
    assert_eq!(holder.line(), "poll");
    holder.freeze();
    let guard = client(&server.url()).await.lock("k").acquire().await.expect("after its lease");
    holder.thaw();
    // The pipe still contains earlier lines.
    let end = loop {
        let line = holder.line();
        if line != "poll" {
            break line;
        }
    };
    assert!(end.starts_with("lost"), "{end}");
    assert!(guard.is_held());
    assert!(server.exists("k"), "the resumed holder must not free the key of its successor");
}

#[tokio::test]
async fn a_body_suspended_for_less_than_its_lease_continues() {
    let server = RedisServer::start();
    let lease = LEASE * 3;
    let mut holder = helper(&["body", &server.url(), "k", &milliseconds(lease)]);
    assert_eq!(holder.line(), "poll");
    holder.freeze();
    tokio::time::sleep(lease / 3).await;
    holder.thaw();
    for _ in 0..40 {
        assert_eq!(holder.line(), "poll");
    }
    assert!(server.pttl("k") > 0);
}
