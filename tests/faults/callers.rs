//! Foreign code that does not do its part: a log that blocks or panics, waiters that nobody polls, a
//! runtime that is blocked when a body ought to end.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LockGuard, LostReason};
use lock_tests::{Helper, Proxy, RedisServer, boot_nanos};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LEASE, client, milliseconds, until, until_at_rest};

/// Locks of the process whose log goes wrong.
const LOCKS: usize = 20;

/// Has a process hold locks with a log that goes wrong at its first event, which is that of a renewal
/// without an answer. Returns what it says three leases later, and by how many milliseconds a body
/// outlived its deadline when the server is out of reach.
async fn with_a_log_that(how: &'static str) -> (String, u64) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (url, locks, lease) = (proxy.url(), LOCKS.to_string(), milliseconds(LEASE));
    let args = ["logging", &url, &locks, &lease, how];
    let mut process = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args);
    assert_eq!(process.line(), "held");
    proxy.lose_reply_to("EVALSHA");
    assert!(until(LEASE, || proxy.struck() == 1).await.is_some(), "a renewal fails");
    sleep(LEASE * 3).await;
    assert_eq!(server.command::<usize>(&["DBSIZE"]), LOCKS, "their keys are still there");
    process.tell("how is it");
    let said = process.line();
    server.freeze();
    let late = tokio::task::spawn_blocking(move || process.line());
    let late = timeout(LEASE * 4, late).await.expect("at the deadline").expect("no panic");
    server.thaw();
    let late = late.strip_prefix("late ").and_then(|late| late.parse().ok());
    (said, late.expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_blocks_loses_no_lock_and_keeps_no_body_alive() {
    let (said, late) = with_a_log_that("blocks").await;
    assert_eq!(said, format!("holding {LOCKS} lost 0"));
    assert!(u128::from(late) < (LEASE / 2).as_millis(), "{late} ms after the deadline");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_panics_loses_no_lock_and_keeps_no_body_alive() {
    let (said, late) = with_a_log_that("panics").await;
    assert_eq!(said, format!("holding {LOCKS} lost 0"));
    assert!(u128::from(late) < (LEASE / 2).as_millis(), "{late} ms after the deadline");
}

/// Its destructor is the end of a body: a transaction that is rolled back there was open until then.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_not_free_before_the_destructor_of_a_body_that_was_held_too_long() {
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
            // On a thread of its own, which the body blocks most of the time.
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
        is_held.await.expect("it has the lock");
        let guard = two.lock("k").acquire().await.expect("in the end");
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
    until_at_rest(&one, LEASE).await;
}

/// A stuck thread has to be waited for, but no longer than its lease lasts.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_stuck_past_its_maximum_keeps_the_key_for_its_lease_at_the_most() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (held, is_held) = tokio::sync::oneshot::channel();
    let stuck = {
        let lock = client.lock("k").max_hold(LEASE / 4);
        tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(lock.run(async {
                let _ = held.send(());
                std::thread::sleep(LEASE * 4);
                std::future::pending::<()>().await;
            }))
        })
    };
    is_held.await.expect("it has the lock");
    let begun = Instant::now();
    let guard = client.lock("k").acquire().await.expect("when the lease is over");
    assert!(begun.elapsed() < LEASE * 2, "{:?}", begun.elapsed());
    assert!(begun.elapsed() > LEASE / 2, "not at the maximum: {:?}", begun.elapsed());
    let outcome = stuck.await.expect("no panic");
    assert!(matches!(outcome, Err(LockError::Lost { .. })), "{outcome:?}");
    assert!(guard.is_held(), "its release is not of this hold");
    guard.release().await.expect("held");
    until_at_rest(&client, LEASE).await;
}

type Waiting = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send>>;

/// One who has asked for `k`, and is not polled again.
fn forgotten(client: &LockClient) -> Waiting {
    let mut waiting: Waiting = Box::pin(client.lock("k").acquire());
    let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "somebody has it");
    waiting
}

