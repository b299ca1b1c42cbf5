//! Locks of several keys that are taken together.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use lock_runtime::{
    HolderKind, LockClient, LockError, LockSetGuard, LostReason, ReleaseMode, WireFormat,
    distributed_lock, with_client,
};
use lock_tests::support::until_idle;
use lock_tests::{RedisServer, within};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{LEASE, client, on_every_store, quiet_client, until};

/// The keys of the guard.
fn keys(guard: &LockSetGuard) -> Vec<&str> {
    guard.keys().collect()
}

async fn is_free(client: &LockClient, key: &str) -> bool {
    let Some(guard) = client.lock(key).try_acquire().await.expect("store is up") else {
        return false;
    };
    // A dropped guard would be released in the background, and the next call could come before.
    guard.release().await.expect("held");
    true
}

/// Whether the key is free as soon as a release in the background has ended. With a store that takes one key at a time, a call
/// that does not get all keys gives back those that it had.
async fn becomes_free(client: &LockClient, key: &str) -> bool {
    client.lock(key).wait(LEASE / 2).run(async {}).await.is_ok()
}

/// Polls a future once.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx))).await
}

on_every_store! {
    async fn a_set_takes_all_locks_or_none(pair: Pair) {
        let held = pair.one.lock("b").acquire().await.expect("free");
        let set = pair.two.lock_all(["a", "b", "c"]);
        assert!(set.try_acquire().await.expect("store is up").is_none());
        for key in ["a", "c"] {
            let is_untouched = !pair.takes_sets_in_one_step() || is_free(&pair.one, key).await;
            assert!(is_untouched && becomes_free(&pair.one, key).await, "{key} was not taken");
            // The client that gives a key back is the last to learn that it is free.
            assert!(becomes_free(&pair.two, key).await, "{key} was given back");
        }
        held.release().await.expect("held");
        let guard = set.try_acquire().await.expect("store is up").expect("free");
        assert_eq!(keys(&guard), ["a", "b", "c"]);
        for key in ["a", "b", "c"] {
            assert!(!is_free(&pair.one, key).await && !is_free(&pair.two, key).await, "{key}");
        }
        assert!(pair.one.lock_all(["c", "d"]).try_acquire().await.expect("up").is_none());
        assert!(pair.one.lock_all(["d", "e"]).try_acquire().await.expect("up").is_some());
        guard.release().await.expect("held");
        for key in ["a", "b", "c"] {
            assert!(is_free(&pair.one, key).await, "{key} was released");
        }
    }

    async fn the_order_of_keys_and_duplicates_do_not_matter(pair: Pair) {
        let guard = pair.one.lock_all(["b", "a", "b"]).acquire().await.expect("free");
        assert_eq!(keys(&guard), ["a", "b"]);
        assert!(guard.is_held() && !guard.remaining().is_zero());
        drop(guard);
        // From one account to the same one.
        let one = pair.two.lock_all(["x", "x"]).acquire().await.expect("free");
        assert_eq!(keys(&one), ["x"]);
    }

    async fn a_set_waits_for_its_keys_and_holds_none_meanwhile(pair: Pair) {
        let held = pair.one.lock("b").acquire().await.expect("free");
        let set = pair.two.lock_all(["a", "b"]);
        let waiter = tokio::spawn(async move { set.acquire().await });
        tokio::time::sleep(LEASE / 4).await;
        assert!(is_free(&pair.one, "a").await, "the first key is not held while the call waits");
        assert!(!waiter.is_finished());
        held.release().await.expect("held");
        let guard = within(LEASE, waiter).await.expect("woken").expect("no panic").expect("free");
        assert_eq!(keys(&guard), ["a", "b"]);
    }

    async fn a_set_waits_for_one_key_after_the_other(pair: Pair) {
        let first = pair.one.lock("a").acquire().await.expect("free");
        let second = pair.one.lock("b").acquire().await.expect("free");
        let set = pair.two.lock_all(["a", "b"]);
        let waiter = tokio::spawn(async move { set.acquire().await });
        tokio::time::sleep(LEASE / 10).await;
        first.release().await.expect("held");
        tokio::time::sleep(LEASE / 10).await;
        second.release().await.expect("held");
        let guard = within(LEASE * 2, waiter).await.expect("woken").expect("no panic");
        assert_eq!(keys(&guard.expect("free")), ["a", "b"]);
    }

    async fn the_error_of_a_set_names_the_busy_key(pair: Pair) {
        let _held = pair.one.lock("b").acquire().await.expect("free");
        let start = Instant::now();
        match pair.two.lock_all(["a", "b", "c"]).wait(LEASE / 4).acquire().await {
            Err(LockError::Busy { key, waited, .. }) => {
                assert_eq!(key, "b");
                assert!(waited >= LEASE / 4 && waited <= start.elapsed());
            }
            other => panic!("{other:?}"),
        }
        until_idle(&pair.two, LEASE).await;
        assert!(is_free(&pair.one, "a").await && is_free(&pair.one, "c").await);
    }

    async fn sets_and_single_locks_of_their_keys_exclude_each_other(pair: Pair) {
        // Not atomic, so that two holders at once lose an increment.
        let counters: Arc<[AtomicU64; 3]> = Arc::default();
        let (mut tasks, rounds) = (JoinSet::new(), 8);
        for n in 0..12_usize {
            let client = if n % 2 == 0 { pair.one.clone() } else { pair.two.clone() };
            let counters = Arc::clone(&counters);
            // All pairs, in both orders, and all single keys.
            let (from, to) = ([0, 1, 2][n % 3], [1, 2, 0, 0, 1, 2][n % 6]);
            tasks.spawn(async move {
                for _ in 0..rounds {
                    let set = client.lock_all([format!("k{from}"), format!("k{to}")]);
                    let body = async {
                        let before = [from, to].map(|key| counters[key].load(Ordering::SeqCst));
                        tokio::task::yield_now().await;
                        counters[from].store(before[0] + 1, Ordering::SeqCst);
                        if from != to {
                            counters[to].store(before[1] + 1, Ordering::SeqCst);
                        }
                    };
                    set.run(body).await.expect("granted");
                }
                rounds * (1 + u64::from(from != to))
            });
        }
        let mut expected = 0;
        while let Some(counted) = tasks.join_next().await {
            expected += counted.expect("no panic");
        }
        let total: u64 = counters.iter().map(|counter| counter.load(Ordering::SeqCst)).sum();
        assert_eq!(total, expected);
        until_idle(&pair.one, LEASE).await;
    }

    async fn a_set_shares_the_keys_of_enclosing_bodies(pair: Pair) {
        let client = pair.one.clone();
        let outer = client.lock_all(["a", "b"]).run(async {
            client.lock("a").run(async {}).await.expect("shared");
            let inner = client.lock_all(["b", "c"]).wait(LEASE).acquire().await.expect("shared");
            assert_eq!(keys(&inner), ["b", "c"]);
            inner.release().await.expect("held");
            assert!(!is_free(&pair.two, "b").await, "the outer body has it");
            assert!(is_free(&pair.two, "c").await, "the inner call had it");
            client.lock_all(["a", "b"]).run(async {}).await.expect("shared");
        });
        outer.await.expect("free");
        assert!(is_free(&pair.two, "a").await && is_free(&pair.two, "b").await);
        let outer = client.lock("b").run(async {
            client.lock_all(["a", "b"]).run(async {
                client.lock_all(["b", "a"]).run(async {}).await.expect("shared");
            }).await.expect("shared");
            assert!(!is_free(&pair.two, "b").await);
        });
        outer.await.expect("free");
    }

    async fn the_locks_of_a_set_are_handed_off_within_the_process(pair: Pair) {
        let guard = pair.one.lock_all(["a", "b"]).acquire().await.expect("free");
        let waiters: Vec<_> = ["a", "b"].map(|key| {
            let lock = pair.one.lock(key);
            tokio::spawn(async move { lock.run(async {}).await })
        }).into();
        let queued = || pair.one.stats().queued == 2;
        assert!(until(LEASE, queued).await.is_some());
        guard.release().await.expect("held");
        for waiter in waiters {
            within(LEASE, waiter).await.expect("handed off").expect("no panic").expect("held");
        }
        until_idle(&pair.one, LEASE).await;
    }

    async fn terms_begin_when_the_last_lock_is_acquired(pair: Pair) {
        for format in [WireFormat::Token, WireFormat::Redisson] {
            let lease = LEASE / 2;
            let held = pair.one.lock("b").wire_format(format).acquire().await.expect("free");
            let set = pair.two.lock_all(["a", "b"]).wire_format(format).lease(lease);
            let waiter = tokio::spawn(async move { set.acquire().await });
            tokio::time::sleep(lease * 2).await;
            held.release().await.expect("held");
            let guard = waiter.await.expect("no panic").expect("granted");
            assert!(guard.remaining() > lease / 2, "{format:?}: {:?}", guard.remaining());
            assert_eq!(guard.lost().await, LostReason::LeaseOver, "{format:?}");
            assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));

            let held = pair.one.lock("b").wire_format(format).acquire().await.expect("free");
            let set = pair.two.lock_all(["a", "b"]).wire_format(format).max_hold(lease);
            let waiter = tokio::spawn(async move {
                let start = Instant::now();
                (set.run(std::future::pending::<()>()).await, start.elapsed())
            });
            tokio::time::sleep(lease * 2).await;
            held.release().await.expect("held");
            match waiter.await.expect("no panic") {
                (Err(LockError::Lost { reason: LostReason::MaxHold, .. }), after) => {
                    assert!(after > lease * 5 / 2, "{format:?}: {after:?}");
                }
                other => panic!("{other:?}"),
            }
            until_idle(&pair.two, LEASE).await;
        }
    }

    async fn a_single_attempt_gets_free_keys_whatever_its_terms(pair: Pair) {
        for round in 0..5 {
            let set = pair.one.lock_all([format!("a{round}"), format!("b{round}")]);
            for set in [set.clone().lease(LEASE * 2), set.clone(), set.min_hold(LEASE / 50)] {
                let guard = set.try_acquire().await.expect("the store is up").expect("free");
                guard.release().await.expect("held");
            }
        }
    }

    /// What the last attempt has taken is being given back.
    async fn attempts_one_after_the_other_do_not_hinder_each_other(pair: Pair) {
        let held = pair.two.lock("b").acquire().await.expect("free");
        for _ in 0..5 {
            assert!(pair.one.lock_all(["a", "b"]).try_acquire().await.expect("up").is_none());
            for set in [pair.one.lock_all(["a"]), pair.one.lock_all(["a", "c"])] {
                drop(set.try_acquire().await.expect("up").expect("given back"));
                let lock = pair.one.lock("a");
                drop(lock.try_acquire().await.expect("up").expect("given back"));
            }
        }
        held.release().await.expect("held");
    }

    async fn a_min_hold_keeps_all_keys(pair: Pair) {
        let start = Instant::now();
        let set = pair.one.lock_all(["a", "b"]).min_hold(LEASE / 2);
        set.run(async {}).await.expect("free");
        let taken = [is_free(&pair.two, "a").await, is_free(&pair.two, "b").await];
        assert!(taken == [false, false] || start.elapsed() > LEASE / 2);
        pair.two.lock_all(["a", "b"]).run(async {}).await.expect("free in the end");
        assert!(start.elapsed() >= LEASE / 2);
    }

    async fn a_set_has_one_fencing_token(pair: Pair) {
        let two = &pair.two;
        let single = |key: &'static str| async move {
            two.lock(key).acquire().await.expect("free").fencing_token().await.expect("held")
        };
        let mut last = single("a").await.max(single("b").await);
        for _ in 0..3 {
            let guard = pair.one.lock_all(["b", "a"]).acquire().await.expect("free");
            let token = guard.fencing_token().await.expect("held");
            assert!(token > last);
            assert_eq!(guard.fencing_token().await, Ok(token));
            guard.release().await.expect("held");
            let (a, b) = (single("a").await, single("b").await);
            assert!(a > token && b > token, "{a} and {b} after {token}");
            last = a.max(b);
        }
        let both = pair.one.lock_all(["a", "b"]).run(async {
            let nested = pair.one.lock_all(["a", "b"]).acquire().await.expect("shared");
            let token = nested.fencing_token().await.expect("held");
            let one = pair.one.lock("a").acquire().await.expect("shared");
            (token, one.fencing_token().await.expect("held"))
        });
        let (set, nested) = both.await.expect("free");
        assert_eq!(set, nested);
    }

    async fn a_cancelled_call_leaves_nothing(pair: Pair) {
        for polls in 0..12 {
            let held = if polls % 3 == 0 {
                Some(pair.two.lock("b").acquire().await.expect("free"))
            } else {
                None
            };
            let mut call = Box::pin(pair.one.lock_all(["a", "b", "c"]).run(std::future::pending::<()>()));
            for _ in 0..=polls {
                assert!(poll_once(&mut call).await.is_pending());
                tokio::task::yield_now().await;
            }
            drop(call);
            drop(held);
            until_idle(&pair.one, LEASE * 3).await;
            let all = pair.two.lock_all(["a", "b", "c"]).wait(LEASE * 3).acquire().await;
            all.expect("nothing is left").release().await.expect("held");
        }
    }

    async fn a_call_that_is_not_polled_blocks_no_other_call(pair: Pair) {
        let held = pair.two.lock("c").acquire().await.expect("free");
        let mut call = Box::pin(pair.one.lock_all(["a", "b", "c"]).acquire());
        assert!(poll_once(&mut call).await.is_pending());
        tokio::time::sleep(LEASE / 10).await;
        held.release().await.expect("held");
        // The call gets the locks, and is not polled.
        for client in [&pair.one, &pair.two] {
            for key in ["a", "b", "c"] {
                let lock = client.lock(key).wait(LEASE);
                lock.acquire().await.expect("not kept").release().await.expect("held");
            }
        }
        let guard = within(LEASE * 3, call).await.expect("polled again").expect("granted");
        assert!(guard.is_held());
        assert_eq!(keys(&guard), ["a", "b", "c"]);
    }

    async fn a_shutdown_ends_a_call_for_several_locks(pair: Pair) {
        let held = pair.two.lock("b").acquire().await.expect("free");
        let set = pair.one.lock_all(["a", "b"]);
        let waiter = tokio::spawn(async move { set.acquire().await.map(drop) });
        tokio::time::sleep(LEASE / 10).await;
        pair.one.shutdown().await.expect("nothing is held");
        assert_eq!(waiter.await.expect("no panic"), Err(LockError::ShutDown));
        held.release().await.expect("held");
        assert!(pair.two.lock_all(["a", "b"]).try_acquire().await.expect("up").is_some());
    }

    async fn a_release_in_the_background_frees_all_keys(pair: Pair) {
        let set = pair.one.lock_all(["a", "b", "c"]).release_mode(ReleaseMode::Background);
        for _ in 0..5 {
            set.run(async {}).await.expect("free");
        }
        until_idle(&pair.one, LEASE).await;
        assert!(pair.two.lock_all(["a", "b", "c"]).try_acquire().await.expect("up").is_some());
    }
}

