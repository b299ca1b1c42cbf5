//! Fair locks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::{
    Holder, HolderKind, Lock, LockClient, LockError, LockGuard, WireFormat, distributed_lock,
    with_client,
};
use lock_tests::support::until_idle;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::{LEASE, Pair, on_every_store, until};

/// Longer than any of these tests takes.
const LONG: Duration = LEASE.saturating_mul(200);

fn fair(client: &LockClient) -> Lock {
    client.lock("k").fair().lease(LONG).wait(LONG)
}

/// Starts a call that waits. Returns when it has its place behind `before` others.
async fn waiting(pair: &Pair, lock: Lock, before: usize) -> JoinHandle<LockGuard> {
    let call = tokio::spawn(async move { lock.acquire().await.expect("its turn") });
    let Some(server) = &pair.server else {
        // The call takes its place when it is first polled.
        tokio::task::yield_now().await;
        return call;
    };
    let here = || pair.one.stats().queued + pair.two.stats().queued;
    let waits = until(LEASE * 20, || here() + server.queued("k") > before).await;
    assert!(waits.is_some(), "the call does not wait");
    call
}

/// Whether a call comes from the second process.
const CALLS: [bool; 12] =
    [true, true, false, true, true, true, false, false, false, true, false, true];

/// The order in which waiting calls get the lock.
async fn order(pair: &Pair, with: fn(Lock) -> Lock) -> Vec<usize> {
    let lock = |client: &LockClient| with(client.lock("k").lease(LONG).wait(LONG));
    let guard = lock(&pair.one).acquire().await.expect("free");
    let (order, mut calls) = (Arc::new(Mutex::new(Vec::new())), JoinSet::new());
    for (n, from_two) in CALLS.into_iter().enumerate() {
        let lock = lock(if from_two { &pair.two } else { &pair.one });
        let (call, order) = (waiting(pair, lock, n).await, Arc::clone(&order));
        calls.spawn(async move {
            let guard = call.await.expect("no panic");
            order.lock().expect("no panic").push(n);
            guard.release().await.expect("held");
        });
    }
    guard.release().await.expect("held");
    while let Some(call) = calls.join_next().await {
        call.expect("no panic");
    }
    std::mem::take(&mut *order.lock().expect("no panic"))
}

