//! Who waits gets the lock as fast as the slower of both libraries allows.

use lock_runtime::WireFormat;
use tokio::time::Instant;

use crate::scene::{LATE, LEASE, OUR_POLL, ms};
use crate::with_every_client;

with_every_client! {
    /// Redisson is woken; the others ask again by themselves.
    async fn our_release_lets_theirs_in(scene: Scene) {
        let mut theirs = scene.theirs().await;
        let guard = scene.lock().acquire().await.expect("free");
        let waiter = scene.their_waiter(&mut theirs, LEASE * 10).await;
        assert!(!waiter.is_done());
        let released = Instant::now();
        guard.release().await.expect("held");
        let got = waiter.granted().await - released;
        assert!(got < scene.their_delay(), "{got:?}");
        assert!(!scene.is_free().await);
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
}