#[tokio::test]
async fn a_single_attempt_for_many_keys_costs_few_requests_and_takes_none() {
    let server = RedisServer::start();
    let (one, two) = (quiet_client(&server.url()).await, quiet_client(&server.url()).await);
    let keys = || (0..64).map(|n| format!("k{n:02}"));
    one.lock_all(keys()).run(async {}).await.expect("free");
    let _held = two.lock("k63").acquire().await.expect("free");
    let calls = || server.calls("evalsha") + server.calls("eval");
    let (before, sets) = (calls(), server.calls("set"));
    assert!(one.lock_all(keys()).try_acquire().await.expect("up").is_none());
    assert!(calls() - before <= 3, "{}", calls() - before);
    assert!(server.calls("set") - sets <= 1, "no other key is taken");
}

/// Nothing has run under the locks, so no key has to stay taken.
#[tokio::test]
async fn a_call_that_fails_keeps_no_key_for_its_min_hold_or_linger() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    for format in [WireFormat::Token, WireFormat::Redisson] {
        let _held = two.lock("b").wire_format(format).acquire().await.expect("free");
        let set = one.lock_all(["a", "b"]).wire_format(format);
        for set in [set.clone().min_hold(LEASE * 8), set.linger(LEASE / 3)] {
            assert!(set.try_acquire().await.expect("up").is_none());
            assert!(set.wait(LEASE / 4).acquire().await.is_err());
            until_idle(&one, LEASE).await;
            assert!(!server.exists("a"), "{format:?}");
        }
    }
    // The locks are granted, and the caller is gone.
    let mut call = Box::pin(one.lock_all(["a", "c"]).min_hold(LEASE * 8).acquire());
    assert!(poll_once(&mut call).await.is_pending());
    assert!(until(LEASE, || server.exists("c")).await.is_some(), "granted");
    drop(call);
    until_idle(&one, LEASE).await;
    assert!(!server.exists("a") && !server.exists("c"));
}

