//! A held lock excludes the clients of both sides, and locks in another wire format are not
//! touched.

use lock_runtime::{Holder, HolderKind, LockError, WireFormat};

use crate::fixture::{LEASE, ms};
use crate::with_every_client;

with_every_client! {
    async fn a_lock_of_the_peer_excludes_this_library(fixture: InteropFixture) {
        let mut peer = fixture.peer().await;
        peer.tell(&format!("acquire k 0 {}", ms(LEASE * 10))).await;
        assert!(!fixture.is_free().await);
        match fixture.lock().wait(LEASE / 4).acquire().await {
            Err(LockError::Busy { holder: Holder { kind: HolderKind::Elsewhere, lease_left: Some(left), .. }, .. }) => {
                assert!(left > LEASE * 8 && left <= LEASE * 10, "{left:?}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(peer.ask("held k").await, "ok yes");
        peer.tell("release k").await;
        assert!(fixture.is_free().await);
    }

    async fn a_lock_of_this_library_excludes_the_peer(fixture: InteropFixture) {
        let mut peer = fixture.peer().await;
        let guard = fixture.lock().acquire().await.expect("free");
        let try_once = format!("acquire k 0 {}", ms(LEASE * 10));
        assert_eq!(peer.ask(&try_once).await, "busy");
        let try_again = format!("acquire k {} {}", ms(LEASE / 4), ms(LEASE * 10));
        assert_eq!(peer.ask(&try_again).await, "busy");
        assert_eq!(peer.ask("owner k").await, "ok yes");
        guard.release().await.expect("held");
        assert_eq!(peer.ask("owner k").await, "ok no");
        peer.tell(&try_once).await;
        assert!(!fixture.is_free().await);
    }

    async fn a_lock_in_another_format_is_refused_and_not_changed(fixture: InteropFixture) {
        let mut peer = fixture.peer().await;
        peer.tell(&format!("acquire k 0 {}", ms(LEASE * 10))).await;
        let before = fixture.value();
        for other in [WireFormat::Token, WireFormat::Redisson, WireFormat::Timestamp] {
            if other == fixture.client.wire_format {
                continue;
            }
            match fixture.lock().wire_format(other).acquire().await {
                Err(LockError::WrongFormat { .. }) => {}
                outcome => panic!("{other:?}: {outcome:?}"),
            }
            assert_eq!(fixture.value(), before);
        }
        peer.tell("release k").await;
    }

    /// A migration of a fleet to another key or wire format, one service after the other.
    async fn a_holder_of_both_locks_excludes_old_and_new_clients(fixture: InteropFixture) {
        let mut old = fixture.peer().await;
        let first = fixture.lock();
        let then = fixture.lock_client.lock("new").wire_format(WireFormat::Token);
        let new = fixture.builder().wire_format(WireFormat::Token).connect().await.expect("up");
        let try_once = format!("acquire k 0 {}", ms(LEASE * 10));
        let body = async {
            assert_eq!(old.ask(&try_once).await, "busy");
            assert!(new.lock("new").try_acquire().await.expect("up").is_none());
        };
        let both = first.run(async { then.run(body).await });
        both.await.expect("free").expect("free");
        old.tell(&try_once).await;
        assert!(!fixture.is_free().await);
        assert!(new.lock("new").try_acquire().await.expect("up").is_some());
    }
}
