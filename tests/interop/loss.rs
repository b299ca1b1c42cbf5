//! The holder of a lock that was freed by force sees the loss, and does not take the lock back.

use lock_runtime::{LockError, LostReason};
use lock_tests::within;

use crate::fixture::{LEASE, ms};
use crate::with_every_client;

with_every_client! {
    async fn a_body_learns_of_a_forced_unlock_by_its_next_renewal(fixture: InteropFixture) {
        let mut peer = fixture.peer().await;
        let body = fixture.run_body(std::future::pending::<()>()).await;
        peer.tell("force k").await;
        let before = fixture.server.calls("evalsha");
        let outcome = within(LEASE, body).await.expect("by its next renewal");
        match outcome.expect("no panic") {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Gone),
            other => panic!("{other:?}"),
        }
        let renewals = fixture.server.calls("evalsha") - before;
        assert!(renewals <= 1, "{renewals} renewals did not find the loss");
        assert!(!fixture.server.exists(fixture.client.key), "the key is not created again");
    }

    async fn a_late_release_by_this_library_does_not_affect_the_peer(fixture: InteropFixture) {
        let mut peer = fixture.peer().await;
        // A fixed lease, so that no renewal finds the loss first.
        let guard = fixture.lock().lease(LEASE * 10).acquire().await.expect("free");
        peer.tell("force k").await;
        peer.tell(&format!("acquire k 0 {}", ms(LEASE * 10))).await;
        let before = fixture.value();
        match guard.release().await {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
            other => panic!("{other:?}"),
        }
        assert_eq!(fixture.value(), before);
        assert_eq!(peer.ask("held k").await, "ok yes");
        peer.tell("release k").await;
    }

    async fn a_late_release_by_the_peer_does_not_affect_this_library(fixture: InteropFixture) {
        let mut peer = fixture.peer().await;
        peer.tell(&format!("acquire k 0 {}", ms(LEASE * 10))).await;
        peer.tell("force k").await;
        // A different lease, so that the two values differ in every wire format.
        let guard = fixture.lock().lease(LEASE * 8).acquire().await.expect("free");
        let before = fixture.value();
        let answer = peer.ask("release k").await;
        assert_eq!(answer.starts_with("error "), fixture.client.reports_loss, "{answer}");
        assert_eq!(fixture.value(), before);
        guard.release().await.expect("held");
    }
}
