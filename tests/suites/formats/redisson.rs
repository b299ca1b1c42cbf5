//! Redisson's plain lock, shared with Java: its own tests, as far as they mean anything here.
//!
//! The comment of a test names the test of Redisson's (of `RedissonLockTest`, unless it says otherwise)
//! whose assertions it has. Those that are about threads have tasks here, and those about the count of
//! a lock that is taken again have bodies. Not here: what is about interrupted threads
//! (`testLockUninterruptibly`), keyspace events (`testLockListener`) and clusters (`testInCluster`,
//! `testLockFailoverInCluster`), none of which there is here; and the restarts of
//! `RedissonLockExpirationRenewalTest` with read and write locks, which are other locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::{Holder, LockClient, LockError, LostReason, WireFormat};
use lock_tests::RedisServer;
use lock_tests::support::until_at_rest;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::peers::Java;
use super::{Scene, WOKEN, is_free, speaking};
use crate::support::{LEASE, helper, milliseconds, until};

async fn scene() -> Scene {
    Scene::new(WireFormat::Redisson).await
}

impl Scene {
    fn java(&self, thread: u64) -> Java {
        Java::new(&self.server, "k", thread)
    }

    /// The fields of the lock, which are its owners and their counts.
    fn owners(&self) -> Vec<(String, i64)> {
        self.server.command(&["HGETALL", "k"])
    }
}

#[tokio::test]
async fn a_lock_is_a_hash_of_its_owner() {
    let scene = scene().await;
    let mut owners = Vec::new();
    for client in [&scene.one, &scene.one, &scene.two] {
        let guard = client.lock("k").acquire().await.expect("free");
        let [(owner, count)] = &scene.owners()[..] else { panic!("{:?}", scene.owners()) };
        assert_eq!(*count, 1);
        let (uuid, number) = owner.split_once(':').expect("a colon");
        assert_eq!(uuid.len(), 36);
        assert!(number.parse::<i64>().is_ok_and(|number| number > 0), "{number}");
        owners.push((uuid.to_owned(), number.to_owned()));
        guard.release().await.expect("held");
    }
    assert_eq!(owners[0].0, owners[1].0, "that of the client");
    assert_ne!(owners[0].0, owners[2].0);
    assert!(owners[0].1 != owners[1].1 && owners[1].1 != owners[2].1, "one for each hold");
}

/// testLockUnlock
#[tokio::test]
async fn it_can_be_taken_again_and_again() {
    let scene = scene().await;
    for _ in 0..2 {
        scene.one.lock("k").run(async {}).await.expect("free");
        assert!(scene.java(1).lock(LEASE).is_none() && scene.java(1).release() == Some(1));
    }
}

/// testReentrancy, testGetHoldCount: the count is this process's own.
#[tokio::test]
async fn a_body_that_takes_it_again_has_it_once_in_redis() {
    let scene = scene().await;
    let body = async {
        let outer = scene.owners();
        scene
            .one
            .lock("k")
            .run(async { assert_eq!(scene.owners(), outer) })
            .await
            .expect("its own");
        assert_eq!(outer.len(), 1);
        assert_eq!(outer[0].1, 1);
        assert!(scene.java(1).lock(LEASE).is_some(), "still held after the inner one");
    };
    scene.one.lock("k").run(body).await.expect("free");
    assert_eq!(scene.owners(), []);
}

/// The same, on the other side: their count is their own.
#[tokio::test]
async fn a_thread_that_has_it_twice_has_it_until_the_second_release() {
    let scene = scene().await;
    let mut java = scene.java(1);
    assert!(java.lock(LEASE * 10).is_none() && java.lock(LEASE * 10).is_none());
    assert_eq!(java.release(), Some(0));
    assert!(!is_free(&scene.one).await);
    assert_eq!(java.release(), Some(1));
    assert!(is_free(&scene.one).await);
}

