//! The lock of a crashed process is taken over when its lease ends, and not before.

use lock_tests::Helper;
use tokio::time::Instant;

use crate::fixture::{GRAIN, LATE, LEASE, ms};
use crate::with_every_client;

with_every_client! {
    async fn the_lock_of_a_crashed_peer_is_free_when_its_lease_ends(fixture: InteropFixture) {
        let mut peer = fixture.peer_with_test_lease().await;
        fixture.let_peer_hold(&mut peer).await;
        let waiter = fixture.waiter().await;
        peer.crash();
        let crashed = Instant::now();
        let left = fixture.left();
        assert!(!waiter.is_finished());
        let (guard, at) = waiter.await.expect("no panic").expect("granted after the lease");
        let taken = at - crashed;
        assert!(taken + GRAIN >= left && taken < left + LATE, "{taken:?} of {left:?}");
        guard.release().await.expect("held");
    }

    async fn the_peer_gets_the_lock_of_a_killed_process_when_its_lease_ends(fixture: InteropFixture) {
        let mut peer = fixture.peer().await;
        let (lease, format) = (ms(LEASE).to_string(), format!("{:?}", fixture.client.wire_format));
        let hold = ["hold", &fixture.server.url(), fixture.client.key, &lease, &format];
        let mut holder = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &hold);
        assert_eq!(holder.line(), "held");
        let waiter = fixture.peer_waiter(&mut peer, LEASE * 10).await;
        holder.kill();
        let crashed = Instant::now();
        let left = fixture.left();
        assert!(!waiter.is_done());
        let taken = waiter.granted().await - crashed;
        assert!(
            taken + GRAIN >= left && taken < left + fixture.peer_delay(),
            "{taken:?} of {left:?}"
        );
        assert!(!fixture.is_free().await);
    }
}
