//! A future can be dropped anywhere without leaking its lock.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use lock_runtime::{LockClient, LockError, distributed_lock, with_client};
use lock_tests::{RedisServer, running_time, within};
use tokio::time::{Instant, timeout};

use crate::support::{LEASE, client, on_every_store, until};

/// Polls a future up to `times` times, with a short pause after each poll, and then drops it.
/// Returns whether it completed.
async fn polled<F: Future>(future: F, times: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..times {
        let poll = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
        if poll {
            return true;
        }
        tokio::task::yield_now().await;
        tokio::time::sleep(LEASE / 1000).await;
    }
    false
}

/// Drops a future of `make` after each number of polls, until a future completes. Asserts that the
/// lock is free soon after each drop.
async fn drop_everywhere<F: Future>(
    one: &LockClient,
    two: &LockClient,
    make: impl Fn(LockClient) -> F,
) {
    for times in 0.. {
        let done = polled(make(one.clone()), times).await;
        let start = Instant::now();
        for client in [two, one] {
            client.lock("k").run(async {}).await.expect("freed");
        }
        assert!(running_time(start) < LEASE * 5, "after {times} polls: {:?}", start.elapsed());
        if done {
            assert!(times > 0);
            return;
        }
    }
}

#[distributed_lock(key = "k", lease = "20s")]
async fn annotated() -> Result<(), LockError> {
    tokio::task::yield_now().await;
    Ok(())
}

on_every_store! {
    async fn acquire_can_be_dropped_at_any_poll(pair: Pair) {
        drop_everywhere(&pair.one, &pair.two, |client| async move {
            client.lock("k").lease(LEASE * 20).acquire().await.expect("free")
        })
        .await;
    }

    async fn try_acquire_can_be_dropped_at_any_poll(pair: Pair) {
        drop_everywhere(&pair.one, &pair.two, |client| async move {
            client.lock("k").lease(LEASE * 20).try_acquire().await.expect("store is up")
        })
        .await;
    }

    async fn release_can_be_dropped_at_any_poll(pair: Pair) {
        drop_everywhere(&pair.one, &pair.two, |client| async move {
            let lock = client.lock("k").lease(LEASE * 20);
            lock.acquire().await.expect("free").release().await.expect("held");
        })
        .await;
    }

    async fn run_can_be_dropped_at_any_poll(pair: Pair) {
        drop_everywhere(&pair.one, &pair.two, |client| async move {
            let lock = client.lock("k").lease(LEASE * 20);
            lock.run(tokio::task::yield_now()).await.expect("free");
        })
        .await;
    }

    async fn an_annotated_function_can_be_dropped_at_any_poll(pair: Pair) {
        drop_everywhere(&pair.one, &pair.two, |client| async move {
            with_client(client, annotated()).await.expect("free");
        })
        .await;
    }

    async fn a_waiter_can_be_dropped_at_any_poll(pair: Pair) {
        let guard = pair.two.lock("k").lease(LEASE * 60).acquire().await.expect("free");
        for times in 0..20 {
            polled(pair.one.lock("k").acquire(), times).await;
        }
        guard.release().await.expect("held");
        for client in [&pair.one, &pair.two] {
            let again = within(LEASE * 5, client.lock("k").acquire()).await;
            again.expect("at once").expect("free").release().await.expect("held");
        }
    }
}

#[tokio::test]
async fn a_request_without_an_answer_is_undone() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.freeze();
    let lock = client.lock("k").lease(LEASE * 20).wait(LEASE);
    let outcome = lock.acquire().await;
    assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
    // The server executes what it has received: the request and its undo.
    server.thaw();
    assert!(
        until(LEASE * 10, || server.calls("set") > 0).await.is_some(),
        "the request must run, so that there is something to undo"
    );
    assert!(
        until(LEASE * 10, || !server.exists("k")).await.is_some(),
        "the key still exists for {} ms",
        server.pttl("k")
    );
}

#[tokio::test]
async fn a_dropped_request_in_flight_is_undone() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for n in 0..50 {
        server.freeze();
        let key = format!("k{n}");
        let lock = client.lock(&key).lease(LEASE * 20);
        let cut = timeout(LEASE / 20, lock.acquire()).await;
        assert!(cut.is_err());
        server.thaw();
        let gone = until(LEASE * 10, || server.calls("set") > n && !server.exists(&key)).await;
        assert!(gone.is_some(), "{key} still exists for {} ms", server.pttl(&key));
    }
}

/// The control of the two tests above: the same request of a plain client is not undone.
#[tokio::test]
async fn a_dropped_request_of_a_plain_client_leaks() {
    let server = RedisServer::start();
    let plain = redis::Client::open(server.plain_url()).expect("a valid URL");
    let mut plain = plain.get_multiplexed_async_connection().await.expect("up");
    server.freeze();
    let mut set = redis::cmd("SET");
    set.arg("k").arg("v").arg("NX").arg("PX").arg(60_000);
    let cut = timeout(LEASE / 20, set.query_async::<()>(&mut plain)).await;
    assert!(cut.is_err());
    server.thaw();
    assert!(until(LEASE * 10, || server.exists("k")).await.is_some());
    tokio::time::sleep(LEASE / 2).await;
    assert!(server.exists("k"));
}
