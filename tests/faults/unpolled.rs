//! Calls that are not polled any more, and calls on runtimes that are blocked.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use lock_runtime::{Identity, LockClient, LockError};
use lock_tests::{RedisServer, within};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{AcquireFuture, LEASE, client, client_with_lease, until, until_idle};

type ReleaseFuture = Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>;

/// A call that waits for `k`, and that has been polled once.
fn unpolled_waiter(client: &LockClient) -> AcquireFuture {
    let mut waiting: AcquireFuture = Box::pin(client.lock("k").acquire());
    let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "the key is busy");
    waiting
}

/// Whether `try_acquire` of this client gets `k` within a lease.
async fn is_free(client: &LockClient) -> bool {
    let free = async {
        while client.lock("k").try_acquire().await.expect("up").is_none() {
            sleep(LEASE / 100).await;
        }
    };
    timeout(LEASE, free).await.is_ok()
}

/// A call that has sent a request for `key`, and that is not polled again.
async fn unpolled_call(client: &LockClient, key: &str) -> AcquireFuture {
    loop {
        let mut call: AcquireFuture = Box::pin(client.lock(key).acquire());
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => return call,
            Poll::Ready(guard) => guard.expect("free").release().await.expect("held"),
        }
    }
}

/// A release of `key` that has sent its request, and that is not polled again.
async fn unpolled_release(client: &LockClient, key: &str) -> ReleaseFuture {
    loop {
        let guard = client.lock(key).acquire().await.expect("free");
        let mut release: ReleaseFuture = Box::pin(guard.release());
        // The release may complete at once, if this thread is delayed.
        if release.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            return release;
        }
    }
}

async fn check_unpolled_waiters(client: &LockClient) {
    let first = client.lock("k").acquire().await.expect("free");
    let start = Instant::now();
    // The end of the last hold, and the times between two holds, in microseconds.
    let last = Arc::new(AtomicU64::new(0));
    let idle = Arc::new(Mutex::new(Vec::new()));
    let (mut waiters, mut unpolled) = (JoinSet::new(), Vec::new());
    for n in 0..1000 {
        if n % 10 == 0 {
            unpolled.push(unpolled_waiter(client));
            continue;
        }
        let (lock, last, idle) = (client.lock("k"), Arc::clone(&last), Arc::clone(&idle));
        let now = move || u64::try_from(start.elapsed().as_micros()).expect("a short time");
        let before = client.stats().queued;
        waiters.spawn(async move {
            let guard = lock.acquire().await.expect("granted");
            idle.lock().expect("no panic").push(now() - last.load(Ordering::SeqCst));
            tokio::task::yield_now().await;
            last.store(now(), Ordering::SeqCst);
            guard.release().await.expect("held");
        });
        let queued = || client.stats().queued > before;
        assert!(until(LEASE * 10, queued).await.is_some(), "the waiter is queued");
    }
    last.store(u64::try_from(start.elapsed().as_micros()).expect("short"), Ordering::SeqCst);
    first.release().await.expect("held");
    let served = timeout(LEASE * 20, async {
        while let Some(waiter) = waiters.join_next().await {
            waiter.expect("no panic");
        }
    });
    assert!(served.await.is_ok(), "every polled waiter gets the lock");
    let mut idle = std::mem::take(&mut *idle.lock().expect("no panic"));
    idle.sort_unstable();
    // The lock is idle after each of the hundred unpolled waiters. The longest times may be those of
    // a busy machine.
    let often = Duration::from_micros(idle[idle.len() - 10]);
    assert!(often < LEASE / 2, "the lock was idle for {often:?}");
    // The lock is not kept for unpolled waiters.
    assert!(is_free(client).await, "the key is free");
    // The unpolled waiters keep their places in the queue.
    for waiting in unpolled {
        let guard = within(LEASE, waiting).await.expect("granted").expect("free");
        guard.release().await.expect("held");
    }
    until_idle(client, LEASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unpolled_waiters_do_not_block_other_waiters() {
    let server = RedisServer::start();
    for url in [&*server.url(), "memory:"] {
        // The lease does not end during the test, even on a busy machine.
        check_unpolled_waiters(&client_with_lease(url, LEASE * 60).await).await;
    }
}

/// Their replies have arrived, but the requests count as in flight until they are polled.
#[tokio::test(flavor = "multi_thread")]
async fn unpolled_requests_do_not_prevent_others_from_being_sent() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE).await;
    client.lock("warm").run(async {}).await.expect("free");
    let mut unpolled: Vec<AcquireFuture> = Vec::new();
    // More than the limit of requests in flight, so the last ones are not sent.
    for n in 0.. {
        let call = client.lock(format!("u:{n}")).acquire();
        // Tokio would let other tasks run after a hundred of them.
        let mut call: AcquireFuture = Box::pin(tokio::task::unconstrained(call));
        // Calls complete at once while this thread is delayed: a sixth of them on one processor.
        if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            unpolled.push(call);
        }
        if unpolled.len() == 1200 {
            break;
        }
    }
    for n in 0..10 {
        let lock = client.lock(format!("k:{n}"));
        let guard =
            within(LEASE * 2, lock.acquire()).await.expect("the request is sent").expect("free");
        guard.release().await.expect("held");
    }
    // Some calls find that their reply came too late, and retry.
    let granted = unpolled.into_iter().map(async |call| drop(call.await.expect("free")));
    join_all(granted).await;
    until_idle(&client, LEASE * 5).await;
    assert_eq!(server.key_count(), 0);
}

