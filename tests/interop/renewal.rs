//! A holder that renews its lock keeps it for longer than the lease.

use lock_tests::running_time_between;
use tokio::time::{Instant, sleep, sleep_until};

use crate::fixture::{LATE, LEASE, SAFETY_POLL, ms};
use crate::with_every_client;

with_every_client! {
    async fn renewals_by_this_library_exclude_the_peer_for_three_leases(fixture: InteropFixture) {
        let mut peer = fixture.peer().await;
        let for_three_leases = async {
            sleep(LEASE * 3).await;
            Instant::now()
        };
        let body = fixture.run_body(for_three_leases).await;
        let waiter = fixture.peer_waiter(&mut peer, LEASE * 10).await;
        let ended = body.await.expect("no panic").expect("kept");
        let granted = waiter.granted().await;
        assert!(granted > ended, "{:?} before", ended - granted);
        let took = running_time_between(ended, granted);
        assert!(took < fixture.peer_delay(), "{took:?}");
    }

    /// Clients that do not renew by themselves get a command to renew.
    async fn renewals_by_the_peer_exclude_this_library_for_three_leases(fixture: InteropFixture) {
        let mut peer = fixture.peer_with_test_lease().await;
        fixture.let_peer_hold(&mut peer).await;
        let end = Instant::now() + LEASE * 3;
        let waiter = fixture.waiter().await;
        while !fixture.client.renews && Instant::now() + LEASE / 4 < end {
            peer.tell(&format!("renew k {}", ms(LEASE))).await;
            sleep(LEASE / 4).await;
        }
        sleep_until(end).await;
        assert_eq!(peer.ask("held k").await, "ok yes");
        assert!(!waiter.is_finished());
        let released = Instant::now();
        peer.tell("release k").await;
        let (guard, at) = waiter.await.expect("no panic").expect("free");
        let took = running_time_between(released, at);
        assert!(took < SAFETY_POLL + LATE, "{took:?}");
        guard.release().await.expect("held");
    }
}
