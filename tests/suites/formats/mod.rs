//! The wire formats. Each keeps the core promises between two clients of this library, and between
//! one of them and a peer: a client of another library.

#[cfg(lock_controls)]
mod controls;
mod mixed;
mod peers;
mod redisson;
mod timestamp;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::{
    Holder, HolderKind, LockClient, LockClientBuilder, LockError, LockGuard, LostReason, WireFormat,
};
use lock_tests::support::{count_under_contention, until_idle};
use lock_tests::{Proxy, RedisServer, running_time, running_time_between, within};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use self::peers::{PeerLock, peer};
use crate::support::{LEASE, until};

/// The time within which a waiter of this library has the lock after a wake-up. Without a wake-up,
/// the waiter asks again after three quarters of a second at the earliest.
const WOKEN: Duration = LEASE.saturating_mul(3).checked_div(5).expect("not zero");

/// A server, and two clients of this library with the same wire format.
struct FormatFixture {
    wire_format: WireFormat,
    server: RedisServer,
    one: LockClient,
    two: LockClient,
}

fn builder(url: &str, wire_format: WireFormat) -> LockClientBuilder {
    LockClient::builder().url(url).wire_format(wire_format).lease(LEASE).wait(LEASE * 20)
}

async fn connect(wire_format: WireFormat, server: &RedisServer) -> LockClient {
    builder(&server.url(), wire_format).connect().await.expect("the server is up")
}

impl FormatFixture {
    async fn new(wire_format: WireFormat) -> Self {
        let server = RedisServer::start();
        let (one, two) = (connect(wire_format, &server).await, connect(wire_format, &server).await);
        Self { wire_format, server, one, two }
    }

    /// The remaining lease of the lock in milliseconds; negative if the key has no expiry.
    fn left(&self) -> i64 {
        let expires = self.server.pttl("k");
        // A key of the format `Timestamp` expires a minute after the lease.
        expires - if self.wire_format == WireFormat::Timestamp { 60_000 } else { 0 }
    }

    /// The value of the key, without its expiry.
    fn value(&self) -> Vec<u8> {
        self.server.command(&["DUMP", "k"])
    }

    /// Starts a waiter of this library. Its task returns the guard and the time of the grant. When
    /// this function returns, the waiter has subscribed and asked again, so only a message wakes it
    /// soon.
    async fn waiter(&self, key: &str) -> JoinHandle<Result<(LockGuard, Instant), LockError>> {
        let tries = || self.server.calls("set") + self.server.calls("evalsha");
        let (lock, before) = (self.two.lock(key), tries());
        let waiter = tokio::spawn(async move { Ok((lock.acquire().await?, Instant::now())) });
        let channels = match self.wire_format {
            WireFormat::Token => None,
            WireFormat::Redisson => Some("redisson_lock__channel:*"),
            _ => Some("lock_wake:*"),
        };
        let waits = || match channels {
            None => self.server.queued(key) > 0,
            Some(channels) => {
                // The hash tag depends on the key.
                let channels = self.server.channels(channels);
                let is_subscribed = channels.iter().any(|channel| channel.contains(key));
                is_subscribed && tries() >= before + 2
            }
        };
        assert!(until(LEASE * 5, waits).await.is_some(), "the waiter does not subscribe");
        waiter
    }

    fn peer(&self) -> Box<dyn PeerLock> {
        peer(self.wire_format, &self.server, "k")
    }
}

async fn is_free(client: &LockClient) -> bool {
    client.lock("k").try_acquire().await.expect("the store is up").is_some()
}

/// Takes the lock with a client that cannot reach the server afterwards.
async fn abandon_lock(fixture: &FormatFixture, lease: Duration) -> (Proxy, LockGuard) {
    let proxy = Proxy::to(fixture.server.port());
    let client = builder(&proxy.url(), fixture.wire_format).connect().await.expect("up");
    let guard = client.lock("k").lease(lease).acquire().await.expect("free");
    proxy.partition();
    (proxy, guard)
}

