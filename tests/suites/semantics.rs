//! The semantics of locks, on every store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::{Holder, HolderKind, LockClient, LockError, LostReason, Wait};
use lock_tests::support::{count_under_contention, outcomes_of};
use lock_tests::{running_time, running_time_between};
use tokio::sync::{Mutex, oneshot};
use tokio::time::Instant;

use crate::support::{LEASE, on_every_store};

on_every_store! {
    async fn a_lock_excludes_all_other_holders(pair: Pair) {
        let guard = pair.one.lock("k").acquire().await.expect("free");
        assert!(pair.one.lock("k").try_acquire().await.expect("store is up").is_none());
        assert!(pair.two.lock("k").try_acquire().await.expect("store is up").is_none());
        let other = pair.two.lock("other").try_acquire().await.expect("store is up");
        assert!(other.is_some(), "another key is a separate lock");
        guard.release().await.expect("held");
        assert!(pair.two.lock("k").try_acquire().await.expect("store is up").is_some());
    }

    async fn a_dropped_guard_frees_the_key(pair: Pair) {
        drop(pair.one.lock("k").lease(LEASE * 20).acquire().await.expect("free"));
        let start = Instant::now();
        let _guard = pair.two.lock("k").acquire().await.expect("freed");
        assert!(running_time(start) < LEASE * 5, "the key is free well before the end of its lease");
    }

    /// The control of the test above: without a release, the key is busy until the lease ends.
    async fn a_forgotten_guard_keeps_the_key_until_the_lease_ends(pair: Pair) {
        let guard = pair.one.lock("k").lease(LEASE).acquire().await.expect("free");
        std::mem::forget(guard);
        let start = Instant::now();
        let _guard = pair.two.lock("k").acquire().await.expect("free after the lease");
        assert!(start.elapsed() > LEASE / 2);
    }

    /// On one thread, attempts would otherwise go on for ever.
    async fn attempts_in_a_loop_let_the_holder_run(pair: Pair) {
        for client in [pair.one.clone(), pair.two.clone()] {
            let (holder, done) = (pair.one.clone(), std::sync::mpsc::channel());
            std::thread::spawn(move || {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                runtime.enable_all().build().expect("a runtime").block_on(async {
                    let guard = holder.lock("k").acquire().await.expect("free");
                    tokio::spawn(async move {
                        tokio::time::sleep(LEASE / 20).await;
                        guard.release().await.expect("held");
                    });
                    // On a busy machine, an attempt may have no answer in time.
                    while !matches!(client.lock("k").try_acquire().await, Ok(Some(_))) {}
                });
                done.0.send(()).expect("the test waits");
            });
            let ends = tokio::task::spawn_blocking(move || done.1.recv_timeout(LEASE * 60));
            ends.await.expect("no panic").expect("the holder runs");
        }
    }

    /// The store answers, so no attempt may say that it does not, unless the machine stands still for a while.
    async fn attempts_of_many_threads_find_the_lock_busy_or_free(pair: Pair) {
        let patient = match pair.url() {
            Some(url) => {
                let builder = LockClient::builder().url(url).lease(LEASE * 6);
                builder.connect().await.expect("up")
            }
            None => pair.one.clone(),
        };
        for _ in 0..5 {
            let client = patient.clone();
            let attempts = std::thread::spawn(move || attempts_of_many_threads(&client));
            let outcomes = tokio::task::spawn_blocking(|| attempts.join()).await.expect("no panic");
            match outcomes.expect("no panic").into_iter().sum::<Result<usize, _>>() {
                Ok(grants) => return assert!(grants > 0),
                Err(error) => assert!(matches!(error, LockError::Unavailable { .. }), "{error}"),
            }
        }
        panic!("the store answers, and attempts say that it does not");
    }

    async fn a_waiter_is_woken_by_the_release(pair: Pair) {
        let guard = pair.one.lock("k").acquire().await.expect("free");
        let waiter = {
            let lock = pair.two.lock("k");
            tokio::spawn(async move { lock.acquire().await.map(|guard| (Instant::now(), guard)) })
        };
        // Long enough for the waiter to sleep between two safety polls.
        tokio::time::sleep(LEASE / 4).await;
        let released = Instant::now();
        guard.release().await.expect("held");
        let (got, _guard) = waiter.await.expect("no panic").expect("woken");
        // The end of the lease and the next safety poll would be later.
        let took = running_time_between(released, got);
        assert!(took < LEASE / 2, "{took:?}");
    }

    async fn waiters_of_one_process_are_served_in_fifo_order(pair: Pair) {
        let guard = pair.one.lock("k").acquire().await.expect("free");
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = Vec::new();
        for n in 0..20 {
            let (lock, order) = (pair.two.lock("k"), Arc::clone(&order));
            let mut waiter = Box::pin(async move {
                lock.run(async { order.lock().await.push(n) }).await.expect("granted");
            });
            // The first poll puts the waiter into the queue.
            assert!(futures_poll(waiter.as_mut()).await.is_none());
            waiters.push(tokio::spawn(waiter));
        }
        guard.release().await.expect("held");
        for waiter in waiters {
            waiter.await.expect("no panic");
        }
        assert_eq!(*order.lock().await, (0..20).collect::<Vec<_>>());
    }

    async fn the_error_of_a_wait_that_runs_out_names_the_holder(pair: Pair) {
        let _guard = pair.one.lock("k").acquire().await.expect("free");
        // Shorter than the time between two requests of a store that is polled.
        let wait = LEASE / 4;
        let start = Instant::now();
        match pair.two.lock("k").wait(wait).acquire().await {
            Err(LockError::Busy { key, waited, holder: Holder { kind: HolderKind::Elsewhere, lease_left: Some(left), .. }, .. }) => {
                assert_eq!(key, "k");
                assert!(waited >= wait && left <= LEASE, "{waited:?} {left:?}");
            }
            other => panic!("{other:?}"),
        }
        assert!(running_time(start) < wait * 6, "the wait took too long");
        match pair.one.lock("k").wait(wait).acquire().await {
            Err(LockError::Busy { holder: Holder { kind: HolderKind::ThisTask, .. }, .. }) => {}
            other => panic!("{other:?}"),
        }
        let lock = pair.one.lock("k").wait(wait);
        match tokio::spawn(lock.acquire()).await.expect("no panic") {
            Err(LockError::Busy { holder: Holder { kind: HolderKind::ThisProcess, .. }, .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    async fn run_returns_the_output_of_the_body(pair: Pair) {
        let output = pair.one.lock("k").run(async { Err::<(), _>("its own error") }).await;
        assert_eq!(output.expect("locked"), Err("its own error"));
        assert!(pair.two.lock("k").try_acquire().await.expect("store is up").is_some());
    }

    async fn a_panic_in_a_body_frees_the_key(pair: Pair) {
        let lock = pair.one.lock("k").lease(LEASE * 20);
        let body = tokio::spawn(async move { lock.run(async { panic!("on purpose") }).await });
        assert!(body.await.expect_err("it panicked").is_panic());
        let start = Instant::now();
        let _guard = pair.two.lock("k").acquire().await.expect("freed");
        assert!(running_time(start) < LEASE * 5);
    }

    async fn a_guard_reports_the_loss_of_its_lock(pair: Pair) {
        let lease = LEASE / 4;
        let guard = pair.one.lock("k").lease(lease).acquire().await.expect("free");
        assert!(guard.is_held() && guard.remaining() <= lease);
        assert_eq!(guard.lost().await, LostReason::LeaseOver);
        assert!(!guard.is_held());
        assert_eq!(guard.remaining(), Duration::ZERO);
        assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    }

    async fn a_stale_guard_does_not_affect_its_successor(pair: Pair) {
        let stale = pair.one.lock("k").lease(LEASE / 4).acquire().await.expect("free");
        stale.lost().await;
        let successor = pair.two.lock("k").acquire().await.expect("free after the lease");
        assert!(stale.release().await.is_err());
        assert!(pair.one.lock("k").try_acquire().await.expect("store is up").is_none());
        assert!(successor.is_held());
        successor.release().await.expect("held");
    }

    async fn a_body_is_dropped_before_its_lock_is_released(pair: Pair) {
        /// Checks from another thread whether the key is busy while the body is being dropped.
        struct BodyDropCheck(LockClient, Arc<AtomicBool>);
        impl Drop for BodyDropCheck {
            fn drop(&mut self) {
                let tried = self.0.lock("k").try_acquire();
                let check = async { tried.await.expect("the store is up").is_none() };
                let taken = std::thread::scope(|scope| {
                    let thread = scope.spawn(|| {
                        let mut runtime = tokio::runtime::Builder::new_current_thread();
                        let runtime = runtime.enable_all().build().expect("a runtime");
                        runtime.block_on(check)
                    });
                    // Gives a premature release time to take effect.
                    std::thread::sleep(LEASE / 20);
                    thread.join().expect("no panic")
                });
                self.1.store(taken, Ordering::SeqCst);
            }
        }
        let taken = Arc::new(AtomicBool::new(false));
        for aborted in [true, false] {
            taken.store(false, Ordering::SeqCst);
            let (lock, other, seen) = (pair.one.lock("k"), pair.two.clone(), Arc::clone(&taken));
            let (started, start) = oneshot::channel();
            let body = tokio::spawn(async move {
                let body = async move {
                    let _check = BodyDropCheck(other, seen);
                    started.send(()).expect("the receiver waits");
                    if aborted {
                        std::future::pending::<()>().await;
                    }
                };
                lock.run(body).await
            });
            start.await.expect("the body runs");
            if aborted {
                body.abort();
            }
            let _ = body.await;
            drop(pair.two.lock("k").acquire().await.expect("freed"));
            assert!(taken.load(Ordering::SeqCst), "aborted: {aborted}");
        }
    }

    async fn a_shutdown_ends_waiting_calls_and_lets_bodies_finish(pair: Pair) {
        let (started, start) = oneshot::channel();
        let lock = pair.one.lock("k");
        let body = tokio::spawn(async move {
            lock.run(async {
                started.send(()).expect("the receiver waits");
                tokio::time::sleep(LEASE / 4).await;
                "done"
            })
            .await
        });
        start.await.expect("the body runs");
        let lock = pair.one.lock("k").wait(Wait::Forever);
        let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
        tokio::task::yield_now().await;

        pair.one.shutdown().await.expect("all locks are released");
        assert_eq!(body.await.expect("no panic"), Ok("done"));
        assert_eq!(waiter.await.expect("no panic"), Err(LockError::ShutDown));
        assert_eq!(pair.one.lock("k").acquire().await.map(drop), Err(LockError::ShutDown));
        assert!(pair.two.lock("k").try_acquire().await.expect("store is up").is_some());
    }

    async fn a_release_completes_after_the_last_client_is_dropped(pair: Pair) {
        let crate::support::Pair { one, two, .. } = &pair;
        let _ = one;
        drop(two.lock("k").lease(LEASE * 20).acquire().await.expect("free"));
        let crate::support::Pair { one, two, server: _server, store: _store } = pair;
        drop(two);
        let start = Instant::now();
        let _guard = one.lock("k").acquire().await.expect("freed");
        assert!(running_time(start) < LEASE * 5);
    }

    async fn every_hold_counts_once_under_contention(pair: Pair) {
        count_under_contention([&pair.one, &pair.two], 60).await;
    }
}

/// Polls a future once.
async fn futures_poll<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut future).poll(cx) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// Makes single attempts for half a lease, in eight tasks of two threads. Returns the number of grants of each task.
fn attempts_of_many_threads(client: &LockClient) -> Vec<Result<usize, LockError>> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().expect("a runtime").block_on(async {
        let until = Instant::now() + LEASE / 2;
        let tasks = (0..8).map(|_| {
            let lock = client.lock("k");
            tokio::spawn(async move {
                let mut grants = 0;
                while Instant::now() < until {
                    grants += usize::from(lock.try_acquire().await?.is_some());
                }
                Ok(grants)
            })
        });
        outcomes_of(tasks.collect()).await
    })
}