/// Whether a call of this client that will not wait gets `k`, within a lease.
async fn is_free(client: &LockClient) -> bool {
    let free = async {
        while client.lock("k").try_acquire().await.expect("up").is_none() {
            sleep(LEASE / 100).await;
        }
    };
    timeout(LEASE, free).await.is_ok()
}

async fn waiters_that_nobody_polls(client: &LockClient) {
    let first = client.lock("k").acquire().await.expect("free");
    let start = Instant::now();
    // When a hold begins, and when it ends.
    let last = Arc::new(AtomicU64::new(0));
    let longest = Arc::new(AtomicU64::new(0));
    let (mut waiters, mut unpolled) = (JoinSet::new(), Vec::new());
    for n in 0..1000 {
        if n % 10 == 0 {
            unpolled.push(forgotten(client));
            continue;
        }
        let (lock, last, longest) = (client.lock("k"), Arc::clone(&last), Arc::clone(&longest));
        let now = move || u64::try_from(start.elapsed().as_micros()).expect("not for ages");
        let before = client.stats().queued;
        waiters.spawn(async move {
            let guard = lock.acquire().await.expect("in turn");
            longest.fetch_max(now() - last.load(Ordering::SeqCst), Ordering::SeqCst);
            tokio::task::yield_now().await;
            last.store(now(), Ordering::SeqCst);
            guard.release().await.expect("held");
        });
        let queued = || client.stats().queued > before;
        assert!(until(LEASE * 10, queued).await.is_some(), "it is in the queue");
    }
    last.store(u64::try_from(start.elapsed().as_micros()).expect("short"), Ordering::SeqCst);
    first.release().await.expect("held");
    let served = timeout(LEASE * 20, async {
        while let Some(waiter) = waiters.join_next().await {
            waiter.expect("no panic");
        }
    });
    assert!(served.await.is_ok(), "everybody who is polled has it");
    let longest = Duration::from_micros(longest.load(Ordering::SeqCst));
    assert!(longest < LEASE / 2, "somebody waited for {longest:?} longer");
    // Nothing is kept for them.
    assert!(is_free(client).await, "the key is free");
    // And they have not lost their places.
    for waiting in unpolled {
        let guard = timeout(LEASE, waiting).await.expect("in turn").expect("free");
        guard.release().await.expect("held");
    }
    until_at_rest(client, LEASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_that_nobody_polls_hold_up_nobody_else() {
    let server = RedisServer::start();
    for url in [&*server.url(), "memory:"] {
        // No lease runs out here, however busy the machine is.
        let builder = LockClient::builder().url(url).watchdog(LEASE * 60).wait(LEASE * 60);
        waiters_that_nobody_polls(&builder.connect().await.expect("up")).await;
    }
}

/// They have been answered, and count as under way until somebody looks.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_nobody_polls_keep_no_others_from_being_sent() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    client.lock("warm").run(async {}).await.expect("free");
    let mut unpolled: Vec<Waiting> = Vec::new();
    // More than there may be under way, so that the last ones are not even sent.
    for n in 0..1200 {
        let mut call: Waiting = Box::pin(client.lock(format!("u:{n}")).acquire());
        // A few have their answer at once, when this thread is held up.
        if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            unpolled.push(call);
        }
    }
    assert!(unpolled.len() > 1000, "{}", unpolled.len());
    for n in 0..10 {
        let lock = client.lock(format!("k:{n}"));
        let guard = timeout(LEASE * 2, lock.acquire()).await.expect("it is sent").expect("free");
        guard.release().await.expect("held");
    }
    for call in unpolled {
        // Some of them find that their answer has come too late, and ask again.
        drop(call.await.expect("free"));
    }
    until_at_rest(&client, LEASE * 5).await;
    assert_eq!(server.command::<u32>(&["DBSIZE"]), 0);
}

/// A waker that notes which threads call it, and does something else besides.
struct Noting {
    threads: Mutex<BTreeSet<String>>,
    besides: fn(),
}

impl Noting {
    fn new(besides: fn()) -> (Arc<Self>, Waker) {
        let noting = Arc::new(Self { threads: Mutex::default(), besides });
        (Arc::clone(&noting), Waker::from(noting))
    }
}

