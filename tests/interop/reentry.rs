//! A thread of Redisson's counts how often it has taken a lock.

use tokio::time::{Instant, sleep};

use crate::clients::REDISSON;
use crate::scene::{LATE, LEASE, Scene};

#[tokio::test]
async fn what_redisson_has_taken_twice_is_ours_after_its_second_release() {
    let scene = Scene::with(&REDISSON).await;
    let mut theirs = scene.theirs_with_our_lease().await;
    theirs.tell("acquire k 0 0").await;
    theirs.tell("again k").await;
    let holds = || -> Vec<u32> { scene.server.command(&["HVALS", "k"]) };
    assert_eq!(holds(), [2]);
    let waiter = scene.our_waiter().await;
    theirs.tell("release k").await;
    assert_eq!(holds(), [1]);
    // It is renewed all the same.
    sleep(LEASE * 3 / 2).await;
    assert!(!waiter.is_finished());
    let released = Instant::now();
    theirs.tell("release k").await;
    let (guard, at) = waiter.await.expect("no panic").expect("free");
    assert!(at - released < LATE, "{:?}", at - released);
    assert_eq!(holds(), [1], "ours is not counted in there");
    guard.release().await.expect("held");
}
