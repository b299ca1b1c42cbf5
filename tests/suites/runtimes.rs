//! One client, many runtimes.

use lock_runtime::LockClient;
use lock_tests::RedisServer;
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
            client.lock("k").run(async {}).await.expect("a connection of its own");
        });
    }
}

#[test]
fn runtimes_that_are_not_driven_disturb_nobody() {
    let server = RedisServer::start();
    let (first, second) = (runtime(), runtime());
    let client = first.block_on(client(&server.url()));
    // From here on nobody drives the first one, and with it its connection.
    second.block_on(async {
        client.lock("k").run(async {}).await.expect("a connection of its own");
    });
    drop(first);
}

#[test]
fn a_guard_can_be_dropped_outside_of_any_runtime() {
    let server = RedisServer::start();
    let (client, guard) = runtime().block_on(async {
        let client = client(&server.url()).await;
        let guard = client.lock("k").acquire().await.expect("free");
        (client, guard)
    });
    std::thread::spawn(move || drop(guard)).join().expect("no panic");
    runtime().block_on(async {
        let start = tokio::time::Instant::now();
        client.lock("k").run(async {}).await.expect("freed");
        assert!(start.elapsed() < LEASE / 2);
    });
}

#[test]
fn a_runtime_that_is_shut_down_frees_its_locks() {
    let server = RedisServer::start();
    let first = runtime();
    let client = first.block_on(client(&server.url()));
    let lock = client.lock("k");
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
        assert!(start.elapsed() < LEASE / 2);
    });
}

#[test]
fn outside_of_a_runtime_there_is_an_error_and_no_panic() {
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
}