impl Wake for Noting {
    fn wake(self: Arc<Self>) {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.threads.lock().expect("not poisoned").insert(thread);
        (self.besides)();
    }
}

/// Calls that have sent their requests, calls that wait until they may, and one that is undone, which
/// is what the keeper does for them. Then the connection is given up.
#[tokio::test(flavor = "multi_thread")]
async fn wakers_are_not_called_on_the_thread_that_renews() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    client.lock("warm").run(async {}).await.expect("free");
    server.freeze();
    let (noting, waker) = Noting::new(|| {});
    let mut calls: Vec<Waiting> = Vec::new();
    for n in 0..1200 {
        let mut call: Waiting = Box::pin(client.lock(format!("u:{n}")).acquire());
        let _ = call.as_mut().poll(&mut Context::from_waker(&waker));
        calls.push(call);
    }
    drop(calls.swap_remove(0));
    let is_woken = || !noting.threads.lock().expect("not poisoned").is_empty();
    assert!(until(LEASE * 4, is_woken).await.is_some(), "the connection is given up");
    sleep(LEASE).await;
    server.thaw();
    let threads = noting.threads.lock().expect("not poisoned").clone();
    assert!(!threads.contains("lock-keeper"), "{threads:?}");
}

/// It belongs to a call that sleeps beside a holder, and is called because the store finds the key
/// deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_waker_that_panics_keeps_nobody_else_asleep() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let keys = ["k", "other"];
    let mut held = Vec::new();
    for key in keys {
        // Not renewed, so that a deleted key is nobody's loss before the end of the test.
        held.push(two.lock(key).lease(LEASE * 60).acquire().await.expect("free"));
    }
    let mut rude: Waiting = Box::pin(one.lock("k").acquire());
    let is_subscribed = |key: &str| {
        let channel = format!("lock_wake:{{{key}}}");
        server.command::<(String, u64)>(&["PUBSUB", "NUMSUB", &channel]).1 == 1
    };
    let asleep = async {
        while !is_subscribed("k") {
            let _ = timeout(LEASE / 20, &mut rude).await;
        }
        // It tries once more.
        let _ = timeout(LEASE / 2, &mut rude).await;
    };
    assert!(timeout(LEASE * 10, asleep).await.is_ok(), "it is subscribed");
    let (noting, waker) = Noting::new(|| panic!("as planned"));
    assert!(rude.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let polite = tokio::spawn(one.lock("other").acquire());
    assert!(until(LEASE * 10, || is_subscribed("other")).await.is_some(), "it is subscribed");

    server.tell(&["DEL", "k"]);
    let is_woken = || noting.threads.lock().expect("not poisoned").contains("lock-notifier");
    assert!(until(LEASE * 5, is_woken).await.is_some(), "it is told");
    server.tell(&["DEL", "other"]);
    let guard = timeout(LEASE * 5, polite).await.expect("it is told").expect("no panic");
    guard.expect("free").release().await.expect("held");
    drop((rude, held));
}

/// All that is left in the queue is one who is not polled, and other processes want the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_not_kept_for_a_waiter_that_nobody_polls() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).watchdog(LEASE * 60);
    let (one, two) = (builder.connect().await.expect("up"), client(&server.url()).await);
    let first = one.lock("k").acquire().await.expect("free");
    let waiting = forgotten(&one);
    first.release().await.expect("held");
    let guard = timeout(LEASE, two.lock("k").acquire()).await.expect("it is free").expect("up");
    guard.release().await.expect("held");
    assert!(is_free(&one).await, "nor for those of its own process");
    let late = timeout(LEASE * 5, waiting).await.expect("in turn").expect("free");
    late.release().await.expect("held");
    until_at_rest(&one, LEASE).await;
}

type Release = Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>;

/// Polls something that waits for the server once; `None` if its answer was there at once, because
/// this thread was held up in between.
fn poll_once<T>(
    mut call: Pin<Box<dyn Future<Output = T> + Send>>,
) -> Option<Pin<Box<dyn Future<Output = T> + Send>>> {
    let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    polled.is_pending().then_some(call)
}