/// Generates one test per wire format from `async fn name(fixture: FormatFixture)`.
macro_rules! in_every_format {
    ($($(#[$attribute:meta])* async fn $name:ident($fixture:ident: FormatFixture) $body:block)*) => {
        $(
            mod $name {
                use super::*;

                $(#[$attribute])*
                async fn check($fixture: FormatFixture) $body

                #[tokio::test]
                async fn in_token() {
                    check(FormatFixture::new(WireFormat::Token).await).await;
                }

                #[tokio::test]
                async fn in_redisson() {
                    check(FormatFixture::new(WireFormat::Redisson).await).await;
                }

                #[tokio::test]
                async fn in_timestamp() {
                    check(FormatFixture::new(WireFormat::Timestamp).await).await;
                }
            }
        )*
    };
}

in_every_format! {
    async fn a_lock_excludes_other_clients_of_this_library_and_the_peer(fixture: FormatFixture) {
        let mut peer = fixture.peer();
        let guard = fixture.one.lock("k").acquire().await.expect("free");
        // Before a renewal.
        let left = fixture.left();
        assert!((1..=1000).contains(&left), "it expires with its lease: {left}");
        assert!(!is_free(&fixture.one).await && !is_free(&fixture.two).await);
        assert!(!peer.try_lock(LEASE));
        guard.release().await.expect("held");
        assert!(!fixture.server.exists("k"));
        assert!(peer.try_lock(LEASE));
    }

    async fn a_lock_of_the_peer_excludes_clients_of_this_library(fixture: FormatFixture) {
        let mut peer = fixture.peer();
        assert!(peer.try_lock(LEASE * 10));
        assert!(!is_free(&fixture.one).await);
        match fixture.one.lock("k").wait(LEASE / 2).acquire().await {
            Err(LockError::Busy { holder: Holder { kind: HolderKind::Elsewhere, lease_left: Some(left), .. }, .. }) => {
                assert!(left > LEASE * 8 && left < LEASE * 10, "{left:?}");
            }
            other => panic!("{other:?}"),
        }
        let waiter = fixture.waiter("k").await;
        assert!(peer.unlock());
        let released = Instant::now();
        let (_guard, at) = waiter.await.expect("no panic").expect("free");
        let got = running_time_between(released, at);
        // At the latest, the waiter notices by its safety poll.
        assert!(got < LEASE * 3 / 2, "{got:?}");
    }

    async fn a_release_wakes_a_waiter(fixture: FormatFixture) {
        let guard = fixture.one.lock("k").acquire().await.expect("free");
        let waiter = fixture.waiter("k").await;
        let released = Instant::now();
        guard.release().await.expect("held");
        let (_guard, at) = waiter.await.expect("no panic").expect("woken");
        let got = running_time_between(released, at);
        assert!(got < WOKEN, "{got:?}");
    }

    async fn a_waiter_learns_when_the_min_hold_of_a_released_lock_ends(fixture: FormatFixture) {
        let minimum = LEASE / 4;
        let lock = fixture.one.lock("k").lease(LEASE * 20).min_hold(minimum);
        let (asked, guard) = (Instant::now(), lock.acquire().await.expect("free"));
        let waiter = fixture.waiter("k").await;
        guard.release().await.expect("held");
        let (_guard, at) = waiter.await.expect("no panic").expect("granted");
        let (got, running) = (at - asked, running_time_between(asked, at));
        // Long before the waiter would have asked again without a message.
        assert!(got + Duration::from_millis(2) >= minimum && running < WOKEN, "{got:?}");
    }

    async fn an_abandoned_lock_of_the_peer_is_free_when_its_lease_ends(fixture: FormatFixture) {
        let start = Instant::now();
        assert!(fixture.peer().try_lock(LEASE));
        let guard = fixture.one.lock("k").acquire().await.expect("granted");
        let taken = start.elapsed();
        // The clocks of the server and of the peer have a resolution of a millisecond.
        assert!(taken + Duration::from_millis(2) >= LEASE, "{taken:?}");
        assert!(running_time(start + LEASE) < LEASE / 2, "{taken:?}");
        assert!(!fixture.peer().try_lock(LEASE));
        guard.release().await.expect("held");
    }

    async fn an_abandoned_lock_of_this_library_is_free_when_its_lease_ends(fixture: FormatFixture) {
        let granted = Instant::now();
        let _left = abandon_lock(&fixture, LEASE).await;
        let mut peer = fixture.peer();
        let free = until(LEASE * 2, || peer.try_lock(LEASE)).await;
        assert!(free.is_some() && granted.elapsed() >= LEASE, "{:?}", granted.elapsed());
    }

    async fn a_body_of_three_leases_keeps_its_lock(fixture: FormatFixture) {
        let (lock, ended) = (fixture.one.lock("k"), Arc::new(AtomicBool::new(false)));
        let over = Arc::clone(&ended);
        let body = async move {
            sleep(LEASE * 3).await;
            over.store(true, Ordering::SeqCst);
        };
        let body = tokio::spawn(async move { lock.run(body).await });
        assert!(until(LEASE * 10, || fixture.server.exists("k")).await.is_some());
        let mut peer = fixture.peer();
        assert!(until(LEASE * 5, || peer.try_lock(LEASE)).await.is_some(), "the body must end");
        // The key is free before the task has ended, so the check uses a flag of the body.
        assert!(ended.load(Ordering::SeqCst), "the lock was taken before the end of the body");
        body.await.expect("no panic").expect("kept");
    }

    async fn a_stale_guard_changes_nothing(fixture: FormatFixture) {
        let stale = fixture.one.lock("k").lease(LEASE / 4).acquire().await.expect("free");
        stale.lost().await;
        let mut peer = fixture.peer();
        assert!(until(LEASE * 10, || peer.try_lock(LEASE * 10)).await.is_some());
        let before = fixture.value();
        assert!(matches!(stale.fencing_token().await, Err(LockError::Lost { .. })));
        assert!(matches!(stale.release().await, Err(LockError::Lost { .. })));
        until_idle(&fixture.one, LEASE).await;
        assert_eq!(fixture.value(), before);
        assert!(fixture.server.pttl("k") != 0 && peer.unlock());
    }

    async fn a_release_after_an_unnoticed_loss_does_not_affect_the_successor(fixture: FormatFixture) {
        let lock = fixture.one.lock("k").lease(LEASE * 10);
        let guard = lock.acquire().await.expect("free");
        fixture.server.tell(&["DEL", "k"]);
        assert!(fixture.peer().try_lock(LEASE * 10));
        let before = fixture.value();
        assert!(guard.is_held(), "the loss is not known");
        match guard.release().await {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
            other => panic!("{other:?}"),
        }
        assert_eq!(fixture.value(), before);
    }

    async fn a_body_whose_key_was_deleted_is_dropped_at_the_next_renewal(fixture: FormatFixture) {
        let lock = fixture.one.lock("k");
        let body = tokio::spawn(async move { lock.run(std::future::pending::<()>()).await });
        assert!(until(LEASE * 10, || fixture.server.exists("k")).await.is_some());
        let start = Instant::now();
        fixture.server.tell(&["DEL", "k"]);
        match within(LEASE * 5, body).await.expect("by its next renewal").expect("no panic") {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Gone),
            other => panic!("{other:?}"),
        }
        assert!(running_time(start) < LEASE, "{:?}", start.elapsed());
        assert!(!fixture.server.exists("k"), "the key is not created again");
    }

    async fn a_body_whose_key_was_taken_is_dropped_and_the_key_is_not_changed(fixture: FormatFixture) {
        let lock = fixture.one.lock("k");
        let body = tokio::spawn(async move { lock.run(std::future::pending::<()>()).await });
        assert!(until(LEASE * 10, || fixture.server.exists("k")).await.is_some());
        fixture.server.tell(&["DEL", "k"]);
        assert!(fixture.peer().try_lock(LEASE * 10));
        let before = fixture.value();
        match within(LEASE * 5, body).await.expect("by its next renewal").expect("no panic") {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
            other => panic!("{other:?}"),
        }
        until_idle(&fixture.one, LEASE).await;
        assert_eq!(fixture.value(), before);
    }

    async fn a_key_stays_for_its_min_hold(fixture: FormatFixture) {
        let (start, minimum) = (Instant::now(), LEASE * 2);
        fixture.one.lock("k").min_hold(minimum).run(async {}).await.expect("free");
        assert!(running_time(start) < LEASE, "the caller must not wait for `min_hold`");
        let left = fixture.left();
        assert!((1..=2000).contains(&left), "{left}");
        assert!(!is_free(&fixture.one).await && !is_free(&fixture.two).await);
        let mut peer = fixture.peer();
        assert!(until(minimum * 2, || peer.try_lock(LEASE)).await.is_some());
        let stayed = start.elapsed();
        assert!(stayed + Duration::from_millis(2) >= minimum, "{stayed:?}");
        assert!(running_time(start + minimum) < LEASE / 2, "{stayed:?}");
    }

    async fn a_late_renewal_does_not_extend_the_min_hold(fixture: FormatFixture) {
        let proxy = Proxy::to(fixture.server.port());
        // The release does not time out while the renewal is held back.
        let client = builder(&proxy.url(), fixture.wire_format).lease(LEASE * 6);
        let client = client.connect().await.expect("up");
        let lock = client.lock("k").min_hold(LEASE * 4);
        let guard = lock.acquire().await.expect("free");
        proxy.hold("EVALSHA");
        let in_flight = until(LEASE * 3, || proxy.triggered() == 1).await;
        assert!(in_flight.is_some(), "the renewal is in flight");
        guard.release().await.expect("released over another connection");
        let calls = || fixture.server.calls("evalsha");
        let (value, left, before) = (fixture.value(), fixture.left(), calls());
        proxy.deliver();
        assert!(until(LEASE * 10, || calls() > before).await.is_some(), "the renewal arrives");
        until_idle(&client, LEASE).await;
        let after = fixture.left();
        assert!(after > 0 && after <= left, "{after} ms after {left}");
        assert_eq!(fixture.value(), value);
    }

    /// The renewal was sent before the lease was extended, over a connection that was given up
    /// since.
    async fn a_late_renewal_does_not_shorten_the_lease(fixture: FormatFixture) {
        let proxy = Proxy::to(fixture.server.port());
        let client = builder(&proxy.url(), fixture.wire_format).lease(LEASE * 3);
        // Fixed leases, and no reports, so that the background thread renews nothing.
        let client = client.tracking(false).connect().await.expect("up");
        let lock = |lease| client.lock("k").lease(lease);
        let body = async {
            proxy.hold("EVALSHA");
            let brief = lock(LEASE * 20).acquire().await;
            assert!(matches!(brief, Err(LockError::Unavailable { .. })), "{brief:?}");
            assert_eq!(proxy.triggered(), 1, "the renewal is in flight");
            let _inner = lock(LEASE * 60).acquire().await.expect("shared, and extended");
            let calls = || fixture.server.calls("evalsha");
            let (value, before) = (fixture.value(), calls());
            proxy.deliver();
            assert!(until(LEASE * 10, || calls() > before).await.is_some(), "the renewal arrives");
            let left = fixture.left();
            assert!(left > 50_000, "{left} ms left");
            assert_eq!(fixture.value(), value);
        };
        lock(LEASE * 10).run(body).await.expect("held until the end");
    }

    async fn fencing_tokens_rise_from_holder_to_holder(fixture: FormatFixture) {
        let mut last = 0;
        for client in [&fixture.one, &fixture.two, &fixture.one] {
            let guard = client.lock("k").acquire().await.expect("free");
            let token = guard.fencing_token().await.expect("held");
            assert!(token > last, "{token} after {last}");
            last = token;
            guard.release().await.expect("held");
        }
        let guard = fixture.one.lock("k").acquire().await.expect("free");
        fixture.server.tell(&["DEL", "k"]);
        assert!(fixture.peer().try_lock(LEASE));
        match guard.fencing_token().await {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
            other => panic!("{other:?}"),
        }
    }

    async fn requests_whose_answers_are_lost_take_effect_once(fixture: FormatFixture) {
        let proxy = Proxy::to(fixture.server.port());
        let client = builder(&proxy.url(), fixture.wire_format).lease(LEASE * 60);
        let client = client.connect().await.expect("up");
        client.lock("warm").run(async {}).await.expect("free");
        let first = if fixture.wire_format == WireFormat::Token { "SET" } else { "EVALSHA" };
        for n in 1..=5 {
            proxy.lose_reply_to(first);
            let begun = Instant::now();
            let acquired = client.lock("k").wait(LEASE * 5).acquire().await;
            let guard = acquired.expect("the retry finds its own token");
            let elapsed = running_time(begun);
            assert_eq!(proxy.triggered(), 2 * n - 1, "the reply was lost");
            assert!(elapsed < LEASE, "the retry must not wait for the lost attempt: {elapsed:?}");
            proxy.lose_reply_to("EVALSHA");
            drop(guard.release().await);
            assert!(until(LEASE * 10, || !fixture.server.exists("k")).await.is_some());
            assert_eq!(proxy.triggered(), 2 * n);
        }
        until_idle(&client, LEASE * 5).await;
    }

    async fn a_request_that_arrives_after_its_caller_gave_up_is_undone(fixture: FormatFixture) {
        let proxy = Proxy::to(fixture.server.port());
        let client = builder(&proxy.url(), fixture.wire_format).lease(LEASE * 60);
        let client = client.connect().await.expect("up");
        client.lock("warm").run(async {}).await.expect("free");
        let word = if fixture.wire_format == WireFormat::Token { "SET" } else { "EVALSHA" };
        proxy.hold(word);
        let outcome = client.lock("k").wait(LEASE / 10).acquire().await;
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
        assert!(!fixture.server.exists("k"), "the request is still in flight");
        let calls = || fixture.server.calls(&word.to_lowercase());
        let before = calls();
        proxy.deliver();
        assert!(until(LEASE * 10, || calls() > before).await.is_some(), "the request arrives");
        let gone = until(LEASE * 4, || !fixture.server.exists("k")).await;
        assert!(gone.is_some(), "left for {} ms", fixture.server.pttl("k"));
        until_idle(&client, LEASE * 5).await;
        assert!(is_free(&fixture.one).await);
    }

    async fn a_late_attempt_does_not_shorten_the_lease(fixture: FormatFixture) {
        let proxy = Proxy::to(fixture.server.port());
        let client = builder(&proxy.url(), fixture.wire_format).connect().await.expect("up");
        client.lock("warm").run(async {}).await.expect("free");
        let first = if fixture.wire_format == WireFormat::Token { "SET" } else { "EVALSHA" };
        proxy.lose_reply_to(first);
        proxy.hold("EVALSHA");
        let (brief, long) = (client.lock("k").lease(LEASE * 5), client.lock("k").lease(LEASE * 60));
        let body = async {
            assert_eq!(proxy.triggered(), 2, "two attempts failed");
            let _inner = long.acquire().await.expect("shared, and extended");
            let calls = fixture.server.calls("evalsha");
            proxy.deliver();
            let arrived = until(LEASE * 10, || fixture.server.calls("evalsha") > calls).await;
            assert!(arrived.is_some(), "the request arrives");
            sleep(LEASE / 5).await;
            fixture.left()
        };
        let left = brief.run(body).await.expect("the third attempt is granted");
        assert!(left > 50_000, "{left} ms left");
    }

    async fn every_hold_counts_once_under_contention(fixture: FormatFixture) {
        count_under_contention([&fixture.one, &fixture.two], 200).await;
    }

    async fn a_key_with_a_hash_tag_can_be_locked_and_waited_for(fixture: FormatFixture) {
        for key in ["{user:7}:cart", "a{", "}{"] {
            let guard = fixture.one.lock(key).acquire().await.expect("free");
            assert!(!peer(fixture.wire_format, &fixture.server, key).try_lock(LEASE));
            let waiter = fixture.waiter(key).await;
            let released = Instant::now();
            guard.release().await.expect("held");
            let (_guard, at) = waiter.await.expect("no panic").expect("woken");
            let got = running_time_between(released, at);
            assert!(got < WOKEN, "{key}: {got:?}");
        }
    }

    /// All keys of a script must be in one slot of a cluster.
    async fn all_keys_of_a_lock_are_in_one_hash_slot(fixture: FormatFixture) {
        let cluster = RedisServer::with(&["--cluster-enabled", "yes"]);
        for key in ["order:42", "{user:7}:cart", "a{}b", "}{", "käse"] {
            fixture.server.tell(&["FLUSHALL"]);
            let guard = fixture.one.lock(key).acquire().await.expect("free");
            guard.fencing_token().await.expect("held");
            let keys: Vec<String> = fixture.server.keys();
            assert!(keys.len() >= 2, "{keys:?}");
            let slot = |key| cluster.command::<u16>(&["CLUSTER", "KEYSLOT", key]);
            assert!(keys.iter().all(|other| slot(other) == slot(key)), "{keys:?}");
            guard.release().await.expect("held");
        }
    }

    async fn nothing_is_left_after_the_last_release(fixture: FormatFixture) {
        for n in 0..20 {
            fixture.one.lock(format!("{n}")).run(async {}).await.expect("free");
        }
        drop(fixture.one.lock("k").acquire().await.expect("free"));
        fixture.one.shutdown().await.expect("released");
        assert_eq!(fixture.server.keys(), [""; 0]);
    }
}
