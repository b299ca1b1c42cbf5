//! A waiter gets the lock as fast as the slower of the two libraries allows.

use std::time::Duration;

use lock_runtime::WireFormat;
use lock_tests::running_time_between;
use lock_tests::support::until;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::fixture::{GRAIN, LATE, LEASE, SAFETY_POLL, ms};
use crate::with_every_client;

with_every_client! {
    /// A waiter of Redisson is woken, long before the lease that it has seen ends. The other
    /// clients poll.
    async fn the_peer_gets_the_lock_after_a_release_by_this_library(fixture: InteropFixture) {
        let mut peer = fixture.peer().await;
        let guard = fixture.lock().lease(LEASE * 10).acquire().await.expect("free");
        let waiter = fixture.peer_waiter(&mut peer, LEASE * 10).await;
        assert!(!waiter.is_done());
        let released = Instant::now();
        guard.release().await.expect("held");
        let got = running_time_between(released, waiter.granted().await);
        assert!(got < fixture.peer_delay(), "{got:?}");
        assert!(!fixture.is_free().await);
    }

    /// Without a wake-up, a waiter of Redisson would sleep for the lease that it has seen.
    async fn the_peer_gets_the_lock_when_the_min_hold_ends(fixture: InteropFixture) {
        let mut peer = fixture.peer().await;
        let lock = fixture.lock().lease(LEASE * 20).min_hold(LEASE);
        let (asked, guard) = (Instant::now(), lock.acquire().await.expect("free"));
        let waiter = fixture.peer_waiter(&mut peer, LEASE * 10).await;
        guard.release().await.expect("held");
        let granted = waiter.granted().await;
        let (got, running) = (granted - asked, running_time_between(asked, granted));
        assert!(got + GRAIN >= LEASE && running < LEASE + fixture.peer_delay(), "{got:?}");
    }

    /// Redisson publishes its releases. The other clients do not, but the server reports those in the
    /// layout `Token`.
    async fn this_library_gets_the_lock_after_a_release_by_the_peer(fixture: InteropFixture) {
        let mut peer = fixture.peer().await;
        peer.tell(&format!("acquire k 0 {}", ms(LEASE * 10))).await;
        let waiter = fixture.waiter().await;
        assert!(!waiter.is_finished());
        let format = fixture.client.wire_format;
        if format == WireFormat::Token {
            // The server reports the release.
            let is_tracked = || fixture.server.tracked_keys() > 0;
            assert!(until(LEASE * 5, is_tracked).await.is_some());
        }
        let released = Instant::now();
        peer.tell("release k").await;
        let (guard, at) = waiter.await.expect("no panic").expect("free");
        let bound = if format == WireFormat::Timestamp { SAFETY_POLL + LATE } else { LATE };
        let took = running_time_between(released, at);
        assert!(took < bound, "{took:?}");
        guard.release().await.expect("held");
    }

    /// Clients that poll are not visible, so a process that must let them in disables hand-offs.
    async fn the_peer_gets_the_lock_beside_a_busy_process_of_this_library(fixture: InteropFixture) {
        let mut peer = fixture.peer().await;
        let mut client = fixture.builder();
        if fixture.client.polls.is_some() {
            client = client.handoff_limit(0, Duration::ZERO);
        }
        let client = client.connect().await.expect("the server is up");
        let mut tasks = JoinSet::new();
        for _ in 0..4 {
            let lock = client.lock(fixture.client.key);
            tasks.spawn(async move {
                loop {
                    lock.run(sleep(Duration::from_millis(1))).await.expect("granted");
                }
            });
        }
        peer.tell(&format!("acquire k {} {}", ms(LEASE * 20), ms(LEASE * 10))).await;
        assert!(!fixture.is_free().await);
        peer.tell("release k").await;
    }
}