/// One who has asked the server for a key, and is not polled again.
async fn asking(client: &LockClient, key: &str) -> Waiting {
    loop {
        let mut call: Waiting = Box::pin(client.lock(key).acquire());
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => return call,
            Poll::Ready(guard) => guard.expect("free").release().await.expect("held"),
        }
    }
}

/// One who has released a key, and is not polled again.
async fn releasing(client: &LockClient, key: &str) -> Release {
    loop {
        let guard = client.lock(key).acquire().await.expect("free");
        if let Some(release) = poll_once(Box::pin(guard.release())) {
            return release;
        }
    }
}

/// Its request for the free key is granted, and nobody takes the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_asks_the_store_and_is_not_polled_holds_up_nobody_else() {
    let server = RedisServer::start();
    let client = LockClient::builder().url(server.url()).watchdog(LEASE * 60).wait(LEASE * 60);
    let client = client.connect().await.expect("up");
    client.lock("warm").run(async {}).await.expect("free");
    for _ in 0..10 {
        let first = asking(&client, "k").await;
        let second = timeout(LEASE, client.lock("k").acquire()).await;
        let second = second.expect("somebody goes on for it").expect("free");
        // It has lost nothing but its turn, and gets the lock when it is polled again.
        let third = forgotten(&client);
        second.release().await.expect("held");
        let first = timeout(LEASE, first).await.expect("in turn").expect("free");
        first.release().await.expect("held");
        drop(third);
    }
    until_at_rest(&client, LEASE).await;
    assert_eq!(server.command::<u32>(&["DBSIZE"]), 0);
}

/// Nor those who will not wait, nor other processes, once anybody has asked for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_not_kept_for_a_call_that_is_not_polled() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).watchdog(LEASE * 60).wait(LEASE * 60);
    let (one, two) = (builder.connect().await.expect("up"), client(&server.url()).await);
    one.lock("warm").run(async {}).await.expect("free");
    let first = asking(&one, "k").await;
    let is_taken = || server.command::<u32>(&["EXISTS", "k"]) == 1;
    assert!(until(LEASE, is_taken).await.is_some(), "its request was sent");
    let tried = one.lock("k").try_acquire().await;
    assert!(!matches!(tried, Ok(Some(_))), "it is another's, or nothing is known yet: {tried:?}");
    let guard = timeout(LEASE, two.lock("k").acquire()).await;
    let guard = guard.expect("somebody goes on for it").expect("up");
    assert!(one.lock("k").try_acquire().await.expect("up").is_none(), "it says who has it");
    guard.release().await.expect("held");
    assert!(is_free(&one).await, "the key is free for others of its process");
    let first = timeout(LEASE, first).await.expect("in turn").expect("free");
    first.release().await.expect("held");
    until_at_rest(&one, LEASE).await;
    assert_eq!(server.command::<u32>(&["DBSIZE"]), 0);
}

/// They are all late for what they are granted, each time, and it is not kept from them for that.
#[tokio::test(flavor = "multi_thread")]
async fn callers_whose_runtime_is_blocked_again_and_again_have_their_turns() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).watchdog(LEASE * 60).wait(LEASE * 20);
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
    assert!(outcomes.iter().all(Result::is_ok), "each has its turn: {outcomes:?}");
    until_at_rest(&client, LEASE).await;
}