#[tokio::test]
async fn a_call_that_waits_for_its_own_task_says_so() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let _held = client.lock_all(["a", "b"]).acquire().await.expect("free");
    let holder = |error: Option<LockError>| match error {
        Some(LockError::Busy { holder, .. }) => holder,
        other => panic!("{other:?}"),
    };
    let single = client.lock("a").wait(LEASE / 10).acquire().await;
    assert_eq!(holder(single.err()).kind, HolderKind::ThisTask);
    let set = client.lock_all(["b", "c"]).wait(LEASE / 10);
    assert_eq!(holder(set.acquire().await.err()).kind, HolderKind::ThisTask);
    let other = tokio::spawn(async move { set.acquire().await.err() });
    assert_eq!(holder(other.await.expect("no panic")).kind, HolderKind::ThisProcess);
}

/// The last token of one key is far ahead of the clock, so only an explicit raise orders the others.
#[tokio::test]
async fn the_token_of_a_set_is_below_the_later_tokens_of_each_key() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let token = async |key: &str| {
        client.lock(key).acquire().await.expect("free").fencing_token().await.expect("held")
    };
    token("a").await;
    let fences: Vec<String> = server.command(&["KEYS", "lock_fence:*"]);
    let ahead = 1_u64 << 52;
    server.tell(&["SET", &fences[0], &ahead.to_string()]);
    let guard = client.lock_all(["a", "b"]).acquire().await.expect("free");
    let set = guard.fencing_token().await.expect("held");
    assert!(set > ahead);
    guard.release().await.expect("held");
    assert!(token("b").await > set && token("a").await > set);
}