/// testIsLocked, testIsLockedOtherThread, testIsHeldByCurrentThread(OtherThread)
#[tokio::test]
async fn java_sees_that_it_is_locked_and_that_it_is_not_its_own() {
    let scene = scene().await;
    let (mut one, mut two) = (scene.java(1), scene.java(2));
    assert_eq!(one.state(), (false, false));
    let guard = scene.one.lock("k").acquire().await.expect("free");
    assert_eq!(one.state(), (true, false));
    guard.release().await.expect("held");
    assert_eq!(one.state(), (false, false));
    assert!(one.lock(LEASE * 10).is_none());
    assert_eq!((one.state(), two.state()), ((true, true), (true, false)));
    assert!(!is_free(&scene.one).await);
    assert_eq!(one.release(), Some(1));
}

/// testUnlockFail
#[tokio::test]
async fn nobody_releases_what_is_not_its_own() {
    let scene = scene().await;
    let guard = scene.one.lock("k").acquire().await.expect("free");
    assert_eq!(scene.java(1).release(), None);
    assert!(!scene.java(1).renew());
    assert_eq!(scene.owners().len(), 1);
    guard.release().await.expect("held");
}

/// testForceUnlock
#[tokio::test]
async fn a_forced_unlock_by_java_is_a_loss_and_wakes_ours() {
    let scene = scene().await;
    let lock = scene.one.lock("k");
    let body = tokio::spawn(async move { lock.run(std::future::pending::<()>()).await });
    assert!(until(LEASE, || scene.server.exists("k")).await.is_some());
    let waiter = scene.waiter("k").await;
    let forced = Instant::now();
    assert!(scene.java(1).force_unlock());
    let (guard, got) = waiter.await.expect("no panic").expect("free");
    assert!(got - forced < WOKEN, "{:?}", got - forced);
    match body.await.expect("no panic") {
        Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
        other => panic!("{other:?}"),
    }
    assert!(forced.elapsed() < LEASE * 2 / 3, "{:?}", forced.elapsed());
    assert!(guard.is_held() && scene.owners().len() == 1);
    guard.release().await.expect("its own");
    assert!(!scene.java(1).force_unlock());
}

/// testExpire. There the waiter has it within 2.02 s of the beginning of a lease of 2 s, a hundredth too
/// late at the most. The hundredth of a longer one has room for a busy machine, and for the up to 30 ms
/// by which ours keep out of each other's way.
#[tokio::test]
async fn a_waiter_gets_it_when_the_lease_ends_and_the_late_unlock_fails() {
    let scene = scene().await;
    let mut java = scene.java(1);
    let start = Instant::now();
    let lease = LEASE * 15;
    assert!(java.lock(lease).is_none());
    let guard = scene.one.lock("k").acquire().await.expect("in the end");
    let taken = start.elapsed();
    assert!(taken + Duration::from_millis(2) >= lease, "{taken:?}");
    assert!(taken < lease + lease / 100, "{taken:?}");
    assert_eq!(java.release(), None);
    guard.release().await.expect("held");

    let stale = scene.one.lock("k").lease(LEASE / 2).acquire().await.expect("free");
    assert!(until(LEASE, || java.lock(LEASE * 2).is_none()).await.is_some());
    assert!(matches!(stale.release().await, Err(LockError::Lost { .. })));
    assert_eq!(java.release(), Some(1));
}

/// testAutoExpire
#[tokio::test]
async fn what_a_process_that_was_killed_has_held_is_free_within_its_lease() {
    let scene = scene().await;
    let mut ours = helper(&["hold", &scene.server.url(), "k", &milliseconds(LEASE), "Redisson"]);
    assert_eq!(ours.line(), "held");
    // It is renewed until then.
    sleep(LEASE * 2).await;
    ours.kill();
    let mut java = scene.java(1);
    assert!(java.lock(LEASE).is_some(), "not before its lease ends");
    let free = until(LEASE * 2, || java.lock(LEASE).is_none()).await.expect("it expires");
    assert!(free <= LEASE * 5 / 4, "{free:?}");
}