/// The lock of another process is waited for by one who is not polled any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_another_process_and_is_not_polled_holds_up_nobody_else() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).watchdog(LEASE * 60).wait(LEASE * 60);
    let (one, two) = (builder.connect().await.expect("up"), client(&server.url()).await);
    for _ in 0..3 {
        let held = two.lock("k").acquire().await.expect("free");
        let mut first: Waiting = Box::pin(one.lock("k").acquire());
        // Until it has met the lock, and sleeps.
        let asleep = timeout(LEASE / 3, &mut first).await;
        assert!(asleep.is_err(), "the other process has it");
        let lock = one.lock("k");
        let second = tokio::spawn(async move { lock.acquire().await });
        sleep(LEASE / 3).await;
        held.release().await.expect("held");
        let second = timeout(LEASE, second).await.expect("somebody goes on for it");
        second.expect("no panic").expect("free").release().await.expect("held");
        let first = timeout(LEASE, first).await.expect("in turn").expect("free");
        first.release().await.expect("held");
    }
    until_at_rest(&one, LEASE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_not_polled_holds_up_nobody_else() {
    let server = RedisServer::start();
    let client = LockClient::builder().url(server.url()).watchdog(LEASE * 60).wait(LEASE * 60);
    let client = client.connect().await.expect("up");
    for _ in 0..10 {
        let release = releasing(&client, "k").await;
        let next = timeout(LEASE, client.lock("k").acquire()).await;
        next.expect("somebody goes on for it").expect("free").release().await.expect("held");
        assert_eq!(release.await, Ok(()), "what the server said is kept for it");
    }
    until_at_rest(&client, LEASE).await;
}

/// Nothing runs there that could be helped: no timer, and no connection. Its request is granted, and
/// nobody reads the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_on_a_runtime_that_stands_still_gives_up_its_turn() {
    let server = RedisServer::start();
    // A third of the lease is the time for an answer.
    let builder = LockClient::builder().url(server.url()).watchdog(LEASE * 3).wait(LEASE * 60);
    let client = builder.connect().await.expect("up");
    client.lock("warm").run(async {}).await.expect("free");
    let still = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let still = still.expect("a runtime");
    let mut first: Waiting = Box::pin(client.lock("k").acquire());
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
            // Its connection sends it.
            tokio::task::yield_now().await;
            assert!(asked.is_pending(), "nobody answers");
        });
        (first, still)
    });
    let (first, still) = asked.await.expect("no panic");
    server.thaw();
    let is_taken = || server.command::<u32>(&["EXISTS", "k"]) == 1;
    assert!(until(LEASE, is_taken).await.is_some(), "its request was sent");
    let begun = Instant::now();
    let second = timeout(LEASE * 6, client.lock("k").acquire()).await;
    let second = second.expect("it is given up").expect("free");
    assert!(begun.elapsed() > LEASE, "it may only be slow: {:?}", begun.elapsed());
    second.release().await.expect("held");
    let first = tokio::task::spawn_blocking(move || {
        let guard = still.block_on(first).expect("free");
        still.block_on(guard.release()).expect("held");
    });
    timeout(LEASE * 3, first).await.expect("in turn").expect("no panic");
    // What is to be undone behind its request, over its connection, has to be given up first.
    until_at_rest(&client, LEASE * 10).await;
    assert_eq!(server.command::<u32>(&["DBSIZE"]), 0);
}

