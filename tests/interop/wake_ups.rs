//! Who waits gets the lock as fast as the slower of both libraries allows.

use std::time::Duration;

use lock_runtime::WireFormat;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::scene::{GRAIN, LATE, LEASE, OUR_POLL, ms};
use crate::with_every_client;

with_every_client! {
    /// Redisson is woken, long before the lease that it knows of is over; the others ask again by
    /// themselves.
    async fn our_release_lets_theirs_in(scene: Scene) {
        let mut theirs = scene.theirs().await;
        let guard = scene.lock().lease(LEASE * 10).acquire().await.expect("free");
        let waiter = scene.their_waiter(&mut theirs, LEASE * 10).await;
        assert!(!waiter.is_done());
        let released = Instant::now();
        guard.release().await.expect("held");
        let got = waiter.granted().await - released;
        assert!(got < scene.their_delay(), "{got:?}");
        assert!(!scene.is_free().await);
    }

    /// For Redisson the lock would last for as long as it has last heard.
    async fn our_lock_that_is_to_stay_lets_theirs_in_when_that_is_over(scene: Scene) {
        let mut theirs = scene.theirs().await;
        let lock = scene.lock().lease(LEASE * 20).min_hold(LEASE);
        let (asked, guard) = (Instant::now(), lock.acquire().await.expect("free"));
        let waiter = scene.their_waiter(&mut theirs, LEASE * 10).await;
        guard.release().await.expect("held");
        let got = waiter.granted().await - asked;
        assert!(got + GRAIN >= LEASE && got < LEASE + scene.their_delay(), "{got:?}");
    }

    /// Redisson tells everybody; of the others' releases nobody hears.
    async fn their_release_lets_ours_in(scene: Scene) {
        let mut theirs = scene.theirs().await;
        theirs.tell(&format!("acquire k 0 {}", ms(LEASE * 10))).await;
        let waiter = scene.our_waiter().await;
        assert!(!waiter.is_finished());
        let released = Instant::now();
        theirs.tell("release k").await;
        let (guard, at) = waiter.await.expect("no panic").expect("free");
        let bound = match scene.client.format {
            WireFormat::Redisson => LATE,
            _ => OUR_POLL + LATE,
        };
        assert!(at - released < bound, "{:?}", at - released);
        guard.release().await.expect("held");
    }

    /// Of those who poll nobody knows, so a process that is to let them in passes nothing on.
    async fn theirs_gets_in_beside_a_busy_process_of_ours(scene: Scene) {
        let mut theirs = scene.theirs().await;
        let mut ours = scene.builder();
        if scene.client.polls.is_some() {
            ours = ours.turn(0, Duration::ZERO);
        }
        let ours = ours.connect().await.expect("the server is up");
        let mut tasks = JoinSet::new();
        for _ in 0..4 {
            let lock = ours.lock(scene.client.key);
            tasks.spawn(async move {
                loop {
                    lock.run(sleep(Duration::from_millis(1))).await.expect("in turn");
                }
            });
        }
        theirs.tell(&format!("acquire k {} {}", ms(LEASE * 20), ms(LEASE * 10))).await;
        assert!(!scene.is_free().await);
        theirs.tell("release k").await;
    }
}
