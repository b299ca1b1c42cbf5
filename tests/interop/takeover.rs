//! The lock of a process that is gone is taken over when its lease ends, and not before.

use lock_tests::Helper;
use tokio::time::Instant;

use crate::scene::{GRAIN, LATE, LEASE, ms};
use crate::with_every_client;

with_every_client! {
    async fn a_crash_of_theirs_is_taken_over_when_the_lease_ends(scene: Scene) {
        let mut theirs = scene.theirs_with_our_lease().await;
        scene.have_them_hold(&mut theirs).await;
        let waiter = scene.our_waiter().await;
        theirs.crash();
        let crashed = Instant::now();
        let left = scene.left();
        assert!(!waiter.is_finished());
        let (guard, at) = waiter.await.expect("no panic").expect("in the end");
        let taken = at - crashed;
        assert!(taken + GRAIN >= left && taken < left + LATE, "{taken:?} of {left:?}");
        guard.release().await.expect("held");
    }

    async fn a_crash_of_ours_is_taken_over_when_the_lease_ends(scene: Scene) {
        let mut theirs = scene.theirs().await;
        let (lease, format) = (ms(LEASE).to_string(), format!("{:?}", scene.client.format));
        let hold = ["hold", &scene.server.url(), scene.client.key, &lease, &format];
        let mut ours = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &hold);
        assert_eq!(ours.line(), "held");
        let waiter = scene.their_waiter(&mut theirs, LEASE * 10).await;
        ours.kill();
        let crashed = Instant::now();
        let left = scene.left();
        assert!(!waiter.is_done());
        let taken = waiter.granted().await - crashed;
        assert!(
            taken + GRAIN >= left && taken < left + scene.their_delay(),
            "{taken:?} of {left:?}"
        );
        assert!(!scene.is_free().await);
    }
}