/// The only waiter in the queue is not polled, and another process wants the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_offered_to_an_unpolled_waiter_is_released() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).lease(LEASE * 60);
    let (one, two) = (builder.connect().await.expect("up"), client(&server.url()).await);
    let first = one.lock("k").acquire().await.expect("free");
    let waiting = unpolled_waiter(&one);
    first.release().await.expect("held");
    let guard = within(LEASE, two.lock("k").acquire()).await.expect("the key is free").expect("up");
    guard.release().await.expect("held");
    assert!(is_free(&one).await, "other calls of the process get the lock");
    let late = within(LEASE * 5, waiting).await.expect("granted").expect("free");
    late.release().await.expect("held");
    until_idle(&one, LEASE).await;
}

/// The request for the free key is granted, and the caller does not take the reply.
#[tokio::test(flavor = "multi_thread")]
async fn an_unpolled_call_with_a_request_in_flight_does_not_block_other_calls() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    client.lock("warm").run(async {}).await.expect("free");
    for _ in 0..10 {
        let first = unpolled_call(&client, "k").await;
        let second = within(LEASE, client.lock("k").acquire()).await;
        let second = second.expect("the notifier thread polls it instead").expect("free");
        // The first call keeps its place, and gets the lock when it is polled again.
        let third = unpolled_waiter(&client);
        second.release().await.expect("held");
        let first = within(LEASE, first).await.expect("granted").expect("free");
        first.release().await.expect("held");
        drop(third);
    }
    until_idle(&client, LEASE).await;
    assert_eq!(server.key_count(), 0);
}

/// Nothing else arrives over the connection, so it counts as silent when the answer is read.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_read_late_counts() {
    let server = RedisServer::start();
    // Without a presence, whose `SET` would be counted below.
    let builder = LockClient::builder().url(server.url()).identity(Identity::none());
    let client = builder.lease(LEASE).wait(LEASE * 20).connect().await.expect("up");
    client.lock("warm").run(async {}).await.expect("free");
    let call = unpolled_call(&client, "k").await;
    let is_taken = || server.command::<u32>(&["EXISTS", "k"]) == 1;
    assert!(until(LEASE * 10, is_taken).await.is_some(), "the request was sent");
    let sent = server.calls("set");
    // More than half a response timeout.
    sleep(LEASE / 4).await;
    call.await.expect("granted").release().await.expect("held");
    assert_eq!(server.calls("set"), sent, "no further request was necessary");
}

