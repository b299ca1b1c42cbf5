//! The wire formats: each keeps the core promises, with two clients of ours and beside one that is not.

#[cfg(lock_controls)]
mod controls;
mod peers;
mod redisson;
mod timestamp;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::{
    Holder, LockClient, LockClientBuilder, LockError, LockGuard, LostReason, WireFormat,
};
use lock_tests::support::{count_under_contention, until_at_rest};
use lock_tests::{Proxy, RedisServer};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use self::peers::{Peer, peer};
use crate::support::{LEASE, until};

const FORMATS: [WireFormat; 3] = [WireFormat::Token, WireFormat::Redisson, WireFormat::Timestamp];

/// By when one of ours that is woken has the lock. Unwoken, it asks again after three quarters of a
/// second at the earliest.
const WOKEN: Duration = LEASE.saturating_mul(3).checked_div(5).expect("not zero");

/// A server, and two clients of ours that speak a format.
struct Scene {
    format: WireFormat,
    server: RedisServer,
    one: LockClient,
    two: LockClient,
}

fn builder(url: &str, format: WireFormat) -> LockClientBuilder {
    LockClient::builder().url(url).format(format).watchdog(LEASE).wait(LEASE * 20)
}

async fn speaking(format: WireFormat, server: &RedisServer) -> LockClient {
    builder(&server.url(), format).connect().await.expect("the server is up")
}

impl Scene {
    async fn new(format: WireFormat) -> Self {
        let server = RedisServer::start();
        let (one, two) = (speaking(format, &server).await, speaking(format, &server).await);
        Self { format, server, one, two }
    }

    /// For how many ms it is taken; negative if it never expires.
    fn left(&self) -> i64 {
        let expires = self.server.pttl("k");
        // A minute after its time.
        expires - if self.format == WireFormat::Timestamp { 60_000 } else { 0 }
    }

    /// What the server has at the key, without its expiry.
    fn value(&self) -> Vec<u8> {
        self.server.command(&["DUMP", "k"])
    }

    /// One of ours that waits for a lock, and when it got it. It has asked again since it subscribed, so
    /// that nothing but a message makes it ask soon.
    async fn waiter(&self, key: &str) -> JoinHandle<Result<(LockGuard, Instant), LockError>> {
        let tries = || self.server.calls("set") + self.server.calls("evalsha");
        let (lock, before) = (self.two.lock(key), tries());
        let waiter = tokio::spawn(async move { Ok((lock.acquire().await?, Instant::now())) });
        let channel = match self.format {
            WireFormat::Redisson => "redisson_lock__channel",
            _ => "lock_wake",
        };
        let tagged = if key.contains('{') { key.to_owned() } else { format!("{{{key}}}") };
        let channel = format!("{channel}:{tagged}");
        let waits = || {
            let (_, listeners): (String, u64) =
                self.server.command(&["PUBSUB", "NUMSUB", &channel]);
            listeners > 0 && tries() >= before + 2
        };
        assert!(until(LEASE * 5, waits).await.is_some(), "nobody waits");
        waiter
    }

    fn peer(&self) -> Box<dyn Peer> {
        peer(self.format, &self.server, "k")
    }
}

async fn is_free(client: &LockClient) -> bool {
    client.lock("k").try_acquire().await.expect("the store is up").is_some()
}

/// One of ours takes the lock, and from then on reaches nobody.
async fn leave_behind(scene: &Scene, lease: Duration) -> (Proxy, LockGuard) {
    let proxy = Proxy::to(scene.server.port());
    let client = builder(&proxy.url(), scene.format).connect().await.expect("up");
    let guard = client.lock("k").lease(lease).acquire().await.expect("free");
    proxy.partition();
    (proxy, guard)
}

