//! Faulty user code: a log subscriber that blocks or panics, bodies that block when they must end,
//! wakers that panic, calls that wait for themselves, and floods of cancelled calls.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use lock_runtime::{LockClient, LockError, LostReason};
use lock_tests::{Helper, Proxy, RedisServer, boot_nanos, running_time, within};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    AcquireFuture, LEASE, acquire_many, assert_all_held, client, client_with_lease, milliseconds,
    until, until_idle,
};

/// The number of locks that the process with the faulty log holds.
const LOCKS: usize = 20;

/// Starts a process whose log subscriber fails at its first event, which is that of a renewal
/// without a reply. Returns the status line of the process one and a half leases later, and the
/// longest time in milliseconds by which a body outlives its deadline while the server is
/// unreachable.
async fn with_failing_log(how: &'static str) -> (String, u64) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // Long enough for a busy machine to repeat the renewal in time.
    let lease = LEASE * 3;
    let args = ["logging", &proxy.url(), &LOCKS.to_string(), &milliseconds(lease), how];
    let mut process = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args);
    assert_eq!(process.line(), "held");
    proxy.lose_reply_to("EVALSHA");
    assert!(until(LEASE * 10, || proxy.triggered() == 1).await.is_some(), "a renewal fails");
    sleep(lease * 3 / 2).await;
    assert_eq!(server.key_count(), LOCKS, "all keys still exist");
    process.tell("status");
    let status = process.line();
    server.freeze();
    let late = tokio::task::spawn_blocking(move || process.line());
    let late = within(lease * 2, late).await.expect("at the deadline").expect("no panic");
    server.thaw();
    let late = late.strip_prefix("late ").and_then(|late| late.parse().ok());
    (status, late.expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_log_subscriber_costs_no_lock_and_delays_no_deadline() {
    let (status, late) = with_failing_log("blocks").await;
    assert_eq!(status, format!("holding {LOCKS} lost 0"));
    assert!(u128::from(late) < (LEASE / 2).as_millis(), "{late} ms after the deadline");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panicking_log_subscriber_costs_no_lock_and_delays_no_deadline() {
    let (status, late) = with_failing_log("panics").await;
    assert_eq!(status, format!("holding {LOCKS} lost 0"));
    assert!(u128::from(late) < (LEASE / 2).as_millis(), "{late} ms after the deadline");
}

/// A body ends with its destructors: a transaction that a destructor rolls back is open until then.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_max_hold_the_key_is_free_only_after_the_destructors_of_the_body() {
    struct Transaction(Arc<AtomicU64>);
    impl Drop for Transaction {
        fn drop(&mut self) {
            self.0.store(boot_nanos(), Ordering::SeqCst);
        }
    }
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    for _ in 0..10 {
        let ended = Arc::new(AtomicU64::new(0));
        let (held, is_held) = tokio::sync::oneshot::channel();
        let holder = {
            let (lock, ended) = (one.lock("k").max_hold(LEASE / 4), Arc::clone(&ended));
            // A thread of its own, which the body blocks most of the time.
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(lock.run(async {
                    let _transaction = Transaction(ended);
                    let _ = held.send(());
                    loop {
                        std::thread::sleep(LEASE / 10);
                        tokio::task::yield_now().await;
                    }
                }))
            })
        };
        is_held.await.expect("the body has the lock");
        let guard = two.lock("k").acquire().await.expect("granted after the body");
        let granted = boot_nanos();
        let ended = ended.load(Ordering::SeqCst);
        assert!(ended > 0, "granted at {granted}, before the destructor");
        assert!(ended <= granted, "the destructor ran {} ns later", ended - granted);
        guard.release().await.expect("held");
        let outcome: Result<(), LockError> = holder.join().expect("no panic");
        match outcome {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::MaxHold),
            other => panic!("{other:?}"),
        }
    }
    until_idle(&one, LEASE).await;
}

/// The key is kept for a blocked body, but for no longer than its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_stuck_past_its_max_hold_keeps_the_key_only_until_the_lease_ends() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 4).await;
    let (held, is_held) = tokio::sync::oneshot::channel();
    let stuck = {
        let lock = client.lock("k").max_hold(LEASE / 2);
        tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(lock.run(async {
                let _ = held.send(());
                std::thread::sleep(LEASE * 8);
                std::future::pending::<()>().await;
            }))
        })
    };
    is_held.await.expect("the body has the lock");
    let begun = Instant::now();
    let guard = client.lock("k").wait(LEASE * 60).acquire().await.expect("granted after the lease");
    assert!(running_time(begun) < LEASE * 7, "{:?}", begun.elapsed());
    assert!(begun.elapsed() > LEASE * 2, "not at the maximum: {:?}", begun.elapsed());
    let outcome = stuck.await.expect("no panic");
    assert!(matches!(outcome, Err(LockError::Lost { .. })), "{outcome:?}");
    assert!(guard.is_held(), "the release of the lost hold does not affect this hold");
    guard.release().await.expect("held");
    until_idle(&client, LEASE).await;
}

/// A waker that records the threads that call it, and then calls a function.
struct RecordingWaker {
    threads: Mutex<BTreeSet<String>>,
    then: fn(),
}

impl RecordingWaker {
    fn new(then: fn()) -> (Arc<Self>, Waker) {
        let recording = Arc::new(Self { threads: Mutex::default(), then });
        (Arc::clone(&recording), Waker::from(recording))
    }
}

impl Wake for RecordingWaker {
    fn wake(self: Arc<Self>) {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.threads.lock().expect("not poisoned").insert(thread);
        (self.then)();
    }
}