/// The key is free for `try_acquire` and for other processes, once another call has asked for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_granted_to_an_unpolled_call_is_released() {
    let server = RedisServer::start();
    let one = client_with_lease(&server.url(), LEASE * 60).await;
    let two = client(&server.url()).await;
    one.lock("warm").run(async {}).await.expect("free");
    let first = unpolled_call(&one, "k").await;
    let is_taken = || server.command::<u32>(&["EXISTS", "k"]) == 1;
    assert!(until(LEASE * 10, is_taken).await.is_some(), "the request was sent");
    let tried = one.lock("k").try_acquire().await;
    assert!(!matches!(tried, Ok(Some(_))), "the key is busy, or its state is unknown: {tried:?}");
    let guard = within(LEASE, two.lock("k").acquire()).await;
    let guard = guard.expect("the notifier thread polls it instead").expect("up");
    assert!(one.lock("k").try_acquire().await.expect("up").is_none(), "the key is busy");
    guard.release().await.expect("held");
    assert!(is_free(&one).await, "other calls of the process get the lock");
    let first = within(LEASE, first).await.expect("granted").expect("free");
    first.release().await.expect("held");
    until_idle(&one, LEASE).await;
    assert_eq!(server.key_count(), 0);
}

/// Every caller is late for each of its grants, and still gets the lock.
#[tokio::test(flavor = "multi_thread")]
async fn callers_on_a_repeatedly_blocked_runtime_get_the_lock() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).lease(LEASE * 60).wait(LEASE * 20);
    let client = builder.connect().await.expect("up");
    let callers = {
        let client = client.clone();
        tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let blocks = tokio::spawn(async {
                    loop {
                        std::thread::sleep(LEASE / 12);
                        tokio::task::yield_now().await;
                    }
                });
                let mut callers = JoinSet::new();
                for _ in 0..3 {
                    let lock = client.lock("k");
                    callers.spawn(async move { lock.acquire().await?.release().await });
                }
                let outcomes = callers.join_all().await;
                blocks.abort();
                outcomes
            })
        })
    };
    let outcomes = callers.await.expect("no panic");
    assert!(outcomes.iter().all(Result::is_ok), "every caller gets the lock: {outcomes:?}");
    until_idle(&client, LEASE).await;
}

/// The call waits for a lock that another process holds, and is no longer polled.
#[tokio::test(flavor = "multi_thread")]
async fn an_unpolled_call_that_waits_for_another_process_does_not_block_other_calls() {
    let server = RedisServer::start();
    let one = client_with_lease(&server.url(), LEASE * 60).await;
    let two = client(&server.url()).await;
    for _ in 0..3 {
        let held = two.lock("k").acquire().await.expect("free");
        let mut first: AcquireFuture = Box::pin(one.lock("k").acquire());
        // Polled until it has found the key busy, and sleeps.
        let asleep = timeout(LEASE / 3, &mut first).await;
        assert!(asleep.is_err(), "the other process holds the lock");
        let lock = one.lock("k");
        let second = tokio::spawn(async move { lock.acquire().await });
        sleep(LEASE / 3).await;
        held.release().await.expect("held");
        let second = within(LEASE, second).await.expect("the notifier thread polls it instead");
        second.expect("no panic").expect("free").release().await.expect("held");
        let first = within(LEASE, first).await.expect("granted").expect("free");
        first.release().await.expect("held");
    }
    until_idle(&one, LEASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unpolled_release_does_not_block_other_calls() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    for _ in 0..10 {
        let release = unpolled_release(&client, "k").await;
        let next = within(LEASE, client.lock("k").acquire()).await;
        next.expect("the notifier thread polls it instead")
            .expect("free")
            .release()
            .await
            .expect("held");
        assert_eq!(release.await, Ok(()), "the result is kept for the caller");
    }
    until_idle(&client, LEASE).await;
}

/// Neither timers nor connections run on a blocked runtime, so the notifier thread cannot poll the
/// call. The request is granted, and nothing reads the reply.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_on_a_stalled_runtime_is_undone() {
    let server = RedisServer::start();
    // The response timeout is a third of the lease.
    let client = client_with_lease(&server.url(), LEASE * 3).await;
    client.lock("warm").run(async {}).await.expect("free");
    let still = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let still = still.expect("a runtime");
    let mut first: AcquireFuture = Box::pin(client.lock("k").acquire());
    let warm = client.lock("warm");
    let still = tokio::task::spawn_blocking(move || {
        still.block_on(warm.run(async {})).expect("free");
        still
    });
    let still = still.await.expect("no panic");
    server.freeze();
    let asked = tokio::task::spawn_blocking(move || {
        still.block_on(async {
            let asked = first.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            // Lets the connection send the request.
            tokio::task::yield_now().await;
            assert!(asked.is_pending(), "the server is suspended");
        });
        (first, still)
    });
    let (first, still) = asked.await.expect("no panic");
    server.thaw();
    let is_taken = || server.command::<u32>(&["EXISTS", "k"]) == 1;
    assert!(until(LEASE * 10, is_taken).await.is_some(), "the request was sent");
    let begun = Instant::now();
    let second = within(LEASE * 6, client.lock("k").acquire()).await;
    let second = second.expect("the call is given up").expect("free");
    assert!(begun.elapsed() > LEASE, "the call may only be slow: {:?}", begun.elapsed());
    second.release().await.expect("held");
    // The undo on the connection of the request times out first, although the runtime of that connection is still.
    let is_undone = || client.stats().releasing == 0;
    assert!(until(LEASE * 10, is_undone).await.is_some(), "{:?}", client.stats());
    let first = tokio::task::spawn_blocking(move || {
        let guard = still.block_on(first).expect("free");
        still.block_on(guard.release()).expect("held");
    });
    within(LEASE * 3, first).await.expect("granted").expect("no panic");
    until_idle(&client, LEASE * 10).await;
    assert_eq!(server.key_count(), 0);
}

