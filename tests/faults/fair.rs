//! Faults of calls that wait for a fair lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_runtime::{Lock, LockClient};
use lock_tests::{Helper, RedisServer, running_time, within};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    AcquireFuture, LEASE, client, client_with_lease, kill_waiting, milliseconds, until,
};

/// The lease of a transfer: how long a call delays the others that hears of its lock and does nothing.
const TRANSFER: Duration = Duration::from_secs(3);

fn fair(client: &LockClient) -> Lock {
    client.lock("k").fair().wait(LEASE * 60)
}

/// A process with so many calls that wait.
async fn waiting_process(server: &RedisServer, calls: usize) -> Helper {
    let (lease, count) = (milliseconds(LEASE * 60), calls.to_string());
    let args = ["wait", &server.url(), "k", &lease, &count];
    let process = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args);
    assert_queued(server, calls).await;
    process
}

/// Waits until so many claims stand in the queue.
async fn assert_queued(server: &RedisServer, count: usize) {
    let are_queued = until(LEASE * 20, || server.queued("k") == count).await;
    assert!(are_queued.is_some(), "{} claims, not {count}", server.queued("k"));
}

#[tokio::test]
async fn the_calls_of_a_killed_process_are_passed_over() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    let guard = fair(&client).acquire().await.expect("free");
    let mut process = waiting_process(&server, 5).await;
    let call = tokio::spawn(fair(&client).acquire());
    assert_queued(&server, 6).await;
    kill_waiting(&mut process, &server).await;
    guard.release().await.expect("held");
    // Each of the five would cost the lease of a transfer.
    let next = within(TRANSFER * 3, call).await.expect("passed over").expect("no panic");
    next.expect("its turn").release().await.expect("held");
}

/// They hear the messages that the lock is theirs. The notifier thread gives it back for them.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_not_polled_delay_the_others_only_briefly() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    let guard = fair(&client).acquire().await.expect("free");
    let mut unpolled: Vec<AcquireFuture> = Vec::new();
    for count in 1..=3 {
        let mut call: AcquireFuture = Box::pin(fair(&client).acquire());
        let began = Instant::now();
        while server.queued("k") < count {
            assert!(timeout(LEASE / 100, &mut call).await.is_err(), "the lock is held");
            assert!(running_time(began) < LEASE * 20, "the call does not queue");
        }
        unpolled.push(call);
    }
    let call = tokio::spawn(fair(&client).acquire());
    assert_queued(&server, 4).await;
    guard.release().await.expect("held");
    // Without the notifier thread, each of them would cost the lease of a transfer.
    let next = within(TRANSFER * 2, call).await.expect("the notifier thread polls them");
    next.expect("no panic").expect("its turn").release().await.expect("held");
    for call in unpolled {
        call.await.expect("they are polled again").release().await.expect("held");
    }
}

/// Their futures are dropped for them, and they call anew when they are polled.
#[tokio::test(flavor = "multi_thread")]
async fn calls_on_a_runtime_that_is_blocked_leave_the_queue() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guard = fair(&client).acquire().await.expect("free");
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let (calls, is_queued) = (client.clone(), Arc::new(AtomicBool::new(false)));
    let other = std::thread::spawn({
        let is_queued = Arc::clone(&is_queued);
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let calls: Vec<_> = (0..3).map(|_| tokio::spawn(fair(&calls).acquire())).collect();
                while !is_queued.load(Ordering::SeqCst) {
                    sleep(LEASE / 100).await;
                }
                blocked.recv().expect("it is told");
                for call in calls {
                    let guard = call.await.expect("no panic").expect("its turn");
                    guard.release().await.expect("held");
                }
            });
        }
    });
    assert_queued(&server, 3).await;
    is_queued.store(true, Ordering::SeqCst);
    let left = until(LEASE * 10, || server.queued("k") == 0).await;
    assert!(left.is_some(), "{} claims of a blocked runtime", server.queued("k"));
    let call = tokio::spawn(fair(&client).acquire());
    assert_queued(&server, 1).await;
    guard.release().await.expect("held");
    let next = within(TRANSFER / 2, call).await.expect("its turn").expect("no panic");
    next.expect("up").release().await.expect("held");
    unblock.send(()).expect("it waits");
    tokio::task::spawn_blocking(|| other.join().expect("no panic")).await.expect("no panic");
}

/// A release passes over a thousand of them, and leaves the key free.
#[tokio::test]
async fn calls_that_come_later_do_not_pass_those_behind_very_many_dead_ones() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    let guard = fair(&client).acquire().await.expect("free");
    let mut process = waiting_process(&server, 3500).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let call = |n: usize| {
        let (lock, order) = (fair(&client), Arc::clone(&order));
        tokio::spawn(lock.run(async move { order.lock().expect("no panic").push(n) }))
    };
    let mut calls = Vec::new();
    for n in 0..2 {
        calls.push(call(n));
        assert_queued(&server, 3501 + n).await;
    }
    kill_waiting(&mut process, &server).await;
    guard.release().await.expect("held");
    calls.push(call(2));
    for call in calls {
        call.await.expect("no panic").expect("its turn");
    }
    assert_eq!(*order.lock().expect("no panic"), [0, 1, 2]);
}

/// The store does not report the call that waits, because it is one of this process.
#[tokio::test]
async fn a_lock_of_the_same_process_does_not_linger_while_a_fair_call_waits() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).lease(LEASE * 60).tracking(false);
    let client = builder.connect().await.expect("up");
    let lingers = client.lock("k").linger(LEASE);
    lingers.run(async {}).await.expect("free");
    let granted = within(LEASE / 2, fair(&client).acquire()).await.expect("it lingers no longer");
    granted.expect("up").release().await.expect("held");
}
