//! Several keys: a set of this library, and `RMultiLock` of Redisson.

use std::time::Duration;

use lock_tests::{running_time, within};
use tokio::time::Instant;

use crate::clients::REDISSON;
use crate::fixture::{InteropFixture, LEASE, WOKEN};

#[tokio::test]
async fn a_multi_lock_of_redisson_excludes_sets_of_this_library() {
    let fixture = InteropFixture::with(&REDISSON).await;
    let mut peer = fixture.peer_with_test_lease().await;
    peer.tell("acquire-all b,a 0 0").await;
    let set = fixture.lock_client.lock_all(["a", "b", "c"]);
    assert!(set.try_acquire().await.expect("the server is up").is_none());
    let waiter = tokio::spawn(async move { set.acquire().await });
    // The peer renews its locks.
    tokio::time::sleep(LEASE * 3 / 2).await;
    assert!(!waiter.is_finished());
    let released = Instant::now();
    peer.tell("release b,a").await;
    let guard = within(LEASE * 5, waiter).await.expect("soon").expect("no panic").expect("free");
    assert!(running_time(released) < WOKEN, "{:?}", released.elapsed());
    guard.release().await.expect("held");
}

#[tokio::test]
async fn a_set_of_this_library_excludes_multi_locks_of_redisson() {
    let fixture = InteropFixture::with(&REDISSON).await;
    let mut peer = fixture.peer_with_test_lease().await;
    let guard = fixture.lock_client.lock_all(["a", "b"]).acquire().await.expect("free");
    assert_eq!(peer.ask("acquire-all c,b 0 0").await, "busy");
    assert!(!fixture.server.exists("c"), "nothing is left of it");
    let wait = (LEASE * 20).as_millis();
    let waiter = peer.send(&format!("acquire-all b,a {wait} 0"));
    tokio::time::sleep(Duration::from_millis(200)).await;
    guard.release().await.expect("held");
    assert_eq!(waiter.await, "ok");
    assert!(!fixture.is_free_of("a").await && !fixture.is_free_of("b").await);
    peer.tell("release b,a").await;
    assert!(fixture.is_free_of("a").await && fixture.is_free_of("b").await);
}

/// Redisson takes the keys in the order in which they are named, and keeps those that it has while it
/// waits for the next one. So it has to name them in their order.
#[tokio::test]
async fn sets_and_sorted_multi_locks_both_get_the_locks() {
    let fixture = InteropFixture::with(&REDISSON).await;
    let mut peer = fixture.peer_with_test_lease().await;
    let client = fixture.lock_client.clone();
    let ours = tokio::spawn(async move {
        for _ in 0..20 {
            client.lock_all(["b", "a"]).run(tokio::task::yield_now()).await.expect("granted");
        }
    });
    let wait = (LEASE * 20).as_millis();
    for _ in 0..10 {
        peer.tell(&format!("acquire-all a,b {wait} 0")).await;
        peer.tell("release a,b").await;
    }
    within(LEASE * 20, ours).await.expect("no cycle").expect("no panic");
}
