//! One client on several runtimes.

use lock_runtime::{LockClient, LockError};
use lock_tests::{RedisServer, running_time, within};
use tokio::runtime::Runtime;

use crate::support::{LEASE, client};

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn a_client_outlives_the_runtime_that_connected_it() {
    let server = RedisServer::start();
    let client = runtime().block_on(client(&server.url()));
    for _ in 0..3 {
        runtime().block_on(async {
            client.lock("k").run(async {}).await.expect("a new connection");
        });
    }
}

#[test]
fn a_runtime_without_io_is_a_configuration_error() {
    let server = RedisServer::start();
    let limited = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let limited = limited.expect("a runtime");
    let assert_named = |error: &LockError| match error {
        LockError::Config { option, problem, .. } => {
            assert_eq!(*option, "runtime");
            assert!(problem.contains("enable_io"), "{problem}");
        }
        other => panic!("{other:?}"),
    };
    assert_named(&limited.block_on(LockClient::connect(server.url())).expect_err("no I/O"));
    let client = runtime().block_on(client(&server.url()));
    assert_named(&limited.block_on(client.lock("k").acquire()).expect_err("no I/O"));
    assert!(!server.exists("k"));
    runtime().block_on(async { client.lock("k").run(async {}).await.expect("free") });

    let client = LockClient::memory();
    limited.block_on(async {
        client.lock("k").run(async {}).await.expect("the memory store needs no I/O");
    });
}

/// All waiting calls need timers. Without timers they fail before they send anything.
#[test]
fn a_runtime_without_timers_is_a_configuration_error_and_leaves_nothing() {
    let server = RedisServer::start();
    let limited = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let limited = limited.expect("a runtime");
    let assert_named = |error: &LockError| match error {
        LockError::Config { option, problem, .. } => {
            assert_eq!(*option, "runtime");
            assert!(problem.contains("enable_time"), "{problem}");
        }
        other => panic!("{other:?}"),
    };
    for url in [server.url(), "memory:".into()] {
        assert_named(&limited.block_on(LockClient::connect(&url)).expect_err("no timers"));
        let full = runtime();
        let client = full.block_on(client(&url));
        limited.block_on(async {
            assert_named(&client.lock("k").acquire().await.expect_err("no timers"));
            assert_named(&client.lock("k").try_acquire().await.expect_err("no timers"));
            assert_named(&client.lock("k").run(async {}).await.expect_err("no timers"));
        });
        let lock = client.lock("k").lease(LEASE * 20);
        let guard = full.block_on(lock.acquire()).expect("free");
        limited.block_on(async {
            assert_named(&guard.fencing_token().await.expect_err("no timers"));
            match guard.release().await {
                // The memory store releases without a timer.
                Ok(()) => assert_eq!(url, "memory:"),
                Err(LockError::Unavailable { cause, .. }) => {
                    assert!(cause.contains("enable_time"), "{cause}");
                }
                other => panic!("{other:?}"),
            }
            assert_named(&client.shutdown().await.expect_err("no timers"));
        });
        full.block_on(async {
            let again = within(LEASE * 5, client.lock("k").acquire()).await;
            again.expect("the key is free").expect("up").release().await.expect("held");
        });
    }
}

#[test]
fn a_runtime_that_is_not_driven_does_not_affect_other_runtimes() {
    let server = RedisServer::start();
    let (first, second) = (runtime(), runtime());
    let client = first.block_on(client(&server.url()));
    // From here on, the first runtime and its connection are not driven.
    second.block_on(async {
        client.lock("k").run(async {}).await.expect("a new connection");
    });
    drop(first);
}

#[test]
fn a_guard_can_be_dropped_outside_of_any_runtime() {
    let server = RedisServer::start();
    let (client, guard) = runtime().block_on(async {
        let client = client(&server.url()).await;
        let guard = client.lock("k").lease(LEASE * 20).acquire().await.expect("free");
        (client, guard)
    });
    std::thread::spawn(move || drop(guard)).join().expect("no panic");
    runtime().block_on(async {
        let start = tokio::time::Instant::now();
        client.lock("k").run(async {}).await.expect("freed");
        assert!(running_time(start) < LEASE * 5);
    });
}

#[test]
fn a_runtime_that_is_shut_down_frees_its_locks() {
    let server = RedisServer::start();
    let first = runtime();
    let client = first.block_on(client(&server.url()));
    let lock = client.lock("k").lease(LEASE * 20);
    first.block_on(async {
        tokio::spawn(async move { lock.run(std::future::pending::<()>()).await });
        while !server.exists("k") {
            tokio::time::sleep(LEASE / 100).await;
        }
    });
    drop(first);
    runtime().block_on(async {
        let start = tokio::time::Instant::now();
        client.lock("k").run(async {}).await.expect("freed");
        assert!(running_time(start) < LEASE * 5);
    });
}

/// A connection attempt on a runtime that has been shut down does not affect other runtimes.
#[test]
fn a_call_on_a_runtime_that_was_shut_down_does_not_hang() {
    use lock_runtime::LockError;

    let server = RedisServer::start();
    let client = runtime().block_on(client(&server.url()));
    let gone = runtime();
    let handle = gone.handle().clone();
    drop(gone);
    let lock = client.lock("k").wait(std::time::Duration::ZERO);
    let outcome =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handle.block_on(lock.acquire())));
    // tokio's timers may panic on a runtime that has been shut down. The call must not hang.
    if let Ok(outcome) = outcome {
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
    }
    runtime().block_on(async {
        client
            .lock("k")
            .run(tokio::time::sleep(LEASE * 2))
            .await
            .expect("the background thread renews");
    });
}

#[test]
fn runtimes_that_end_at_any_time_do_not_affect_other_runtimes() {
    let server = RedisServer::start();
    let main = runtime();
    let client = main.block_on(client(&server.url()));
    let guard = main.block_on(client.lock("held").acquire()).expect("free");
    for n in 0..20 {
        let mut busy = tokio::runtime::Builder::new_multi_thread();
        let busy = busy.worker_threads(2).enable_all().build().expect("a runtime");
        for _ in 0..50 {
            let lock = client.lock("hot");
            busy.spawn(async move { while lock.run(tokio::task::yield_now()).await.is_ok() {} });
        }
        std::thread::sleep(LEASE / 100 * n);
        busy.shutdown_background();
    }
    main.block_on(async {
        let again = within(LEASE * 2, client.lock("hot").run(async {})).await;
        again.expect("freed").expect("free");
        tokio::time::sleep(LEASE).await;
    });
    assert!(guard.is_held(), "the background thread renews");
}

#[test]
fn a_call_outside_of_a_runtime_is_an_error_and_not_a_panic() {
    use lock_runtime::LockError;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    let client = LockClient::memory();
    let lock = client.lock("k");
    let mut acquire = pin!(lock.acquire());
    let mut cx = Context::from_waker(Waker::noop());
    match acquire.as_mut().poll(&mut cx) {
        Poll::Ready(Err(LockError::Config { option: "runtime", .. })) => {}
        other => panic!("{other:?}"),
    }
    let mut connect = pin!(LockClient::connect("redis://127.0.0.1:1"));
    match connect.as_mut().poll(&mut cx) {
        Poll::Ready(Err(LockError::Config { option: "runtime", .. })) => {}
        other => panic!("{other:?}"),
    }
    let mut shutdown = pin!(client.shutdown());
    match shutdown.as_mut().poll(&mut cx) {
        Poll::Ready(Err(LockError::Config { option: "runtime", .. })) => {}
        other => panic!("{other:?}"),
    }
}
