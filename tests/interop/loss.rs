//! A lock that was taken away by force is known to be lost, and not taken back.

use lock_runtime::{LockError, LostReason};
use tokio::time::timeout;

use crate::scene::{LEASE, ms};
use crate::with_every_client;

with_every_client! {
    async fn our_body_learns_of_their_forced_unlock_by_its_next_renewal(scene: Scene) {
        let mut theirs = scene.theirs().await;
        let body = scene.our_body(std::future::pending::<()>()).await;
        theirs.tell("force k").await;
        let before = scene.server.calls("evalsha");
        let outcome = timeout(LEASE, body).await.expect("by its next renewal");
        match outcome.expect("no panic") {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Gone),
            other => panic!("{other:?}"),
        }
        let renewals = scene.server.calls("evalsha") - before;
        assert!(renewals <= 1, "{renewals} did not find out");
        assert!(!scene.server.exists(scene.client.key), "it is not made again");
    }

    async fn our_late_release_leaves_their_lock_alone(scene: Scene) {
        let mut theirs = scene.theirs().await;
        // A renewal would find out before.
        let guard = scene.lock().lease(LEASE * 10).acquire().await.expect("free");
        theirs.tell("force k").await;
        theirs.tell(&format!("acquire k 0 {}", ms(LEASE * 10))).await;
        let before = scene.value();
        match guard.release().await {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
            other => panic!("{other:?}"),
        }
        assert_eq!(scene.value(), before);
        assert_eq!(theirs.ask("held k").await, "ok yes");
        theirs.tell("release k").await;
    }

    async fn their_late_release_leaves_our_lock_alone(scene: Scene) {
        let mut theirs = scene.theirs().await;
        theirs.tell(&format!("acquire k 0 {}", ms(LEASE * 10))).await;
        theirs.tell("force k").await;
        // Another lease, so that in no format it looks the same.
        let guard = scene.lock().lease(LEASE * 8).acquire().await.expect("free");
        let before = scene.value();
        let answer = theirs.ask("release k").await;
        assert_eq!(answer.starts_with("error "), scene.client.tells_of_loss, "{answer}");
        assert_eq!(scene.value(), before);
        guard.release().await.expect("held");
    }
}