/// The runtime is blocked during a request for so long that the call is given up, and then
/// continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_undone_gets_the_lock_when_its_runtime_continues() {
    let server = RedisServer::start();
    // The response timeout is a third of the lease.
    let client = client_with_lease(&server.url(), LEASE * 3).await;
    client.lock("warm").run(async {}).await.expect("free");
    let (lock, warm) = (client.lock("k"), client.lock("warm"));
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let (frozen, is_frozen) = tokio::sync::oneshot::channel();
    let blocked = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            warm.run(async {}).await.expect("free");
            let _ = ready.send(());
            is_frozen.await.expect("the server is suspended");
            let first = tokio::spawn(async move { lock.acquire().await?.release().await });
            // Lets the connection send the request.
            sleep(LEASE / 10).await;
            std::thread::sleep(LEASE * 4);
            first.await.expect("no panic")
        })
    });
    is_ready.await.expect("the runtime is ready");
    server.freeze();
    frozen.send(()).expect("the runtime waits for this");
    // After this time, the runtime is blocked.
    sleep(LEASE / 2).await;
    server.thaw();
    let second = within(LEASE * 3, client.lock("k").acquire()).await;
    second.expect("the call is given up").expect("free").release().await.expect("held");
    let first = within(LEASE * 10, blocked).await.expect("the call is woken").expect("no panic");
    assert_eq!(first, Ok(()));
    until_idle(&client, LEASE * 10).await;
    assert_eq!(server.key_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_does_not_wait_for_unpolled_calls() {
    let server = RedisServer::start();
    let (client, two) = (client(&server.url()).await, client(&server.url()).await);
    client.lock("warm").run(async {}).await.expect("free");
    let busy = two.lock("busy").acquire().await.expect("free");
    let asking = unpolled_call(&client, "free").await;
    let mut waiting: AcquireFuture = Box::pin(client.lock("busy").acquire());
    assert!(timeout(LEASE / 3, &mut waiting).await.is_err(), "the other process holds the lock");
    let release = unpolled_release(&client, "held").await;
    let end = timeout(LEASE * 2, client.shutdown()).await;
    assert_eq!(end.expect("the calls are completed"), Ok(()));
    assert_eq!(release.await, Ok(()));
    for call in [asking, waiting] {
        assert_eq!(call.await.map(drop), Err(LockError::ShutDown));
    }
    busy.release().await.expect("held");
    assert_eq!(server.key_count(), 0);
}
