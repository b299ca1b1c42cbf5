//! A thread of Redisson counts how often it has acquired a lock.

use lock_tests::running_time_between;
use tokio::time::{Instant, sleep};

use crate::clients::REDISSON;
use crate::fixture::{InteropFixture, LATE, LEASE};

#[tokio::test]
async fn a_lock_that_redisson_holds_twice_is_free_after_the_second_release() {
    let fixture = InteropFixture::with(&REDISSON).await;
    let mut peer = fixture.peer_with_test_lease().await;
    peer.tell("acquire k 0 0").await;
    peer.tell("again k").await;
    let holds = || -> Vec<u32> { fixture.server.command(&["HVALS", "k"]) };
    assert_eq!(holds(), [2]);
    let waiter = fixture.waiter().await;
    peer.tell("release k").await;
    assert_eq!(holds(), [1]);
    // The lock is still renewed.
    sleep(LEASE * 3 / 2).await;
    assert!(!waiter.is_finished());
    let released = Instant::now();
    peer.tell("release k").await;
    let (guard, at) = waiter.await.expect("no panic").expect("free");
    let took = running_time_between(released, at);
    assert!(took < LATE, "{took:?}");
    assert_eq!(holds(), [1], "nested holds of this library are not counted in Redis");
    guard.release().await.expect("held");
}