/// testTryLockWait
#[tokio::test]
async fn a_wait_that_runs_out_takes_as_long_as_it_says() {
    let scene = scene().await;
    assert!(scene.java(1).lock(LEASE * 20).is_none());
    let start = Instant::now();
    match scene.one.lock("k").wait(LEASE * 3).acquire().await {
        Err(LockError::Busy { holder: Holder::Elsewhere(Some(_)), .. }) => {}
        other => panic!("{other:?}"),
    }
    let waited = start.elapsed();
    assert!(waited >= LEASE * 3 && waited < LEASE * 3 + LEASE * 35 / 100, "{waited:?}");
}

/// testConcurrency_SingleInstance, with a check that nobody else is inside.
#[tokio::test]
async fn fifteen_tasks_of_one_client_count_exactly() {
    let scene = scene().await;
    assert_eq!(count(std::slice::from_ref(&scene.one), 15, 1).await, 15);
}

/// testConcurrency_MultiInstance
#[tokio::test]
async fn a_hundred_clients_count_exactly() {
    let server = RedisServer::start();
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(speaking(WireFormat::Redisson, &server).await);
    }
    assert_eq!(count(&clients, 100, 1).await, 100);
}

/// testConcurrencyLoop_MultiInstance: 16 clients, 100 times each.
#[tokio::test]
async fn sixteen_clients_that_loop_count_exactly() {
    let server = RedisServer::start();
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(speaking(WireFormat::Redisson, &server).await);
    }
    assert_eq!(count(&clients, 16, 100).await, 1600);
    assert!(!server.exists("k"));
}

/// So many tasks, one after the other of these clients, add one to an unguarded number so many times.
async fn count(clients: &[LockClient], tasks: usize, times: u32) -> u32 {
    let number = Arc::new(AtomicU32::new(0));
    let mut counting = JoinSet::new();
    for client in clients.iter().cycle().take(tasks) {
        let (lock, number) = (client.lock("k").wait(LEASE * 60), Arc::clone(&number));
        counting.spawn(async move {
            for _ in 0..times {
                lock.run(async {
                    let before = number.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    number.store(before + 1, Ordering::SeqCst);
                })
                .await
                .expect("in turn");
            }
        });
    }
    while let Some(counted) = counting.join_next().await {
        counted.expect("no panic");
    }
    number.load(Ordering::SeqCst)
}

