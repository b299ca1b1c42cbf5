//! Who has the lock keeps the others out, and a lock of another format is no lock of theirs.

use lock_runtime::{Holder, LockError, WireFormat};

use crate::scene::{LEASE, ms};
use crate::with_every_client;

with_every_client! {
    async fn theirs_blocks_ours(scene: Scene) {
        let mut theirs = scene.theirs().await;
        theirs.tell(&format!("acquire k 0 {}", ms(LEASE * 10))).await;
        assert!(!scene.is_free().await);
        match scene.lock().wait(LEASE / 4).acquire().await {
            Err(LockError::Busy { holder: Holder::Elsewhere(Some(left)), .. }) => {
                assert!(left > LEASE * 8 && left <= LEASE * 10, "{left:?}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(theirs.ask("held k").await, "ok yes");
        theirs.tell("release k").await;
        assert!(scene.is_free().await);
    }

    async fn ours_blocks_theirs(scene: Scene) {
        let mut theirs = scene.theirs().await;
        let guard = scene.lock().acquire().await.expect("free");
        let try_once = format!("acquire k 0 {}", ms(LEASE * 10));
        assert_eq!(theirs.ask(&try_once).await, "busy");
        let try_again = format!("acquire k {} {}", ms(LEASE / 4), ms(LEASE * 10));
        assert_eq!(theirs.ask(&try_again).await, "busy");
        assert_eq!(theirs.ask("owner k").await, "ok yes");
        guard.release().await.expect("held");
        assert_eq!(theirs.ask("owner k").await, "ok no");
        theirs.tell(&try_once).await;
        assert!(!scene.is_free().await);
    }

    async fn theirs_is_left_alone_by_another_format(scene: Scene) {
        let mut theirs = scene.theirs().await;
        theirs.tell(&format!("acquire k 0 {}", ms(LEASE * 10))).await;
        let before = scene.value();
        for other in [WireFormat::Token, WireFormat::Redisson, WireFormat::Timestamp] {
            if other == scene.client.format {
                continue;
            }
            match scene.lock().format(other).acquire().await {
                Err(LockError::WrongFormat { .. }) => {}
                outcome => panic!("{other:?}: {outcome:?}"),
            }
            assert_eq!(scene.value(), before);
        }
        theirs.tell("release k").await;
    }

    /// How a fleet moves to another key or format, one service after the other.
    async fn who_takes_both_locks_excludes_the_old_and_the_new(scene: Scene) {
        let mut old = scene.theirs().await;
        let (first, then) = (scene.lock(), scene.ours.lock("new").format(WireFormat::Token));
        let new = scene.builder().format(WireFormat::Token).connect().await.expect("up");
        let try_once = format!("acquire k 0 {}", ms(LEASE * 10));
        let body = async {
            assert_eq!(old.ask(&try_once).await, "busy");
            assert!(new.lock("new").try_acquire().await.expect("up").is_none());
        };
        let both = first.run(async { then.run(body).await });
        both.await.expect("free").expect("free");
        old.tell(&try_once).await;
        assert!(!scene.is_free().await);
        assert!(new.lock("new").try_acquire().await.expect("up").is_some());
    }
}
