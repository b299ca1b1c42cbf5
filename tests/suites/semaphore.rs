//! Semaphores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lock_runtime::{
    HolderKind, Lock, LockClient, LockError, Permits, ReleaseMode, WireFormat, distributed_lock,
    with_client,
};
use lock_tests::support::until_idle;
use lock_tests::{CapturedLog, running_time, within};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{LEASE, Pair, client, on_every_store, until};
use crate::waits::{
    FOREIGN, LONG, assert_foreign_values_are_errors, assert_wrong_kind, held, is_free, its_turn,
    queued, release, waiting,
};

/// Some of the permits of the semaphore `k`.
fn permits(client: &LockClient, count: u32, limit: u32) -> Lock {
    client.semaphore("k", limit).permits(count).wait(LONG)
}

on_every_store! {
    async fn holders_have_at_most_the_limit_together(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        let (first, second) = (held(permits(one, 1, 3)).await, held(permits(two, 2, 3)).await);
        assert_eq!(second.permits(), Some(Permits::new(2, 3)));
        assert_eq!(first.mode(), None);
        for client in [one, two] {
            assert!(!is_free(permits(client, 1, 3)).await, "all permits are taken");
        }
        release(first).await;
        assert!(is_free(permits(two, 1, 3)).await && !is_free(permits(one, 2, 3)).await);
        release(second).await;
        assert!(is_free(permits(one, 3, 3)).await);
        assert_eq!(held(one.lock("other")).await.permits(), None);
        if let Some(server) = &pair.server {
            assert!(!server.exists("k"), "nothing is left");
        }
    }

    async fn tasks_reach_the_limit_and_never_more(pair: Pair) {
        let (inside, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let counts = Arc::new((inside, most, done));
        let mut tasks = JoinSet::new();
        for n in 0..100 {
            let client = if n % 2 == 0 { &pair.one } else { &pair.two };
            let (lock, counts) = (permits(client, 1, 10), Arc::clone(&counts));
            tasks.spawn(async move {
                let (inside, most, done) = &*counts;
                lock.run(async {
                    most.fetch_max(inside.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    tokio::time::sleep(LEASE / 100).await;
                    inside.fetch_sub(1, Ordering::Relaxed);
                }).await.expect("its turn");
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.expect("no panic");
        }
        assert_eq!(counts.1.load(Ordering::Relaxed), 10, "the most holders at a time");
        assert_eq!(counts.2.load(Ordering::Relaxed), 100);
        release(held(permits(&pair.one, 10, 10)).await).await;
    }

    async fn permits_are_granted_in_order(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        // Permits with a fixed lease are not passed on inside the process.
        let small = held(permits(one, 1, 3).lease(LONG)).await;
        let other = held(permits(one, 1, 3).lease(LONG)).await;
        let large = waiting(&pair, permits(two, 3, 3), 0).await;
        assert!(!is_free(permits(one, 1, 3)).await, "a small call does not overtake a large one");
        let later = waiting(&pair, permits(one, 1, 3), 1).await;
        release(small).await;
        tokio::time::sleep(LEASE / 10).await;
        assert!(!large.is_finished() && !later.is_finished(), "there are too few for the first");
        release(other).await;
        let large = its_turn(large).await;
        assert!(!later.is_finished());
        release(large).await;
        release(its_turn(later).await).await;
        release(held(permits(two, 3, 3)).await).await;
    }

    async fn a_large_call_that_gives_up_lets_the_small_ones_in(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        let first = held(permits(one, 2, 3)).await;
        let large = waiting(&pair, permits(two, 2, 3), 0).await;
        let small = waiting(&pair, permits(one, 1, 3), 1).await;
        large.abort();
        assert!(large.await.is_err());
        assert!(until(LEASE * 5, || queued(&pair) < 2).await.is_some(), "it has left the queue");
        release(its_turn(small).await).await;
        let impatient = permits(two, 2, 3).wait(LEASE / 4).acquire().await;
        let Err(LockError::Busy { holder, .. }) = impatient else { panic!("{impatient:?}") };
        assert!(holder.kind == HolderKind::Elsewhere, "{holder:?}");
        assert!(until(LEASE * 5, || queued(&pair) == 0).await.is_some(), "it has left the queue");
        release(first).await;
    }

    async fn each_call_counts_by_its_own_limit(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        let first = [held(permits(one, 1, 2)).await, held(permits(one, 1, 2)).await];
        assert!(!is_free(permits(two, 1, 2)).await);
        let third = held(permits(two, 1, 3)).await;
        let lower = waiting(&pair, permits(one, 1, 2), 0).await;
        assert!(!is_free(permits(two, 1, 10)).await, "a higher limit does not overtake");
        for guard in first {
            release(guard).await;
        }
        release(its_turn(lower).await).await;
        release(third).await;
        release(held(permits(two, 10, 10)).await).await;
    }

    async fn all_permits_of_a_guard_end_together(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        let short = held(permits(one, 2, 3).lease(LEASE)).await;
        let long = held(permits(two, 1, 3)).await;
        let next = waiting(&pair, permits(two, 2, 3), 0).await;
        let began = Instant::now();
        let next = its_turn(next).await;
        assert!(running_time(began) < LEASE * 3, "both are free when the lease ends");
        assert!(long.is_held() && !short.is_held());
        let error = short.release().await.expect_err("its lease is over");
        assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
        assert!(!is_free(permits(one, 1, 3)).await, "the late release frees nothing");
        release(next).await;
        release(long).await;
    }

    async fn a_nested_call_shares_the_permits_of_the_body(pair: Pair) {
        let outer = permits(&pair.one, 2, 3);
        outer.run(async {
            for count in [1, 2] {
                let inner = permits(&pair.one, count, 3);
                let shared = inner.acquire().await.expect("shared");
                assert_eq!(shared.permits(), Some(Permits::new(2, 3)), "those of the body");
                release(shared).await;
            }
            let more = permits(&pair.one, 3, 3).wait(LEASE).run(async {}).await;
            let error = more.expect_err("it would wait for its own body");
            let is_it = matches!(&error, LockError::WouldDeadlock { key, .. } if key == "k");
            assert!(is_it, "more permits in the body of a holder fail at once: {error:?}");
            assert!(is_free(permits(&pair.two, 1, 3)).await, "one is left for others");
        }).await.expect("free");
        assert!(is_free(permits(&pair.two, 3, 3)).await);
    }

    async fn bad_numbers_are_errors_of_the_call(pair: Pair) {
        for (count, limit) in [(0, 5), (3, 2), (1, 0), (0, 0), (1001, 5000), (u32::MAX, u32::MAX)] {
            let error = permits(&pair.one, count, limit).acquire().await.expect_err("a bad number");
            let LockError::Config { option: "permits", problem, .. } = &error else {
                panic!("{error:?}")
            };
            assert!(problem.contains("at least 1") || problem.contains("at most"), "{problem}");
        }
        let most = held(permits(&pair.one, 1000, u32::MAX)).await;
        assert!(is_free(permits(&pair.two, 1, 1 << 31)).await);
        assert!(!is_free(permits(&pair.two, 1, 1000)).await);
        release(most).await;
        assert!(pair.one.semaphore("k", 0).acquire().await.is_err());
    }

    async fn options_that_semaphores_lack_are_errors(pair: Pair) {
        let lock = permits(&pair.one, 1, 2);
        for (other, named) in [
            (lock.clone().fair(), "fair"),
            (lock.clone().linger(LEASE / 10), "linger"),
            (lock.clone().wire_format(WireFormat::Redisson), "wire_format"),
        ] {
            let error = other.acquire().await.expect_err("not for semaphores");
            assert!(matches!(&error, LockError::Config { option, .. } if *option == named));
        }
        let guard = held(lock).await;
        let error = guard.fencing_token().await.expect_err("not for semaphores");
        assert!(matches!(error, LockError::Config { .. }), "{error:?}");
        assert!(guard.read_write().is_none());
        release(guard).await;
    }

    async fn other_locks_of_the_key_are_wrong_formats(pair: Pair) {
        const KINDS: [&str; 3] = ["string", "read-write lock", "read-write lock"];
        let Pair { one, two, .. } = &pair;
        let others = [two.lock("k"), two.read_write("k").read(), two.read_write("k").write()];
        let guard = held(permits(one, 1, 2)).await;
        for (other, wanted) in others.iter().zip(KINDS) {
            let error = other.try_acquire().await.expect_err("a semaphore");
            assert_wrong_kind(&error, "semaphore", wanted);
        }
        release(guard).await;
        for (other, found) in others.into_iter().zip(KINDS) {
            let guard = held(other).await;
            let error = permits(one, 1, 2).try_acquire().await.expect_err("no semaphore");
            assert_wrong_kind(&error, found, "semaphore");
            release(guard).await;
        }
        let nested = permits(one, 1, 2).run(async { one.lock("k").try_acquire().await }).await;
        assert!(matches!(nested.expect("free"), Err(LockError::WrongFormat { .. })));
    }

    async fn permits_are_renewed_and_kept(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        let guard = held(permits(one, 2, 3)).await;
        tokio::time::sleep(LEASE * 3).await;
        assert!(guard.is_held() && !is_free(permits(two, 2, 3)).await);
        release(guard).await;
        let began = Instant::now();
        permits(one, 2, 3).min_hold(LEASE).run(async {}).await.expect("free");
        assert!(is_free(permits(two, 1, 3)).await, "only its own permits stay taken");
        assert!(!is_free(permits(two, 2, 3)).await, "for the minimum hold");
        release(its_turn(waiting(&pair, permits(two, 2, 3), 0).await).await).await;
        assert!(began.elapsed() >= LEASE * 9 / 10, "the minimum hold: {:?}", began.elapsed());
        let capped = held(permits(one, 1, 1).max_hold(LEASE)).await;
        capped.lost().await;
        release(held(permits(two, 1, 1)).await).await;
    }

    async fn a_body_is_dropped_when_its_permits_are_lost(pair: Pair) {
        let lock = permits(&pair.one, 2, 2).lease(LEASE);
        let error = lock.run(std::future::pending::<()>()).await.expect_err("the lease ends");
        assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
        release(held(permits(&pair.two, 2, 2)).await).await;
    }

    async fn many_tasks_of_a_process_share_few_permits(pair: Pair) {
        let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..50 {
            let lock = permits(&pair.one, 1, 2);
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            tasks.spawn(async move {
                lock.run(async {
                    most.fetch_max(inside.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    tokio::time::sleep(LEASE / 200).await;
                    inside.fetch_sub(1, Ordering::Relaxed);
                }).await.expect("its turn");
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.expect("no panic");
        }
        assert_eq!(most.load(Ordering::Relaxed), 2);
        until_idle(&pair.one, LEASE * 20).await;
    }

    async fn calls_of_one_process_have_an_order(pair: Pair) {
        let first = held(permits(&pair.one, 1, 1)).await;
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for n in 0..8 {
            let (lock, order) = (permits(&pair.one, 1, 1), Arc::clone(&order));
            tasks.spawn(async move {
                lock.run(async { order.lock().expect("no panic").push(n) }).await.expect("its turn");
            });
            tokio::time::sleep(LEASE / 20).await;
        }
        release(first).await;
        while let Some(task) = tasks.join_next().await {
            task.expect("no panic");
        }
        assert_eq!(*order.lock().expect("no panic"), (0..8).collect::<Vec<_>>());
    }

    async fn a_release_need_not_be_awaited(pair: Pair) {
        let lock = permits(&pair.one, 2, 2).release_mode(ReleaseMode::Background);
        lock.run(async {}).await.expect("free");
        drop(held(permits(&pair.one, 2, 2)).await);
        release(held(permits(&pair.two, 2, 2)).await).await;
    }

    async fn an_annotated_function_takes_permits(pair: Pair) {
        #[distributed_lock(key = "k", permits = 2, wait = "0s")]
        async fn one_of_two() -> Result<u32, LockError> {
            Ok(1)
        }
        #[distributed_lock(key = "k", permits = "2 of 2", wait = "0s", guard = guard)]
        async fn both() -> Result<Option<Permits>, LockError> {
            Ok(guard.permits())
        }
        #[distributed_lock(key = "k", permits = limit, wait = "0s")]
        async fn one_of(limit: u32) -> Result<u32, LockError> {
            Ok(limit)
        }
        #[distributed_lock(key = "k", permits = Permits::new(count, 3), wait = "0s")]
        async fn of_three(count: u32) -> Result<u32, LockError> {
            Ok(count)
        }
        let permit = held(permits(&pair.two, 1, 2)).await;
        with_client(pair.one.clone(), async {
            assert_eq!(one_of_two().await.expect("one is left"), 1);
            assert!(matches!(both().await, Err(LockError::Busy { .. })));
            assert_eq!(one_of(2).await.expect("one is left"), 2);
            assert!(matches!(one_of(1).await, Err(LockError::Busy { .. })));
            assert!(matches!(one_of(0).await, Err(LockError::Config { option: "permits", .. })));
            assert_eq!(of_three(2).await.expect("two are left"), 2);
            release(permit).await;
            assert_eq!(both().await.expect("both are left"), Some(Permits::new(2, 2)));
        }).await;
    }
}

#[tokio::test]
async fn different_limits_are_logged_once() {
    let server = lock_tests::RedisServer::start();
    let key = format!("limits:{}", server.port());
    let log = CapturedLog::here();
    for client in [client(&server.url()).await, LockClient::memory()] {
        let guard = client.semaphore(&*key, 2).permits(2).acquire().await.expect("free");
        for limit in [2, 1, 1] {
            let other = client.semaphore(&*key, limit).try_acquire().await.expect("up");
            assert!(other.is_none());
        }
        release(guard).await;
    }
    let is_logged = || log.lines(&["different limits", &key, "limit=1", "other=2"]).len();
    let logged = until(LEASE * 10, || is_logged() == 2).await;
    assert!(logged.is_some(), "once for each client: {}", is_logged());
    assert_eq!(log.lines(&["different limits", &key]).len(), 2, "once for each client");
}

/// Values of other kinds at the key, and at the key of its queue, are never changed.
#[tokio::test]
async fn foreign_values_are_errors_or_cost_the_order() {
    let server = lock_tests::RedisServer::start();
    let client = client(&server.url()).await;
    let semaphore = client.semaphore("k", 2);
    let guard = held(semaphore.permits(1)).await;
    let waits = tokio::spawn(semaphore.permits(2).wait(LONG).acquire());
    assert!(until(LEASE * 20, || server.has_woken_claims("k", 1)).await.is_some(), "it waits");
    let queues: Vec<String> = server.command(&["KEYS", "lock_queue:{*}:k"]);
    release(guard).await;
    release(waits.await.expect("no panic").expect("its turn")).await;
    let call = async || semaphore.acquire().await.expect_err("no semaphore");
    assert_foreign_values_are_errors(&server, &client, "semaphore", call).await;
    for (_, set) in FOREIGN.iter().filter(|(kind, _)| *kind != "zset") {
        let mut set = set.to_vec();
        set[1] = &queues[0];
        server.tell(&set);
        let before: Vec<u8> = server.command(&["DUMP", &queues[0]]);
        let guard = held(semaphore.permits(2)).await;
        let waits = tokio::spawn(semaphore.permits(1).wait(LONG).acquire());
        tokio::time::sleep(LEASE / 5).await;
        release(guard).await;
        let polls = within(LEASE * 5, waits).await.expect("it polls").expect("no panic");
        release(polls.expect("its turn")).await;
        assert_eq!(server.command::<Vec<u8>>(&["DUMP", &queues[0]]), before);
        server.tell(&["DEL", &queues[0]]);
    }
}