/// It is blocked in the middle of a request, for so long that its call is given up, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_up_is_served_when_its_runtime_goes_on() {
    let server = RedisServer::start();
    // A third of the lease is the time for an answer.
    let builder = LockClient::builder().url(server.url()).watchdog(LEASE * 3).wait(LEASE * 60);
    let client = builder.connect().await.expect("up");
    client.lock("warm").run(async {}).await.expect("free");
    let (lock, warm) = (client.lock("k"), client.lock("warm"));
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let (frozen, is_frozen) = tokio::sync::oneshot::channel();
    let blocked = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            warm.run(async {}).await.expect("free");
            let _ = ready.send(());
            is_frozen.await.expect("it is");
            let first = tokio::spawn(async move { lock.acquire().await?.release().await });
            // It is sent meanwhile.
            sleep(LEASE / 10).await;
            std::thread::sleep(LEASE * 4);
            first.await.expect("no panic")
        })
    });
    is_ready.await.expect("it is");
    server.freeze();
    frozen.send(()).expect("it waits for that");
    // By then the runtime is blocked.
    sleep(LEASE / 2).await;
    server.thaw();
    let second = timeout(LEASE * 3, client.lock("k").acquire()).await;
    second.expect("it is given up").expect("free").release().await.expect("held");
    let first = timeout(LEASE * 10, blocked).await.expect("it is woken").expect("no panic");
    assert_eq!(first, Ok(()));
    until_at_rest(&client, LEASE * 10).await;
    assert_eq!(server.command::<u32>(&["DBSIZE"]), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_does_not_wait_for_calls_that_are_not_polled() {
    let server = RedisServer::start();
    let (client, two) = (client(&server.url()).await, client(&server.url()).await);
    client.lock("warm").run(async {}).await.expect("free");
    let busy = two.lock("busy").acquire().await.expect("free");
    let asking = asking(&client, "free").await;
    let mut waiting: Waiting = Box::pin(client.lock("busy").acquire());
    assert!(timeout(LEASE / 3, &mut waiting).await.is_err(), "the other process has it");
    let release = releasing(&client, "held").await;
    let end = timeout(LEASE * 2, client.shutdown()).await;
    assert_eq!(end.expect("they are gone on with"), Ok(()));
    assert_eq!(release.await, Ok(()));
    for call in [asking, waiting] {
        assert_eq!(call.await.map(drop), Err(LockError::ShutDown));
    }
    busy.release().await.expect("held");
    assert_eq!(server.command::<u32>(&["DBSIZE"]), 0);
}

/// Nobody can serve one who waits for itself; it is told so.
#[tokio::test]
async fn one_who_waits_for_itself_is_told_so() {
    use lock_runtime::Holder;

    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let brief = client.lock("k").wait(LEASE / 10);
    // As an item of a stream that is buffered does it, whose next item waits for the same key.
    let (item, next) = (client.lock("k").acquire(), brief.acquire());
    let held = item.await.expect("free");
    match next.await {
        Err(LockError::Busy { holder, .. }) => assert_eq!(holder, Holder::ThisTask),
        other => panic!("{other:?}"),
    }
    let lock = brief.clone();
    match tokio::spawn(async move { lock.acquire().await }).await.expect("no panic") {
        Err(LockError::Busy { holder, .. }) => assert_eq!(holder, Holder::ThisProcess),
        other => panic!("{other:?}"),
    }
    held.release().await.expect("held");
    let held = tokio::spawn(client.lock("k").acquire()).await.expect("no panic").expect("free");
    match brief.acquire().await {
        Err(LockError::Busy { holder, .. }) => assert_eq!(holder, Holder::ThisProcess),
        other => panic!("{other:?}"),
    }
    held.release().await.expect("held");
}

/// Calls that are given up as soon as they have asked, on ever new keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_cancelled_calls_loses_no_lock_and_leaves_no_key() {
    let server = RedisServer::start();
    // A busy machine is to renew in time while all of it cancels.
    let builder = LockClient::builder().url(server.url()).watchdog(LEASE * 3);
    let client = builder.connect().await.expect("up");
    let mut held = Vec::new();
    for n in 0..50 {
        held.push(client.lock(format!("held:{n}")).acquire().await.expect("free"));
    }
    let (start, sent) = (Instant::now(), server.calls("evalsha"));
    let mut cancelled = 0_u64;
    while start.elapsed() < LEASE * 4 {
        for n in 0..100 {
            let mut call: Waiting =
                Box::pin(client.lock(format!("c:{cancelled}:{n}")).lease(LEASE * 60).acquire());
            // Mostly this sends the request.
            let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        cancelled += 100;
        tokio::task::yield_now().await;
    }
    assert!(held.iter().all(LockGuard::is_held), "none is lost");
    assert_eq!(client.stats().lost, 0);
    let limit = LEASE * 20;
    let is_clean = || client.stats().releasing == 0 && server.command::<u64>(&["DBSIZE"]) == 50;
    let clean = until(limit, is_clean).await;
    assert!(clean.is_some(), "{:?}, {} keys", client.stats(), server.command::<u64>(&["DBSIZE"]));
    assert!(cancelled > 1000, "{cancelled} are no flood");
    let scripts = server.calls("evalsha") - sent;
    assert!(scripts < cancelled, "{scripts} requests to undo {cancelled}");
    for guard in held {
        guard.release().await.expect("held");
    }
    until_at_rest(&client, LEASE).await;
}
