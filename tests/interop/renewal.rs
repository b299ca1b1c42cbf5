//! Who renews keeps the lock for longer than its lease.

use tokio::time::{Instant, sleep, sleep_until};

use crate::scene::{LATE, LEASE, OUR_POLL, ms};
use crate::with_every_client;

with_every_client! {
    async fn our_renewal_keeps_theirs_out_for_three_leases(scene: Scene) {
        let mut theirs = scene.theirs().await;
        let for_three_leases = async {
            sleep(LEASE * 3).await;
            Instant::now()
        };
        let body = scene.our_body(for_three_leases).await;
        let waiter = scene.their_waiter(&mut theirs, LEASE * 10).await;
        let ended = body.await.expect("no panic").expect("kept");
        let granted = waiter.granted().await;
        assert!(granted > ended, "{:?} before", ended - granted);
        assert!(granted - ended < scene.their_delay(), "{:?}", granted - ended);
    }

    /// Those that do not renew are told to.
    async fn their_renewal_keeps_ours_out_for_three_leases(scene: Scene) {
        let mut theirs = scene.theirs_with_our_lease().await;
        scene.have_them_hold(&mut theirs).await;
        let end = Instant::now() + LEASE * 3;
        let waiter = scene.our_waiter().await;
        while !scene.client.renews && Instant::now() + LEASE / 4 < end {
            theirs.tell(&format!("renew k {}", ms(LEASE))).await;
            sleep(LEASE / 4).await;
        }
        sleep_until(end).await;
        assert_eq!(theirs.ask("held k").await, "ok yes");
        assert!(!waiter.is_finished());
        let released = Instant::now();
        theirs.tell("release k").await;
        let (guard, at) = waiter.await.expect("no panic").expect("free");
        assert!(at - released < OUR_POLL + LATE, "{:?}", at - released);
        guard.release().await.expect("held");
    }
}
