//! Acquiring a key inside a body that holds the key shares the hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lock_runtime::{
    Holder, HolderKind, LockClient, LockError, LostReason, distributed_lock, with_client,
};
use lock_tests::CapturedLog;
use tokio::time::timeout;

use crate::support::{LEASE, on_every_store};

#[distributed_lock(key = "order:<id>", wait = "0s")]
async fn pay(id: u64) -> Result<u64, LockError> {
    Ok(cancel(id).await? + 1)
}

#[distributed_lock(key = "order:<id>", wait = "0s")]
async fn cancel(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

on_every_store! {
    async fn nested_calls_on_one_key_do_not_deadlock(pair: Pair) {
        assert_eq!(with_client(pair.one.clone(), pay(1)).await, Ok(2));
        assert!(pair.two.lock("order:1").try_acquire().await.expect("up").is_some());
    }

    async fn the_outermost_holder_releases(pair: Pair) {
        let client = pair.one.clone();
        let other = pair.two.clone();
        pair.one
            .lock("k")
            .run(async move {
                client.lock("k").run(async {}).await.expect("shared");
                client.lock("k").acquire().await.expect("shared").release().await.expect("held");
                drop(client.lock("k").try_acquire().await.expect("up").expect("shared"));
                let is_busy = other.lock("k").try_acquire().await.expect("up").is_none();
                assert!(is_busy, "the enclosing hold continues");
            })
            .await
            .expect("free");
        assert!(pair.two.lock("k").try_acquire().await.expect("up").is_some());
    }

    async fn a_guard_that_outlives_its_body_keeps_the_lock(pair: Pair) {
        let client = pair.one.clone();
        let lock = pair.one.lock("k");
        let shared = lock.run(async move { client.lock("k").acquire().await }).await;
        let shared = shared.expect("free").expect("shared");
        assert!(shared.is_held());
        assert!(pair.two.lock("k").try_acquire().await.expect("up").is_none());
        shared.release().await.expect("held");
        assert!(pair.two.lock("k").try_acquire().await.expect("up").is_some());
    }

    async fn branches_on_the_key_of_their_body_take_turns_if_they_are_exclusive_within_it(pair: Pair) {
        let inside = AtomicUsize::new(0);
        let branch = async |is_exclusive| {
            let lock = pair.one.lock("k").wait(LEASE * 10);
            let lock = if is_exclusive { lock.exclusive_within() } else { lock };
            let body = async {
                let beside = inside.fetch_add(1, Ordering::SeqCst);
                // A nested call waits for nobody.
                let nested = pair.one.lock("k").exclusive_within().wait(LEASE / 10);
                nested.run(tokio::time::sleep(LEASE / 50)).await.expect("shared");
                inside.fetch_sub(1, Ordering::SeqCst);
                beside
            };
            lock.run(body).await.expect("shared")
        };
        let branches = async |is_exclusive| {
            let both = async { tokio::join!(branch(is_exclusive), branch(is_exclusive)) };
            pair.one.lock("k").run(both).await.expect("free")
        };
        assert_eq!(branches(true).await, (0, 0));
        // The control.
        assert_eq!(branches(false).await, (0, 1));
        // Without an enclosing body, calls exclude each other in any case.
        assert_eq!(tokio::join!(branch(true), branch(true)), (0, 0));
        let impatient = async {
            let lock = pair.one.lock("k").exclusive_within();
            let guard = lock.acquire().await.expect("shared");
            let busy = lock.clone().wait(LEASE / 50).acquire().await.map(drop);
            assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
            assert!(lock.try_acquire().await.expect("up").is_none());
            drop(guard);
            assert!(lock.try_acquire().await.expect("up").is_some());
        };
        pair.one.lock("k").run(impatient).await.expect("free");
    }

    async fn two_branches_of_a_body_exclude_each_other(pair: Pair) {
        let inside = Arc::new(AtomicUsize::new(0));
        let branch = |client: LockClient| {
            let inside = Arc::clone(&inside);
            async move {
                client
                    .lock("other")
                    .run(async {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        tokio::time::sleep(LEASE / 50).await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                    })
                    .await
                    .expect("granted");
            }
        };
        pair.one
            .lock("k")
            .run(async { tokio::join!(branch(pair.one.clone()), branch(pair.one.clone())) })
            .await
            .expect("free");
    }

    async fn a_spawned_task_does_not_share_the_hold(pair: Pair) {
        let client = pair.one.clone();
        pair.one
            .lock("k")
            .run(async move {
                let spawned = tokio::spawn(async move { client.lock("k").try_acquire().await });
                assert!(spawned.await.expect("no panic").expect("up").is_none());
            })
            .await
            .expect("free");
    }

    async fn another_client_does_not_share_the_hold(pair: Pair) {
        let other = pair.two.clone();
        pair.one
            .lock("k")
            .run(async move { other.lock("k").try_acquire().await.expect("up").is_none() })
            .await
            .map(|none| assert!(none))
            .expect("free");
    }

    async fn nested_holds_of_different_keys_are_both_shared(pair: Pair) {
        let client = pair.one.clone();
        pair.one
            .lock("a")
            .run(async move {
                let inner = client.clone();
                client
                    .lock("b")
                    .run(async move {
                        for key in ["a", "b"] {
                            let shared = inner.lock(key).try_acquire().await.expect("up");
                            assert!(shared.is_some(), "{key}");
                        }
                    })
                    .await
            })
            .await
            .expect("free")
            .expect("free");
    }

    async fn a_longer_fixed_lease_of_a_nested_call_extends_the_hold(pair: Pair) {
        let client = pair.one.clone();
        let outcome = pair
            .one
            .lock("k")
            .lease(LEASE / 2)
            .run(async move {
                client.lock("k").lease(LEASE * 2).run(tokio::time::sleep(LEASE)).await
            })
            .await;
        outcome.expect("extended").expect("extended");
    }

    /// The control of the test above.
    async fn a_shorter_fixed_lease_of_a_nested_call_does_not_extend_the_hold(pair: Pair) {
        let client = pair.one.clone();
        let outcome = pair
            .one
            .lock("k")
            .lease(LEASE / 2)
            .run(async move {
                client.lock("k").lease(LEASE / 4).run(tokio::time::sleep(LEASE)).await
            })
            .await;
        match outcome {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::LeaseOver),
            other => panic!("{other:?}"),
        }
    }

    async fn branches_that_extend_the_hold_never_shorten_it(pair: Pair) {
        let mut extended = 0;
        for _ in 0..50 {
            let lock = pair.one.lock("k");
            let branch = |lease| pair.one.lock("k").lease(lease).acquire();
            let longest = LEASE * 60;
            lock.clone()
                .lease(LEASE)
                .run(async {
                    let (long, short) = tokio::join!(branch(longest), branch(LEASE * 5));
                    let (long, short) = match (long, short) {
                        (Ok(long), Ok(short)) => (long, short),
                        // On a busy machine, an extension may have no answer in time.
                        (Err(LockError::Unavailable { .. }), _) | (_, Err(LockError::Unavailable { .. })) => return,
                        other => panic!("{other:?}"),
                    };
                    extended += 1;
                    assert!(long.remaining() > longest / 2, "{long:?}");
                    assert!(short.remaining() > longest / 2, "both guards share one lease");
                    // The expiry in the store must match the lease of the holder.
                    match pair.two.lock("k").wait(LEASE / 1000).acquire().await {
                        Err(LockError::Busy { holder: Holder { kind: HolderKind::Elsewhere, lease_left: Some(left), .. }, .. }) => {
                            assert!(left > longest / 2, "{left:?}");
                        }
                        Err(LockError::Busy { .. } | LockError::Unavailable { .. }) => {}
                        other => panic!("{other:?}"),
                    }
                })
                .await
                .expect("free");
        }
        assert!(extended > 0, "no branch has extended the hold");
    }

    async fn a_body_may_move_to_another_task(pair: Pair) {
        let client = pair.one.clone();
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let mut body = Box::pin(pair.one.lock("k").run(async move {
            gone.await.expect("the sender is alive");
            client.lock("k").wait(LEASE / 10).run(async { "done" }).await
        }));
        // The body begins in this task, and ends in another one.
        let begun = tokio::time::timeout(LEASE / 20, &mut body).await;
        assert!(begun.is_err());
        let body = tokio::spawn(body);
        go.send(()).expect("the receiver waits");
        let outcome = body.await.expect("no panic").expect("held");
        assert_eq!(outcome, Ok("done"));
    }

    async fn a_task_polled_inside_a_body_does_not_share_the_hold(pair: Pair) {
        let local = tokio::task::LocalSet::new();
        let client = pair.one.clone();
        let spawned = local.spawn_local(async move { client.lock("k").try_acquire().await });
        let lock = pair.one.lock("k");
        let outcome = lock.run(local.run_until(spawned)).await.expect("free").expect("no panic");
        assert!(outcome.expect("up").is_none());
    }

    /// Only bodies share their hold. A guard in the same task does not.
    async fn a_guard_does_not_share_its_hold_with_its_task(pair: Pair) {
        let _guard = pair.one.lock("k").acquire().await.expect("free");
        let again = timeout(LEASE, pair.one.lock("k").wait(LEASE / 10).acquire()).await;
        assert!(matches!(again, Ok(Err(LockError::Busy { .. }))));
    }
}

/// At the level `DEBUG`.
#[tokio::test]
async fn branches_that_share_a_hold_beside_each_other_are_reported_once() {
    let (log, client) = (CapturedLog::here(), LockClient::memory());
    let share = async |key: &str| {
        let nested = async {
            tokio::task::yield_now().await;
            client.lock(key).run(tokio::task::yield_now()).await
        };
        client.lock(key).run(nested).await.expect("shared").expect("shared");
    };
    let reported = |key| log.lines(&["DEBUG", "branches of one body", key]).len();
    let alone = async {
        share("branches:alone").await;
        share("branches:alone").await;
    };
    client.lock("branches:alone").run(alone).await.expect("free");
    assert_eq!(reported("branches:alone"), 0);
    let beside = async { tokio::join!(share("branches:beside"), share("branches:beside")) };
    client.lock("branches:beside").run(beside).await.expect("free");
    assert_eq!(reported("branches:beside"), 1);
}