/// Branches of one body raise the token of the hold that they share.
#[tokio::test]
async fn the_token_of_a_shared_hold_never_goes_back() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for n in 0..50 {
        let body = async {
            let branch = async |key: String| {
                let guard = client.lock_all(["a".to_owned(), key]).acquire().await.expect("free");
                guard.fencing_token().await.expect("held")
            };
            let (one, two, three) = tokio::join!(
                branch(format!("b{n}")),
                branch(format!("c{n}")),
                branch(format!("d{n}"))
            );
            let shared = client.lock("a").acquire().await.expect("shared");
            assert!(shared.fencing_token().await.expect("held") >= one.max(two).max(three));
        };
        client.lock("a").run(body).await.expect("free");
    }
}

/// A lock that lingers was granted earlier.
#[tokio::test]
async fn a_fixed_lease_begins_anew_with_a_lock_that_lingers() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let lingering = client.lock("a").linger(LEASE / 4);
    lingering.run(tokio::time::sleep(LEASE / 4)).await.expect("free");
    let guard = client.lock_all(["a", "b"]).lease(LEASE).acquire().await.expect("free");
    assert!(guard.remaining() > LEASE * 17 / 20, "{:?}", guard.remaining());
}

/// The calls take their keys one after the other, and renew what they hold.
#[tokio::test]
async fn sets_in_opposite_orders_do_not_wait_for_each_other() {
    let server = RedisServer::start();
    let clients = [client(&server.url()).await, client(&server.url()).await];
    let mut tasks = JoinSet::new();
    for n in 0..6 {
        let client = clients[n % 2].clone();
        tasks.spawn(async move {
            for _ in 0..10 {
                let keys = if n < 3 { ["a", "b"] } else { ["b", "a"] };
                let set = client.lock_all(keys).wire_format(WireFormat::Redisson).wait(LEASE * 10);
                set.run(tokio::task::yield_now()).await.expect("no cycle of calls");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
}

/// A call that needs four keys, beside eight tasks that need one of them each all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_for_many_keys_is_not_passed_over() {
    let server = RedisServer::start();
    let (many, few) = (client(&server.url()).await, client(&server.url()).await);
    let mut tasks = JoinSet::new();
    for n in 0..8 {
        let lock = few.lock(format!("k{}", n % 4));
        tasks.spawn(async move {
            loop {
                lock.run(tokio::time::sleep(LEASE / 200)).await.expect("granted");
            }
        });
    }
    let set = many.lock_all((0..4).map(|n| format!("k{n}"))).wait(LEASE * 8);
    for _ in 0..5 {
        set.run(async {}).await.expect("it gets its turn");
    }
    tasks.shutdown().await;
}

#[tokio::test]
async fn keys_of_one_slot_cost_two_round_trips() {
    let server = RedisServer::start();
    let client = quiet_client(&server.url()).await;
    client.lock_all(["warm", "up"]).run(async {}).await.expect("free");
    let calls = || ["set", "evalsha", "eval"].map(|command| server.calls(command));
    for count in [2, 3, 20, 64] {
        let before = calls();
        let keys = (0..count).map(|n| format!("{{slot}}:{n}"));
        client.lock_all(keys).run(async {}).await.expect("free");
        let after = calls();
        // The server also counts the calls of the script.
        assert_eq!(after[1] + after[2] - before[1] - before[2], 2, "{count} keys");
        assert_eq!(after[0] - before[0], count, "{count} keys");
    }
}

#[tokio::test]
async fn the_loss_of_one_lock_ends_the_body_and_frees_the_others() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    for (words, expected) in [
        (["DEL", "b"].as_slice(), LostReason::Gone),
        (&["SET", "b", "stranger", "PX", "100000"], LostReason::Taken),
    ] {
        let set = one.lock_all(["a", "b", "c"]);
        let (started, start) = tokio::sync::oneshot::channel();
        let body = tokio::spawn(async move {
            set.run(async {
                started.send(()).expect("awaited");
                std::future::pending::<()>().await;
            })
            .await
        });
        start.await.expect("the body runs");
        server.tell(words);
        match within(LEASE * 2, body).await.expect("it ends").expect("no panic") {
            Err(LockError::Lost { key, reason, .. }) => {
                assert_eq!((key.as_str(), reason), ("b", expected));
            }
            other => panic!("{other:?}"),
        }
        let rest = two.lock_all(["a", "c"]).wait(LEASE).acquire().await;
        rest.expect("freed").release().await.expect("held");
        server.tell(&["DEL", "b"]);
    }
    until_idle(&one, LEASE).await;
}

#[tokio::test]
async fn a_foreign_value_is_an_error_that_names_its_key() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for words in [
        ["HSET", "b", "x", "1"].as_slice(),
        &["ZADD", "b", "1", "x"],
        &["RPUSH", "b", "x"],
        &["SADD", "b", "x"],
        &["XADD", "b", "*", "x", "y"],
    ] {
        server.tell(words);
        for wait in [LEASE / 4, Duration::ZERO] {
            until_idle(&client, LEASE).await;
            match client.lock_all(["a", "b", "c"]).wait(wait).acquire().await {
                Err(LockError::WrongFormat { key, .. }) => assert_eq!(key, "b"),
                other => panic!("{other:?}"),
            }
        }
        until_idle(&client, LEASE).await;
        assert!(is_free(&client, "a").await && is_free(&client, "c").await);
        server.tell(&["DEL", "b"]);
    }
}

#[tokio::test]
async fn sets_without_keys_and_with_too_many_are_errors() {
    let client = LockClient::memory();
    let none: [&str; 0] = [];
    let expected = |result: Result<LockSetGuard, LockError>, option: &str, text: &str| match result
    {
        Err(LockError::Config { option: found, problem, .. }) => {
            assert_eq!(found, option);
            assert!(problem.contains(text), "{problem}");
        }
        other => panic!("{other:?}"),
    };
    expected(client.lock_all(none).acquire().await, "keys", "there is no key");
    let many = |count: usize| (0..count).map(|n| format!("k{n}"));
    client.lock_all(many(64)).acquire().await.expect("64 keys").release().await.expect("held");
    expected(
        client.lock_all(many(65)).acquire().await,
        "keys",
        "65 keys, and the client allows 64",
    );
    // The same key counts once.
    client.lock_all(many(64).chain(many(64))).run(async {}).await.expect("64 keys");
    let builder = LockClient::builder().url("memory:");
    for max_keys in [0, 1025] {
        match builder.clone().max_keys(max_keys).connect().await {
            Err(LockError::Config { option: "max_keys", .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    let large = builder.max_keys(1024).connect().await.expect("valid");
    large.lock_all(many(1024)).run(async {}).await.expect("1,024 keys");
    let long = "x".repeat(1025);
    for invalid in ["", "lock_fence:x", &long] {
        match client.lock_all(["a", invalid]).acquire().await {
            Err(LockError::InvalidKey { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    let lease = Duration::from_millis(1);
    expected(client.lock_all(["a"]).lease(lease).acquire().await, "lease", "not in the range");
    assert!(client.stats().is_idle());
}

struct Recipient {
    to: u64,
}

#[distributed_lock(keys = ["account:<from>", "account:<recipient.to>"], guard = both)]
async fn transfer(from: u64, recipient: Recipient) -> Result<Vec<String>, LockError> {
    let _ = (from, recipient);
    Ok(both.keys().map(ToOwned::to_owned).collect())
}

#[distributed_lock(keys = ids.iter().map(|id| format!("item:{id}")), wait = "0s", on_busy = Ok(0))]
async fn reserve(ids: &[u64]) -> Result<usize, LockError> {
    Ok(ids.len())
}

#[distributed_lock(keys = ["a", lock_runtime::key!("b:<n>")], when = n > 1)]
async fn sometimes(n: u32, client: &LockClient) -> Result<bool, LockError> {
    let (key, client) = (format!("b:{n}"), client.clone());
    let free = tokio::spawn(async move { is_free(&client, &key).await });
    Ok(free.await.expect("no panic"))
}

/// The attributes expand from the first to the last, so the lock of the last one is outermost.
#[distributed_lock(key = "b")]
#[distributed_lock(key = "a")]
async fn stacked() -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn the_lock_of_the_last_attribute_is_taken_first() {
    let client = LockClient::memory();
    let held = client.lock("b").acquire().await.expect("free");
    let call = tokio::spawn(with_client(client.clone(), stacked()));
    let waits = || client.stats().queued == 1;
    assert!(until(LEASE, waits).await.is_some());
    assert!(!is_free(&client, "a").await, "taken first");
    held.release().await.expect("held");
    call.await.expect("no panic").expect("free");
    assert!(client.stats().is_idle());
}

#[tokio::test]
async fn an_annotated_function_locks_several_keys() {
    let client = LockClient::memory();
    with_client(client.clone(), async {
        assert_eq!(
            transfer(7, Recipient { to: 3 }).await.expect("free"),
            ["account:3", "account:7"]
        );
        assert_eq!(transfer(7, Recipient { to: 7 }).await.expect("free"), ["account:7"]);
        assert_eq!(reserve(&[2, 1]).await, Ok(2));
        assert!(matches!(reserve(&[]).await, Err(LockError::Config { option: "keys", .. })));
        let _held = client.lock("item:1").acquire().await.expect("free");
        assert_eq!(reserve(&[2, 1]).await, Ok(0), "busy");
        assert_eq!(sometimes(1, &client).await, Ok(true), "no lock");
        assert_eq!(sometimes(2, &client).await, Ok(false), "locked");
    })
    .await;
    assert!(client.stats().is_idle());
}