on_every_store! {
    async fn calls_of_all_processes_get_the_lock_in_the_order_in_which_they_came(pair: Pair) {
        assert_eq!(order(&pair, Lock::fair).await, (0..CALLS.len()).collect::<Vec<_>>());
    }

    /// Shows that the test above can fail: a process passes other locks on to its own calls.
    async fn calls_that_are_not_fair_get_the_lock_in_another_order(pair: Pair) {
        assert_ne!(order(&pair, |lock| lock).await, (0..CALLS.len()).collect::<Vec<_>>());
    }

    async fn a_call_that_gives_up_leaves_the_queue_and_delays_nobody(pair: Pair) {
        let guard = fair(&pair.one).acquire().await.expect("free");
        let first = waiting(&pair, fair(&pair.two), 0).await;
        let second = waiting(&pair, fair(&pair.two), 1).await;
        let third = waiting(&pair, fair(&pair.one), 2).await;
        let impatient = fair(&pair.one).wait(LEASE / 4).acquire().await;
        assert!(matches!(impatient, Err(LockError::Busy { .. })), "{impatient:?}");
        second.abort();
        assert!(second.await.is_err());
        guard.release().await.expect("held");
        first.await.expect("no panic").release().await.expect("held");
        third.await.expect("no panic").release().await.expect("held");
        // The lock may still be given to a claim of theirs, which leaves in the background.
        until_idle(&pair.one, LEASE * 5).await;
        until_idle(&pair.two, LEASE * 5).await;
        let free = pair.two.lock("k").try_acquire().await.expect("up");
        free.expect("nobody else waits").release().await.expect("held");
        if let Some(server) = &pair.server {
            assert_eq!(server.queued("k"), 0);
        }
    }

    async fn the_statistics_count_each_key_once(pair: Pair) {
        let guard = fair(&pair.one).acquire().await.expect("free");
        let mut calls = Vec::new();
        for before in 0..5 {
            calls.push(waiting(&pair, fair(&pair.one), before).await);
        }
        assert_eq!((pair.one.stats().keys, pair.one.stats().held), (1, 1));
        let other = pair.one.lock("k2").acquire().await.expect("free");
        assert_eq!(pair.one.stats().keys, 2);
        other.release().await.expect("held");
        guard.release().await.expect("held");
        for call in calls {
            call.await.expect("no panic").release().await.expect("held");
        }
        assert_eq!(pair.one.stats().keys, 0);
    }

    async fn a_single_attempt_comes_after_those_that_wait(pair: Pair) {
        let guard = fair(&pair.one).acquire().await.expect("free");
        let call = waiting(&pair, fair(&pair.one), 0).await;
        assert!(fair(&pair.one).try_acquire().await.expect("up").is_none());
        guard.release().await.expect("held");
        let guard = call.await.expect("no panic");
        assert!(fair(&pair.two).try_acquire().await.expect("up").is_none());
        guard.release().await.expect("held");
        let guard = fair(&pair.two).try_acquire().await.expect("up").expect("free");
        guard.release().await.expect("held");
    }

    async fn the_error_of_a_wait_that_runs_out_names_the_holder_of_a_fair_lock(pair: Pair) {
        let guard = fair(&pair.one).acquire().await.expect("free");
        for lock in [fair(&pair.one), pair.one.lock("k")] {
            let here = lock.clone().wait(LEASE / 2).acquire().await;
            assert!(matches!(here, Err(LockError::Busy { holder: Holder { kind: HolderKind::ThisTask, .. }, .. })), "{here:?}");
            let task = tokio::spawn(lock.wait(LEASE / 2).acquire()).await.expect("no panic");
            let is_here = matches!(task, Err(LockError::Busy { holder: Holder { kind: HolderKind::ThisProcess, .. }, .. }));
            assert!(is_here, "{task:?}");
        }
        guard.release().await.expect("held");
        let plain = pair.one.lock("k").lease(LONG).acquire().await.expect("free");
        let here = fair(&pair.one).wait(LEASE / 2).acquire().await;
        assert!(matches!(here, Err(LockError::Busy { holder: Holder { kind: HolderKind::ThisTask, .. }, .. })), "{here:?}");
        plain.release().await.expect("held");
        let guard = fair(&pair.one).acquire().await.expect("free");
        let elsewhere = fair(&pair.two).wait(LEASE / 2).acquire().await;
        let is_elsewhere =
            matches!(elsewhere, Err(LockError::Busy { holder: Holder { kind: HolderKind::Elsewhere, lease_left: Some(_), .. }, .. }));
        assert!(is_elsewhere, "{elsewhere:?}");
        guard.release().await.expect("held");
    }

    async fn fair_and_other_calls_exclude_each_other(pair: Pair) {
        let (inside, mut calls) = (Arc::new(Mutex::new(0_u32)), JoinSet::new());
        for n in 0..60 {
            let client = if n % 2 == 0 { &pair.one } else { &pair.two };
            let (lock, inside) = (client.lock("k").wait(LONG), Arc::clone(&inside));
            let lock = if n % 3 == 0 { lock } else { lock.fair() };
            calls.spawn(async move {
                let body = async {
                    let mut inside = inside.try_lock().expect("two calls hold the lock");
                    *inside += 1;
                };
                lock.run(async { body.await; tokio::task::yield_now().await }).await
            });
        }
        while let Some(call) = calls.join_next().await {
            call.expect("no panic").expect("its turn");
        }
        assert_eq!(*inside.lock().expect("no panic"), 60);
    }

    async fn a_fair_lock_is_shared_by_nested_calls(pair: Pair) {
        let (outer, inner) = (fair(&pair.one), fair(&pair.one).wait(LEASE));
        let nested = outer.run(async { inner.acquire().await.map(drop) });
        nested.await.expect("free").expect("shared");
    }

    async fn a_shutdown_ends_the_waits(pair: Pair) {
        let guard = fair(&pair.two).acquire().await.expect("free");
        let lock = fair(&pair.one);
        let call = tokio::spawn(async move { lock.acquire().await.map(drop) });
        if let Some(server) = &pair.server {
            assert!(until(LEASE * 20, || server.queued("k") == 1).await.is_some());
        } else {
            tokio::task::yield_now().await;
        }
        pair.one.shutdown().await.expect("in time");
        let ended = call.await.expect("no panic");
        assert!(matches!(ended, Err(LockError::ShutDown)), "{ended:?}");
        if let Some(server) = &pair.server {
            assert!(until(LEASE * 20, || server.queued("k") == 0).await.is_some());
        }
        guard.release().await.expect("held");
    }

    async fn options_that_contradict_each_other_are_refused(pair: Pair) {
        let problems = [
            ("fair", fair(&pair.one).wire_format(WireFormat::Redisson)),
            ("fair", fair(&pair.one).wire_format(WireFormat::Timestamp)),
            ("linger", pair.one.lock("k").fair().linger(LEASE / 10)),
        ];
        for (expected, lock) in problems {
            match lock.acquire().await {
                Err(LockError::Config { option, .. }) => assert_eq!(option, expected),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[distributed_lock(key = "k", fair = true)]
async fn attributed() -> Result<&'static str, LockError> {
    Ok("done")
}

#[distributed_lock(keys = ["k", "l"], fair = false, linger = "0s")]
async fn not_fair() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "k", fair = is_fair, wait = "50ms")]
async fn by_expression(is_fair: bool) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn functions_have_fair_locks() {
    let client = LockClient::memory();
    assert_eq!(with_client(client.clone(), attributed()).await, Ok("done"));
    assert_eq!(with_client(client.clone(), not_fair()).await, Ok(()));
    let foreign = LockClient::builder().url("memory:").wire_format(WireFormat::Redisson);
    let foreign = foreign.connect().await.expect("valid");
    let refused = with_client(foreign.clone(), by_expression(true)).await;
    assert!(matches!(refused, Err(LockError::Config { option: "fair", .. })), "{refused:?}");
    assert_eq!(with_client(foreign, by_expression(false)).await, Ok(()));
}