/// testConcurrencyTryLockUnLock, with threads of Java among them: nobody fails, it is held by one, and
/// whoever has it is known to hold it, and so is renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_and_threads_that_try_and_release_never_meet() {
    let scene = scene().await;
    let inside = Arc::new(AtomicU32::new(0));
    let enter = |inside: &AtomicU32| {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    let enter_ours = move |inside: &AtomicU32, client: &LockClient| {
        enter(inside);
        assert!(client.stats().held >= 1);
    };
    let threads = (1..=4).map(|n| {
        let (mut java, inside) = (scene.java(n), Arc::clone(&inside));
        std::thread::spawn(move || {
            let mut taken = 0;
            for _ in 0..500 {
                if java.lock(LEASE * 60).is_none() {
                    taken += 1;
                    enter(&inside);
                    assert_eq!(java.release(), Some(1));
                }
            }
            taken
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut ours = JoinSet::new();
    for n in 0..4 {
        let client = if n % 2 == 0 { scene.one.clone() } else { scene.two.clone() };
        let (lock, inside) = (client.lock("k").wait(LEASE * 60), Arc::clone(&inside));
        ours.spawn(async move {
            for _ in 0..100 {
                if let Some(guard) = lock.try_acquire().await.expect("up") {
                    enter_ours(&inside, &client);
                    guard.release().await.expect("held");
                }
                lock.run(async { enter_ours(&inside, &client) }).await.expect("in turn");
            }
        });
    }
    while let Some(done) = ours.join_next().await {
        done.expect("no panic");
    }
    let taken: u32 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    assert!(taken > 0, "they took part");
    assert!(!scene.server.exists("k"));
}

/// testSubscriptionsPerConnection
#[tokio::test]
async fn nobody_who_waits_at_a_few_names_fails_and_no_subscription_is_left() {
    let scene = scene().await;
    let mut java = Java::new(&scene.server, "0", 1);
    assert!(java.lock(LEASE * 60).is_none());
    let mut tasks = JoinSet::new();
    for task in 0..32 {
        let client = if task % 2 == 0 { scene.one.clone() } else { scene.two.clone() };
        tasks.spawn(async move {
            for job in 0..160 {
                let lock = client.lock(((task + job) % 5).to_string());
                lock.run(tokio::task::yield_now()).await.expect("in turn");
            }
        });
    }
    let channels = || -> Vec<String> { scene.server.command(&["PUBSUB", "CHANNELS"]) };
    let waited_for = || channels().contains(&"redisson_lock__channel:{0}".into());
    assert!(until(LEASE, waited_for).await.is_some(), "nobody waits");
    assert_eq!(java.release(), Some(1));
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    assert!(until(LEASE, || channels().is_empty()).await.is_some(), "{:?}", channels());
}

/// testSinglePubSub, where all subscriptions of a client are of one connection, as ours always are.
#[tokio::test]
async fn those_who_wait_briefly_at_a_few_names_have_their_turn_or_hear_that_it_is_busy() {
    let scene = scene().await;
    let mut tasks = JoinSet::new();
    for task in 0..4 {
        let client = if task % 2 == 0 { scene.one.clone() } else { scene.two.clone() };
        tasks.spawn(async move {
            let mut turns = 0;
            for job in 0..100 {
                let lock = client.lock(((task + job) % 3).to_string()).wait(LEASE / 2);
                match lock.run(sleep(LEASE / 500)).await {
                    Ok(()) => turns += 1,
                    Err(LockError::Busy { .. }) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
            turns
        });
    }
    while let Some(done) = tasks.join_next().await {
        assert!(done.expect("no panic") > 0);
    }
    until_at_rest(&scene.one, LEASE).await;
    until_at_rest(&scene.two, LEASE).await;
    assert_eq!(scene.server.command::<u32>(&["DBSIZE"]), 0);
}

/// testLockIsNotRenewedAfterInterruptedTryLock
#[tokio::test]
async fn a_call_that_is_dropped_leaves_nothing_that_is_renewed() {
    let scene = scene().await;
    for n in 0..20 {
        let call = scene.one.lock("k").acquire();
        let _ = timeout(Duration::from_micros(50 * n), call).await;
    }
    until_at_rest(&scene.one, LEASE * 5).await;
    assert!(!scene.server.exists("k"));
    sleep(LEASE * 3 / 2).await;
    assert!(!scene.server.exists("k"));
}

/// testRedisFailed
#[tokio::test]
async fn a_server_that_is_stopped_is_unavailable() {
    let mut scene = scene().await;
    scene.server.kill();
    match scene.one.lock("k").wait(LEASE / 2).acquire().await {
        Err(LockError::Unavailable { .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// testRemainTimeToLive, testRemainTimeToLive2
#[tokio::test]
async fn it_expires_with_its_lease_and_is_gone_after_its_release() {
    let scene = scene().await;
    let hour = scene.one.lock("k").lease(Duration::from_secs(3600)).acquire().await.expect("free");
    assert!((3_590_000..=3_600_000).contains(&scene.server.pttl("k")));
    hour.release().await.expect("held");
    assert_eq!(scene.server.pttl("k"), -2);

    let ten = scene.one.lock("k").lease(LEASE * 10);
    let body = async {
        for _ in 0..2 {
            ten.run(async {}).await.expect("its own");
        }
        scene.server.pttl("k")
    };
    assert!((9_000..=10_000).contains(&ten.run(body).await.expect("free")));
    let _guard = scene.one.lock("k").acquire().await.expect("free");
    assert!((1..=1000).contains(&scene.server.pttl("k")), "that of the watchdog");
}

/// `RedissonLockExpirationRenewalTest.testLockAfterTimeout`
#[tokio::test]
async fn after_a_restart_the_old_hold_is_lost_and_a_new_one_renewed() {
    let mut scene = scene().await;
    let old = scene.one.lock("k").acquire().await.expect("free");
    scene.server.restart();
    // Until then it would be unavailable.
    scene.one.lock("other").run(async {}).await.expect("connected again");
    assert!(matches!(old.release().await, Err(LockError::Lost { .. })));
    let guard = scene.one.lock("k").acquire().await.expect("free");
    sleep(LEASE * 5 / 2).await;
    assert!(guard.is_held() && scene.server.pttl("k") > 0);
    guard.release().await.expect("held");
}

/// `RedissonLockExpirationRenewalTest.testLockReentrantRenew`
#[tokio::test]
async fn after_a_hold_that_was_taken_again_the_next_is_renewed() {
    let scene = scene().await;
    let again = scene.one.lock("k");
    scene
        .one
        .lock("k")
        .run(async { again.run(async {}).await })
        .await
        .expect("free")
        .expect("its own");
    let guard = scene.one.lock("k").acquire().await.expect("free");
    let (start, owners) = (Instant::now(), scene.owners());
    while start.elapsed() < LEASE * 10 {
        sleep(LEASE / 10).await;
        assert!(guard.is_held());
        assert_eq!(scene.owners(), owners);
        assert!((1..=1000).contains(&scene.server.pttl("k")));
    }
    guard.release().await.expect("held");
    assert!(!scene.server.exists("k"));
}

/// `RedissonLockHeavyTest.lockUnlockRLock`, at the smaller of its sizes.
#[tokio::test]
async fn tasks_at_thousands_of_names_are_done_in_the_end_and_leave_nothing() {
    work_through_names(false).await;
}

/// `RedissonLockHeavyTest.tryLockUnlockRLock`, likewise.
#[tokio::test]
async fn tasks_that_try_thousands_of_names_are_done_in_the_end_and_leave_nothing() {
    work_through_names(true).await;
}

/// Tasks of two clients go through the same names and count at each of them, as no two may at once.
async fn work_through_names(tries: bool) {
    let (scene, tasks) = (scene().await, 4);
    let counts: Arc<Vec<AtomicU32>> = Arc::new((0..5000).map(|_| AtomicU32::new(0)).collect());
    let mut working = JoinSet::new();
    for n in 0..tasks {
        let client = if n % 2 == 0 { scene.one.clone() } else { scene.two.clone() };
        let counts = Arc::clone(&counts);
        working.spawn(async move {
            let mut taken = 0;
            for (name, count) in counts.iter().enumerate() {
                let lock = client.lock(name.to_string()).wait(LEASE * 60);
                let work = async {
                    let before = count.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    count.store(before + 1, Ordering::SeqCst);
                };
                if !tries {
                    lock.run(work).await.expect("in turn");
                    taken += 1;
                } else if let Some(guard) = lock.try_acquire().await.expect("up") {
                    work.await;
                    guard.release().await.expect("held");
                    taken += 1;
                }
            }
            taken
        });
    }
    let mut taken: u32 = 0;
    while let Some(done) = working.join_next().await {
        taken += done.expect("no panic");
    }
    let counted = counts.iter().map(|count| count.load(Ordering::SeqCst));
    assert!(counted.clone().all(|count| tries && count > 0 || count == tasks));
    assert_eq!(counted.sum::<u32>(), taken);
    until_at_rest(&scene.one, LEASE).await;
    until_at_rest(&scene.two, LEASE).await;
    assert_eq!(scene.server.command::<u32>(&["DBSIZE"]), 0);
}

#[tokio::test]
async fn a_waiting_thread_of_java_is_woken_by_our_release() {
    let scene = scene().await;
    for key in ["k", "{user:7}:cart"] {
        let java = Java::new(&scene.server, key, 1);
        let heard = java.listen(&scene.server);
        let guard = scene.one.lock(key).acquire().await.expect("free");
        guard.release().await.expect("held");
        assert_eq!(heard.join().expect("no panic"), "0");
    }
}

#[tokio::test]
async fn ours_is_woken_by_the_unlock_of_java() {
    let scene = scene().await;
    let mut java = scene.java(1);
    assert!(java.lock(LEASE * 20).is_none());
    let waiter = scene.waiter("k").await;
    let released = Instant::now();
    assert_eq!(java.release(), Some(1));
    let (_guard, at) = waiter.await.expect("no panic").expect("woken");
    let got = at - released;
    assert!(got < WOKEN, "{got:?}");
}

/// A thread that waits in Java has its turns long before the tasks of this process are all done.
#[tokio::test]
async fn a_turn_of_this_process_ends_when_java_waits() {
    let scene = scene().await;
    let mut java = scene.server.connection();
    let mut messages = java.as_pubsub();
    messages.subscribe("redisson_lock__channel:{k}").expect("a reply");
    messages.set_read_timeout(Some(LEASE)).expect("a plain socket");
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let lock = scene.one.lock("k");
        tasks.spawn(async move { lock.run(async { sleep(Duration::from_millis(2)).await }).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic").expect("in turn");
    }
    // A turn is 32 holds at the most, or twice that until it is known that somebody waits. They are
    // counted rather than timed.
    let turns = scene.server.calls("publish");
    assert!(turns >= 3, "{turns} in a hundred holds");
    for _ in 0..turns {
        let message = messages.get_message().expect("told");
        assert_eq!(message.get_payload::<String>().expect("text"), "0");
    }
}

#[tokio::test]
async fn their_renewal_keeps_ours_out() {
    let scene = scene().await;
    let mut java = scene.java(1);
    assert!(java.lock(LEASE).is_none());
    let start = Instant::now();
    while start.elapsed() < LEASE * 3 {
        assert!(!is_free(&scene.one).await);
        assert!(java.renew());
        sleep(LEASE / 10).await;
    }
    assert_eq!(java.release(), Some(1));
}

/// One of theirs that somebody has made to last for ever.
#[tokio::test]
async fn a_lock_without_expiry_is_waited_for_and_named() {
    let scene = scene().await;
    let mut java = scene.java(1);
    assert!(java.lock(LEASE).is_none());
    scene.server.tell(&["PERSIST", "k"]);
    match scene.one.lock("k").wait(LEASE / 2).acquire().await {
        Err(LockError::Busy { holder: Holder::NoExpiry, .. }) => {}
        other => panic!("{other:?}"),
    }
    let waiter = scene.waiter("k").await;
    assert_eq!(java.release(), Some(1));
    drop(waiter.await.expect("no panic").expect("woken"));
}

/// Out of memory nothing is taken, and what is held stays so.
#[tokio::test]
async fn a_server_that_is_out_of_memory_still_renews_and_releases() {
    let scene = scene().await;
    let guard = scene.one.lock("k").acquire().await.expect("free");
    scene.server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    match scene.one.lock("other").wait(LEASE / 4).acquire().await {
        Err(LockError::Unavailable { cause, .. }) => assert!(cause.contains("OOM"), "{cause}"),
        other => panic!("{other:?}"),
    }
    sleep(LEASE * 2).await;
    guard.release().await.expect("held");
    assert!(!scene.server.exists("k"));
}