/// Some calls have sent their requests, some wait until they may send, and one call was dropped,
/// which the background thread undoes. Then the connection is given up.
#[tokio::test(flavor = "multi_thread")]
async fn wakers_are_not_called_on_the_background_thread() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    client.lock("warm").run(async {}).await.expect("free");
    server.freeze();
    let (recording, waker) = RecordingWaker::new(|| {});
    let mut calls: Vec<AcquireFuture> = Vec::new();
    for n in 0..1200 {
        let mut call: AcquireFuture = Box::pin(client.lock(format!("u:{n}")).acquire());
        let _ = call.as_mut().poll(&mut Context::from_waker(&waker));
        calls.push(call);
    }
    drop(calls.swap_remove(0));
    let is_woken = || !recording.threads.lock().expect("not poisoned").is_empty();
    assert!(until(LEASE * 4, is_woken).await.is_some(), "the connection is given up");
    sleep(LEASE).await;
    server.thaw();
    let threads = recording.threads.lock().expect("not poisoned").clone();
    assert!(!threads.contains("lock-background"), "{threads:?}");
}

/// The waker belongs to a call that waits for a held key. It is called because the key was deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_panicking_waker_does_not_prevent_other_wake_ups() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let keys = ["k", "other"];
    let mut held = Vec::new();
    for key in keys {
        // A fixed lease, so that no renewal finds that the key was deleted.
        held.push(two.lock(key).lease(LEASE * 60).acquire().await.expect("free"));
    }
    let mut panicking: AcquireFuture = Box::pin(one.lock("k").acquire());
    let is_subscribed = |key: &str| server.queued(key) == 1;
    let asleep = async {
        while !is_subscribed("k") {
            let _ = timeout(LEASE / 20, &mut panicking).await;
        }
        // The call makes another attempt after the subscription.
        let _ = timeout(LEASE / 2, &mut panicking).await;
    };
    assert!(timeout(LEASE * 10, asleep).await.is_ok(), "the call is subscribed");
    let (recording, waker) = RecordingWaker::new(|| panic!("as planned"));
    assert!(panicking.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let other = tokio::spawn(one.lock("other").acquire());
    assert!(until(LEASE * 10, || is_subscribed("other")).await.is_some(), "the call is subscribed");

    server.tell(&["DEL", "k"]);
    let is_woken = || recording.threads.lock().expect("not poisoned").contains("lock-notifier");
    assert!(until(LEASE * 5, is_woken).await.is_some(), "the waker is called");
    server.tell(&["DEL", "other"]);
    let guard = within(LEASE * 5, other).await.expect("the other call is woken").expect("no panic");
    guard.expect("free").release().await.expect("held");
    drop((panicking, held));
}

/// A task that waits for its own lock can never get it. The error says so.
#[tokio::test]
async fn a_task_that_waits_for_its_own_lock_is_named_as_the_holder() {
    use lock_runtime::HolderKind;

    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let brief = client.lock("k").wait(LEASE / 10);
    // The same happens in a buffered stream whose next item waits for the key of the current item.
    let (item, next) = (client.lock("k").acquire(), brief.acquire());
    let held = item.await.expect("free");
    match next.await {
        Err(LockError::Busy { holder, .. }) => assert_eq!(holder.kind, HolderKind::ThisTask),
        other => panic!("{other:?}"),
    }
    let lock = brief.clone();
    match tokio::spawn(async move { lock.acquire().await }).await.expect("no panic") {
        Err(LockError::Busy { holder, .. }) => assert_eq!(holder.kind, HolderKind::ThisProcess),
        other => panic!("{other:?}"),
    }
    held.release().await.expect("held");
    let held = tokio::spawn(client.lock("k").acquire()).await.expect("no panic").expect("free");
    match brief.acquire().await {
        Err(LockError::Busy { holder, .. }) => assert_eq!(holder.kind, HolderKind::ThisProcess),
        other => panic!("{other:?}"),
    }
    held.release().await.expect("held");
}

/// Each call is dropped right after its request, and each call has a new key.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_cancelled_calls_loses_no_lock_and_leaves_no_key() {
    let server = RedisServer::start();
    // Long enough for renewals in time while the cancellations keep the machine busy.
    let builder = LockClient::builder().url(server.url()).lease(LEASE * 3);
    let client = builder.connect().await.expect("up");
    let held = acquire_many(&client, 50).await;
    let (start, sent) = (Instant::now(), server.calls("evalsha"));
    let mut cancelled = 0_u64;
    while start.elapsed() < LEASE * 4 {
        for n in 0..100 {
            let mut call: AcquireFuture =
                Box::pin(client.lock(format!("c:{cancelled}:{n}")).lease(LEASE * 60).acquire());
            // In most cases this sends the request.
            let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        cancelled += 100;
        tokio::task::yield_now().await;
    }
    assert_all_held(&held);
    assert_eq!(client.stats().lost, 0);
    let limit = LEASE * 20;
    let is_clean = || client.stats().releasing == 0 && server.key_count() == 50;
    let clean = until(limit, is_clean).await;
    assert!(clean.is_some(), "{:?}, {} keys", client.stats(), server.key_count());
    assert!(cancelled > 1000, "only {cancelled} cancelled calls");
    let scripts = server.calls("evalsha") - sent;
    assert!(scripts < cancelled, "{scripts} requests to undo {cancelled}");
    for guard in held {
        guard.release().await.expect("held");
    }
    until_idle(&client, LEASE).await;
}