/// Makes one test of each format from `async fn name(scene: Scene)`.
macro_rules! in_every_format {
    ($($(#[$attribute:meta])* async fn $name:ident($scene:ident: Scene) $body:block)*) => {
        $(
            mod $name {
                use super::*;

                $(#[$attribute])*
                async fn check($scene: Scene) $body

                #[tokio::test]
                async fn in_token() {
                    check(Scene::new(WireFormat::Token).await).await;
                }

                #[tokio::test]
                async fn in_redisson() {
                    check(Scene::new(WireFormat::Redisson).await).await;
                }

                #[tokio::test]
                async fn in_timestamp() {
                    check(Scene::new(WireFormat::Timestamp).await).await;
                }
            }
        )*
    };
}

in_every_format! {
    async fn ours_excludes_ours_and_theirs(scene: Scene) {
        let mut theirs = scene.peer();
        let guard = scene.one.lock("k").acquire().await.expect("free");
        assert!(!is_free(&scene.one).await && !is_free(&scene.two).await);
        assert!(!theirs.try_lock(LEASE));
        let left = scene.left();
        assert!((1..=1000).contains(&left), "it expires with its lease: {left}");
        guard.release().await.expect("held");
        assert!(!scene.server.exists("k"));
        assert!(theirs.try_lock(LEASE));
    }

    async fn theirs_excludes_ours(scene: Scene) {
        let mut theirs = scene.peer();
        assert!(theirs.try_lock(LEASE * 10));
        assert!(!is_free(&scene.one).await);
        match scene.one.lock("k").wait(LEASE / 2).acquire().await {
            Err(LockError::Busy { holder: Holder::Elsewhere(Some(left)), .. }) => {
                assert!(left > LEASE * 8 && left < LEASE * 10, "{left:?}");
            }
            other => panic!("{other:?}"),
        }
        let waiter = scene.waiter("k").await;
        assert!(theirs.unlock());
        let released = Instant::now();
        let (_guard, at) = waiter.await.expect("no panic").expect("free");
        let got = at - released;
        // By the safety poll at the latest.
        assert!(got < LEASE * 3 / 2, "{got:?}");
    }

    async fn a_release_wakes_a_waiter(scene: Scene) {
        let guard = scene.one.lock("k").acquire().await.expect("free");
        let waiter = scene.waiter("k").await;
        let released = Instant::now();
        guard.release().await.expect("held");
        let (_guard, at) = waiter.await.expect("no panic").expect("woken");
        let got = at - released;
        assert!(got < WOKEN, "{got:?}");
    }

    async fn who_waits_for_a_lock_that_is_to_stay_hears_for_how_long(scene: Scene) {
        let minimum = LEASE / 4;
        let lock = scene.one.lock("k").lease(LEASE * 20).min_hold(minimum);
        let (asked, guard) = (Instant::now(), lock.acquire().await.expect("free"));
        let waiter = scene.waiter("k").await;
        guard.release().await.expect("held");
        let (_guard, at) = waiter.await.expect("no panic").expect("in the end");
        let got = at - asked;
        // Long before it would have asked again without a word.
        assert!(got + Duration::from_millis(2) >= minimum && got < WOKEN, "{got:?}");
    }

    async fn what_they_leave_behind_is_taken_over_at_the_end_of_its_lease(scene: Scene) {
        let start = Instant::now();
        assert!(scene.peer().try_lock(LEASE));
        let guard = scene.one.lock("k").acquire().await.expect("in the end");
        let taken = start.elapsed();
        // Their clock, and the server's, have a grain of a millisecond.
        assert!(taken + Duration::from_millis(2) >= LEASE, "{taken:?}");
        assert!(taken < LEASE * 5 / 4, "{taken:?}");
        assert!(!scene.peer().try_lock(LEASE));
        guard.release().await.expect("held");
    }

    async fn what_ours_leave_behind_is_taken_over_at_the_end_of_its_lease(scene: Scene) {
        let granted = Instant::now();
        let _left = leave_behind(&scene, LEASE).await;
        let mut theirs = scene.peer();
        let free = until(LEASE * 2, || theirs.try_lock(LEASE)).await;
        assert!(free.is_some() && granted.elapsed() >= LEASE, "{:?}", granted.elapsed());
    }

    async fn a_body_of_three_leases_keeps_its_lock(scene: Scene) {
        let (lock, ended) = (scene.one.lock("k"), Arc::new(AtomicBool::new(false)));
        let over = Arc::clone(&ended);
        let body = async move {
            sleep(LEASE * 3).await;
            over.store(true, Ordering::SeqCst);
        };
        let body = tokio::spawn(async move { lock.run(body).await });
        assert!(until(LEASE, || scene.server.exists("k")).await.is_some());
        let mut theirs = scene.peer();
        assert!(until(LEASE * 5, || theirs.try_lock(LEASE)).await.is_some(), "it ends");
        // The key is free before the task has heard that it is, so the task is not asked.
        assert!(ended.load(Ordering::SeqCst), "taken from a body");
        body.await.expect("no panic").expect("kept");
    }

    async fn a_stale_guard_does_nothing(scene: Scene) {
        let stale = scene.one.lock("k").lease(LEASE / 4).acquire().await.expect("free");
        stale.lost().await;
        let mut theirs = scene.peer();
        assert!(until(LEASE, || theirs.try_lock(LEASE * 10)).await.is_some());
        let before = scene.value();
        assert!(matches!(stale.fencing_token().await, Err(LockError::Lost { .. })));
        assert!(matches!(stale.release().await, Err(LockError::Lost { .. })));
        until_at_rest(&scene.one, LEASE).await;
        assert_eq!(scene.value(), before);
        assert!(scene.server.pttl("k") != 0 && theirs.unlock());
    }

    async fn a_release_by_one_who_does_not_know_of_the_loss_leaves_the_successor_alone(scene: Scene) {
        let guard = scene.one.lock("k").acquire().await.expect("free");
        scene.server.tell(&["DEL", "k"]);
        assert!(scene.peer().try_lock(LEASE * 10));
        let before = scene.value();
        assert!(guard.is_held(), "its next renewal is to come");
        match guard.release().await {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
            other => panic!("{other:?}"),
        }
        assert_eq!(scene.value(), before);
    }

    async fn a_body_whose_key_was_deleted_is_dropped_at_the_next_renewal(scene: Scene) {
        let lock = scene.one.lock("k");
        let body = tokio::spawn(async move { lock.run(std::future::pending::<()>()).await });
        assert!(until(LEASE, || scene.server.exists("k")).await.is_some());
        let start = Instant::now();
        scene.server.tell(&["DEL", "k"]);
        match timeout(LEASE, body).await.expect("by its next renewal").expect("no panic") {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Gone),
            other => panic!("{other:?}"),
        }
        assert!(start.elapsed() < LEASE * 2 / 3, "{:?}", start.elapsed());
        assert!(!scene.server.exists("k"), "it is not made again");
    }

    async fn a_body_whose_key_was_taken_is_dropped_and_the_key_left_alone(scene: Scene) {
        let lock = scene.one.lock("k");
        let body = tokio::spawn(async move { lock.run(std::future::pending::<()>()).await });
        assert!(until(LEASE, || scene.server.exists("k")).await.is_some());
        scene.server.tell(&["DEL", "k"]);
        assert!(scene.peer().try_lock(LEASE * 10));
        let before = scene.value();
        match timeout(LEASE, body).await.expect("by its next renewal").expect("no panic") {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
            other => panic!("{other:?}"),
        }
        until_at_rest(&scene.one, LEASE).await;
        assert_eq!(scene.value(), before);
    }

    async fn a_key_stays_for_its_min_hold(scene: Scene) {
        let (start, minimum) = (Instant::now(), LEASE * 2);
        scene.one.lock("k").min_hold(minimum).run(async {}).await.expect("free");
        assert!(start.elapsed() < LEASE, "the caller does not wait for it");
        let left = scene.left();
        assert!((1..=2000).contains(&left), "{left}");
        assert!(!is_free(&scene.one).await && !is_free(&scene.two).await);
        let mut theirs = scene.peer();
        assert!(until(minimum * 2, || theirs.try_lock(LEASE)).await.is_some());
        let stayed = start.elapsed();
        assert!(stayed + Duration::from_millis(2) >= minimum, "{stayed:?}");
        assert!(stayed < minimum + LEASE / 2, "{stayed:?}");
    }

    async fn a_renewal_that_arrives_late_does_not_extend_a_key_that_stays(scene: Scene) {
        let proxy = Proxy::to(scene.server.port());
        // Patient enough for the release not to wait for the renewal.
        let client = builder(&proxy.url(), scene.format).watchdog(LEASE * 6);
        let client = client.connect().await.expect("up");
        let lock = client.lock("k").min_hold(LEASE * 4);
        let guard = lock.acquire().await.expect("free");
        proxy.hold("EVALSHA");
        assert!(until(LEASE * 3, || proxy.struck() == 1).await.is_some(), "it is on its way");
        guard.release().await.expect("over the other connection");
        let calls = || scene.server.calls("evalsha");
        let (value, left, before) = (scene.value(), scene.left(), calls());
        proxy.deliver();
        assert!(until(LEASE, || calls() > before).await.is_some(), "there it comes");
        until_at_rest(&client, LEASE).await;
        let after = scene.left();
        assert!(after > 0 && after <= left, "{after} ms after {left}");
        assert_eq!(scene.value(), value);
    }

    /// One that was sent before the lease was made longer, over a connection that was given up since.
    async fn a_renewal_that_arrives_late_shortens_nothing(scene: Scene) {
        let proxy = Proxy::to(scene.server.port());
        let client = builder(&proxy.url(), scene.format).watchdog(LEASE * 3);
        let client = client.connect().await.expect("up");
        // Fixed ones, so that nothing else renews it.
        let lock = |lease| client.lock("k").lease(lease);
        let body = async {
            proxy.hold("EVALSHA");
            let brief = lock(LEASE * 20).acquire().await;
            assert!(matches!(brief, Err(LockError::Unavailable { .. })), "{brief:?}");
            assert_eq!(proxy.struck(), 1, "it is on its way");
            let _inner = lock(LEASE * 60).acquire().await.expect("shared, and extended");
            let calls = || scene.server.calls("evalsha");
            let (value, before) = (scene.value(), calls());
            proxy.deliver();
            assert!(until(LEASE, || calls() > before).await.is_some(), "there it comes");
            let left = scene.left();
            assert!(left > 50_000, "{left} ms left");
            assert_eq!(scene.value(), value);
        };
        lock(LEASE * 10).run(body).await.expect("held to its end");
    }

    async fn fencing_tokens_rise_from_holder_to_holder(scene: Scene) {
        let mut last = 0;
        for client in [&scene.one, &scene.two, &scene.one] {
            let guard = client.lock("k").acquire().await.expect("free");
            let token = guard.fencing_token().await.expect("held");
            assert!(token > last, "{token} after {last}");
            last = token;
            guard.release().await.expect("held");
        }
        let guard = scene.one.lock("k").acquire().await.expect("free");
        scene.server.tell(&["DEL", "k"]);
        assert!(scene.peer().try_lock(LEASE));
        match guard.fencing_token().await {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
            other => panic!("{other:?}"),
        }
    }

    async fn a_request_whose_answer_is_lost_is_one_hold_or_none(scene: Scene) {
        let proxy = Proxy::to(scene.server.port());
        let client = builder(&proxy.url(), scene.format).watchdog(LEASE * 60);
        let client = client.connect().await.expect("up");
        client.lock("warm").run(async {}).await.expect("free");
        let first = if scene.format == WireFormat::Token { "SET" } else { "EVALSHA" };
        for n in 1..=5 {
            proxy.lose_reply_to(first);
            let begun = Instant::now();
            let guard = client.lock("k").wait(LEASE * 5).acquire().await.expect("it was its own");
            assert_eq!(proxy.struck(), 2 * n - 1, "the answer was lost");
            assert!(begun.elapsed() < LEASE, "it did not wait for itself: {:?}", begun.elapsed());
            proxy.lose_reply_to("EVALSHA");
            drop(guard.release().await);
            assert!(until(LEASE, || !scene.server.exists("k")).await.is_some());
            assert_eq!(proxy.struck(), 2 * n);
        }
        until_at_rest(&client, LEASE * 5).await;
    }

    async fn a_request_that_arrives_after_its_caller_gave_up_is_undone(scene: Scene) {
        let proxy = Proxy::to(scene.server.port());
        let client = builder(&proxy.url(), scene.format).watchdog(LEASE * 60);
        let client = client.connect().await.expect("up");
        client.lock("warm").run(async {}).await.expect("free");
        let word = if scene.format == WireFormat::Token { "SET" } else { "EVALSHA" };
        proxy.hold(word);
        let outcome = client.lock("k").wait(LEASE / 10).acquire().await;
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
        assert!(!scene.server.exists("k"), "it is still on its way");
        let calls = || scene.server.calls(&word.to_lowercase());
        let before = calls();
        proxy.deliver();
        assert!(until(LEASE, || calls() > before).await.is_some(), "there it comes");
        let gone = until(LEASE * 4, || !scene.server.exists("k")).await;
        assert!(gone.is_some(), "left for {} ms", scene.server.pttl("k"));
        until_at_rest(&client, LEASE * 5).await;
        assert!(is_free(&scene.one).await);
    }

    async fn a_try_that_arrives_late_shortens_nothing(scene: Scene) {
        let proxy = Proxy::to(scene.server.port());
        let client = builder(&proxy.url(), scene.format).connect().await.expect("up");
        client.lock("warm").run(async {}).await.expect("free");
        proxy.lose_reply_to(if scene.format == WireFormat::Token { "SET" } else { "EVALSHA" });
        proxy.hold("EVALSHA");
        let (brief, long) = (client.lock("k").lease(LEASE * 5), client.lock("k").lease(LEASE * 60));
        let body = async {
            assert_eq!(proxy.struck(), 2, "two tries went wrong");
            let _inner = long.acquire().await.expect("shared, and extended");
            let calls = scene.server.calls("evalsha");
            proxy.deliver();
            let arrived = until(LEASE, || scene.server.calls("evalsha") > calls).await;
            assert!(arrived.is_some(), "there it comes");
            sleep(LEASE / 5).await;
            scene.left()
        };
        let left = brief.run(body).await.expect("by the third");
        assert!(left > 50_000, "{left} ms left");
    }

    async fn every_hold_counts_once_under_contention(scene: Scene) {
        count_under_contention([&scene.one, &scene.two], 200).await;
    }

    async fn a_key_with_a_hash_tag_is_locked_and_its_release_heard_of(scene: Scene) {
        for key in ["{user:7}:cart", "a{", "}{"] {
            let guard = scene.one.lock(key).acquire().await.expect("free");
            assert!(!peer(scene.format, &scene.server, key).try_lock(LEASE));
            let waiter = scene.waiter(key).await;
            let released = Instant::now();
            guard.release().await.expect("held");
            let (_guard, at) = waiter.await.expect("no panic").expect("woken");
            let got = at - released;
            assert!(got < WOKEN, "{key}: {got:?}");
        }
    }

    /// All keys of one script are in one slot of a cluster.
    async fn what_belongs_to_a_lock_is_in_its_slot(scene: Scene) {
        let cluster = RedisServer::with(&["--cluster-enabled", "yes"]);
        for key in ["order:42", "{user:7}:cart", "a{}b", "}{", "käse"] {
            scene.server.tell(&["FLUSHALL"]);
            let guard = scene.one.lock(key).acquire().await.expect("free");
            guard.fencing_token().await.expect("held");
            let keys: Vec<String> = scene.server.command(&["KEYS", "*"]);
            assert!(keys.len() >= 2, "{keys:?}");
            let slot = |key| cluster.command::<u16>(&["CLUSTER", "KEYSLOT", key]);
            assert!(keys.iter().all(|other| slot(other) == slot(key)), "{keys:?}");
            guard.release().await.expect("held");
        }
    }

    async fn nothing_is_left_after_the_last_release(scene: Scene) {
        for n in 0..20 {
            scene.one.lock(format!("{n}")).run(async {}).await.expect("free");
        }
        drop(scene.one.lock("k").acquire().await.expect("free"));
        scene.one.shutdown().await.expect("released");
        assert_eq!(scene.server.command::<Vec<String>>(&["KEYS", "*"]), [""; 0]);
    }
}

/// A key of one format is in the way of another, and is told from a busy one wherever it can be.
#[tokio::test]
async fn a_key_in_another_format_is_named_and_left_alone() {
    let server = RedisServer::start();
    let token = format!("{:032}", 7);
    for (found, words, wanted) in [
        (WireFormat::Redisson, vec!["HSET", "k", "b983c153-7421-469a-addb-44fb92259a1b:1", "1"], 0),
        (WireFormat::Token, vec!["SET", "k", &token], 1),
        (WireFormat::Timestamp, vec!["SET", "k", "1700000000000"], 1),
        (WireFormat::Timestamp, vec!["SET", "k", "1700000000000"], 0),
        (WireFormat::Token, vec!["SET", "k", &token], 2),
        (WireFormat::Token, vec!["SET", "k", "1700000000"], 2),
        (WireFormat::Redisson, vec!["HSET", "k", "b983c153-7421-469a-addb-44fb92259a1b:1", "1"], 2),
    ] {
        let wanted = FORMATS[wanted];
        server.tell(&["DEL", "k"]);
        server.tell(&words);
        let before: Vec<u8> = server.command(&["DUMP", "k"]);
        let lock = speaking(wanted, &server).await.lock("k");
        for outcome in [lock.acquire().await.map(drop), lock.try_acquire().await.map(drop)] {
            match outcome {
                Err(error @ LockError::WrongFormat { .. }) => {
                    let names = match found {
                        WireFormat::Redisson => {
                            "holds a hash, as a lock of `WireFormat::Redisson` is"
                        }
                        WireFormat::Timestamp if wanted == WireFormat::Token => {
                            "holds a Unix time in ms (13 digits), as a lock of `WireFormat::Timestamp` is"
                        }
                        _ => "holds a string, as a lock of `WireFormat::Token` is",
                    };
                    let belongs = match wanted {
                        WireFormat::Token => "not a string, as a lock of `WireFormat::Token` is",
                        WireFormat::Redisson => {
                            "not a hash, as a lock of `WireFormat::Redisson` is"
                        }
                        _ => {
                            "not a Unix time in ms (13 digits), as a lock of `WireFormat::Timestamp` is"
                        }
                    };
                    let text = error.to_string();
                    assert!(text.contains(names) && text.contains(belongs), "{text}");
                }
                other => panic!("{found:?} for {wanted:?}: {other:?}"),
            }
        }
        assert_eq!(server.command::<Vec<u8>>(&["DUMP", "k"]), before);
    }
}

/// A number that expires is as good a token as any other text of somebody else's.
#[tokio::test]
async fn a_time_that_expires_is_a_foreign_token() {
    let server = RedisServer::start();
    server.tell(&["SET", "k", "1700000000000", "PX", "60000"]);
    match speaking(WireFormat::Token, &server).await.lock("k").wait(LEASE / 4).acquire().await {
        Err(LockError::Busy { holder: Holder::Elsewhere(Some(_)), .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// So is what nearly looks like one for ever, however long it is.
#[tokio::test]
async fn a_long_row_of_digits_is_a_foreign_token() {
    let server = RedisServer::start();
    server.tell(&["SET", "k", &format!("{}x", "1".repeat(80_000))]);
    let client = speaking(WireFormat::Token, &server).await;
    let asked = Instant::now();
    match client.lock("k").wait(LEASE / 4).acquire().await {
        Err(LockError::Busy { holder: Holder::NoExpiry, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(asked.elapsed() < LEASE, "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_lock_may_have_another_format_than_its_client() {
    let server = RedisServer::start();
    let client = speaking(WireFormat::Token, &server).await;
    let type_of = |key: &str| server.command::<String>(&["TYPE", key]);
    let _token = client.lock("a").acquire().await.expect("free");
    let java = client.lock("b").format(WireFormat::Redisson);
    let java = java.acquire().await.expect("free");
    let old = client.lock("c").format(WireFormat::Timestamp).acquire().await.expect("free");
    assert_eq!([type_of("a"), type_of("b"), type_of("c")], ["string", "hash", "string"]);
    assert_eq!(server.command::<String>(&["GET", "c"]).len(), 13);
    java.release().await.expect("held");
    old.release().await.expect("held");

    let java = speaking(WireFormat::Redisson, &server).await;
    let _back = java.lock("d").format(WireFormat::Token).acquire().await.expect("free");
    assert_eq!(type_of("d"), "string");
}

#[tokio::test]
async fn two_formats_of_one_key_exclude_each_other_within_a_client() {
    let server = RedisServer::start();
    let client = speaking(WireFormat::Token, &server).await;
    let formats = FORMATS.iter().cycle().take(30);
    let mut waiters = Vec::new();
    for format in formats {
        let (lock, port) = (client.lock("k").format(*format), server.url());
        let expected = if *format == WireFormat::Redisson { "hash" } else { "string" };
        waiters.push(tokio::spawn(async move {
            let body = async {
                let client = redis::Client::open(port).expect("a valid URL");
                let mut connection = client.get_connection().expect("up");
                redis::cmd("TYPE").arg("k").query::<String>(&mut connection).expect("a reply")
            };
            assert_eq!(lock.run(body).await.expect("in turn"), expected);
        }));
    }
    for waiter in waiters {
        waiter.await.expect("in its own format");
    }
    until_at_rest(&client, LEASE).await;
    assert!(!server.exists("k"));
}

#[tokio::test]
async fn a_nested_lock_in_another_format_is_refused() {
    let server = RedisServer::start();
    let client = speaking(WireFormat::Token, &server).await;
    let body = async {
        drop(client.lock("k").acquire().await.expect("shared"));
        match client.lock("k").format(WireFormat::Redisson).acquire().await {
            Err(LockError::WrongFormat { expected, found, .. }) => {
                assert_eq!(expected, "hash");
                assert_eq!(found, "string that the body around this has locked");
            }
            other => panic!("{other:?}"),
        }
    };
    client.lock("k").run(body).await.expect("held to its end");
}

#[tokio::test]
async fn locks_of_all_formats_are_renewed_together() {
    let server = RedisServer::start();
    let client = speaking(WireFormat::Token, &server).await;
    let mut guards = Vec::new();
    for n in 0..300 {
        let lock = client.lock(format!("k{n}")).format(FORMATS[n % 3]);
        guards.push(lock.acquire().await.expect("free"));
    }
    sleep(LEASE * 2).await;
    assert!(guards.iter().all(LockGuard::is_held));
    drop(guards);
    client.shutdown().await.expect("released");
    assert_eq!(server.command::<Vec<String>>(&["KEYS", "*"]), [""; 0]);
}

#[tokio::test]
async fn the_memory_store_takes_any_format() {
    for format in FORMATS {
        let client = LockClient::builder().url("memory:").format(format);
        let client = client.connect().await.expect("memory");
        let guard = client.lock("k").acquire().await.expect("free");
        assert!(!is_free(&client).await);
        guard.fencing_token().await.expect("held");
        guard.release().await.expect("held");
    }
}

/// The lists of a format's users would be where its secrets are.
#[tokio::test]
async fn no_owner_is_shown() {
    let scene = Scene::new(WireFormat::Redisson).await;
    let lock = scene.one.lock("k");
    let guard = lock.acquire().await.expect("free");
    let owners: Vec<String> = scene.server.command(&["HKEYS", "k"]);
    let number = owners[0].split(':').next_back().expect("a number");
    let shown = format!("{:?} {lock:?} {guard:#?} {:?}", scene.one, scene.two);
    assert!(!shown.contains(number), "{shown}");
    assert!(shown.contains("Redisson"), "{shown}");
}
