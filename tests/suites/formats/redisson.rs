//! The plain lock of Redisson, shared with Java: the tests of Redisson itself, as far as they
//! apply.
//!
//! The comment of a test names the Redisson test whose assertions it has. That test is in
//! `RedissonLockTest` unless the comment names another class. Tests of threads use tasks here, and
//! tests of the hold count use nested bodies. Tests that do not apply are left out: interrupted
//! threads (`testLockUninterruptibly`), keyspace events (`testLockListener`), clusters
//! (`testInCluster`, `testLockFailoverInCluster`), and the restarts of
//! `RedissonLockExpirationRenewalTest` with read and write locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::{Holder, HolderKind, LockClient, LockError, LostReason, WireFormat};
use lock_tests::support::until_idle;
use lock_tests::{RedisServer, running_time, running_time_between};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::peers::Java;
use super::{FormatFixture, WOKEN, builder, connect, is_free};
use crate::support::{LEASE, helper, milliseconds, until};

async fn fixture() -> FormatFixture {
    FormatFixture::new(WireFormat::Redisson).await
}

impl FormatFixture {
    fn java(&self, thread: u64) -> Java {
        Java::new(&self.server, "k", thread)
    }

    /// The fields of the lock: its owners and their hold counts.
    fn owners(&self) -> Vec<(String, i64)> {
        self.server.command(&["HGETALL", "k"])
    }
}

#[tokio::test]
async fn a_lock_is_a_hash_of_its_owner() {
    let fixture = fixture().await;
    let mut owners = Vec::new();
    for client in [&fixture.one, &fixture.one, &fixture.two] {
        let guard = client.lock("k").acquire().await.expect("free");
        let [(owner, count)] = &fixture.owners()[..] else { panic!("{:?}", fixture.owners()) };
        assert_eq!(*count, 1);
        let (uuid, number) = owner.split_once(':').expect("a colon");
        assert_eq!(uuid.len(), 36);
        assert!(number.parse::<i64>().is_ok_and(|number| number > 0), "{number}");
        owners.push((uuid.to_owned(), number.to_owned()));
        guard.release().await.expect("held");
    }
    assert_eq!(owners[0].0, owners[1].0, "the UUID of the client");
    assert_ne!(owners[0].0, owners[2].0);
    assert!(owners[0].1 != owners[1].1 && owners[1].1 != owners[2].1, "one number per hold");
}

/// testLockUnlock
#[tokio::test]
async fn a_lock_can_be_acquired_repeatedly() {
    let fixture = fixture().await;
    for _ in 0..2 {
        fixture.one.lock("k").run(async {}).await.expect("free");
        assert!(fixture.java(1).lock(LEASE).is_none() && fixture.java(1).release() == Some(1));
    }
}

/// testReentrancy, testGetHoldCount. This library counts nested holds in the process.
#[tokio::test]
async fn nested_holds_are_not_counted_in_redis() {
    let fixture = fixture().await;
    let body = async {
        let outer = fixture.owners();
        fixture
            .one
            .lock("k")
            .run(async { assert_eq!(fixture.owners(), outer) })
            .await
            .expect("shared");
        assert_eq!(outer.len(), 1);
        assert_eq!(outer[0].1, 1);
        assert!(fixture.java(1).lock(LEASE).is_some(), "the outer hold continues");
    };
    fixture.one.lock("k").run(body).await.expect("free");
    assert_eq!(fixture.owners(), []);
}

/// The same for a thread of Redisson, which counts nested holds in Redis.
#[tokio::test]
async fn a_lock_that_a_java_thread_holds_twice_is_free_after_the_second_release() {
    let fixture = fixture().await;
    let mut java = fixture.java(1);
    assert!(java.lock(LEASE * 10).is_none() && java.lock(LEASE * 10).is_none());
    assert_eq!(java.release(), Some(0));
    assert!(!is_free(&fixture.one).await);
    assert_eq!(java.release(), Some(1));
    assert!(is_free(&fixture.one).await);
}

/// testIsLocked, testIsLockedOtherThread, testIsHeldByCurrentThread(OtherThread)
#[tokio::test]
async fn java_sees_whether_a_lock_is_held_and_by_which_thread() {
    let fixture = fixture().await;
    let (mut one, mut two) = (fixture.java(1), fixture.java(2));
    assert_eq!(one.state(), (false, false));
    let guard = fixture.one.lock("k").acquire().await.expect("free");
    assert_eq!(one.state(), (true, false));
    guard.release().await.expect("held");
    assert_eq!(one.state(), (false, false));
    assert!(one.lock(LEASE * 10).is_none());
    assert_eq!((one.state(), two.state()), ((true, true), (true, false)));
    assert!(!is_free(&fixture.one).await);
    assert_eq!(one.release(), Some(1));
}

/// testUnlockFail
#[tokio::test]
async fn java_cannot_release_or_renew_a_lock_of_this_library() {
    let fixture = fixture().await;
    let guard = fixture.one.lock("k").acquire().await.expect("free");
    assert_eq!(fixture.java(1).release(), None);
    assert!(!fixture.java(1).renew());
    assert_eq!(fixture.owners().len(), 1);
    guard.release().await.expect("held");
}

/// testForceUnlock
#[tokio::test]
async fn a_forced_unlock_by_java_is_a_loss_and_wakes_a_waiter() {
    let fixture = fixture().await;
    let lock = fixture.one.lock("k");
    let body = tokio::spawn(async move { lock.run(std::future::pending::<()>()).await });
    assert!(until(LEASE * 10, || fixture.server.exists("k")).await.is_some());
    let waiter = fixture.waiter("k").await;
    let forced = Instant::now();
    assert!(fixture.java(1).force_unlock());
    let (guard, got) = waiter.await.expect("no panic").expect("free");
    let took = running_time_between(forced, got);
    assert!(took < WOKEN, "{took:?}");
    match body.await.expect("no panic") {
        // The holder may look before the waiter has the lock, or after that.
        Err(LockError::Lost { reason: LostReason::Gone | LostReason::Taken, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(running_time(forced) < LEASE, "{:?}", forced.elapsed());
    assert!(guard.is_held() && fixture.owners().len() == 1);
    guard.release().await.expect("held");
    assert!(!fixture.java(1).force_unlock());
}

/// testExpire. In that test, the waiter has the lock within 2.02 s of the beginning of a lease of 2
/// s, which is at most 1 % late. Here, half a second is a margin for a busy machine, and for the random
/// delay of up to 30 ms that spreads the attempts of clients.
#[tokio::test]
async fn a_waiter_gets_the_lock_when_the_lease_ends_and_the_late_unlock_fails() {
    let fixture = fixture().await;
    let mut java = fixture.java(1);
    let start = Instant::now();
    let lease = LEASE * 15;
    assert!(java.lock(lease).is_none());
    let guard = fixture.one.lock("k").acquire().await.expect("free after the lease");
    let taken = start.elapsed();
    assert!(taken + Duration::from_millis(2) >= lease, "{taken:?}");
    assert!(running_time(start + lease) < LEASE / 2, "{taken:?}");
    assert_eq!(java.release(), None);
    guard.release().await.expect("held");

    let stale = fixture.one.lock("k").lease(LEASE / 2).acquire().await.expect("free");
    assert!(until(LEASE * 10, || java.lock(LEASE * 2).is_none()).await.is_some());
    assert!(matches!(stale.release().await, Err(LockError::Lost { .. })));
    assert_eq!(java.release(), Some(1));
}

/// testAutoExpire
#[tokio::test]
async fn the_lock_of_a_killed_process_is_free_for_java_within_its_lease() {
    let fixture = fixture().await;
    let mut holder =
        helper(&["hold", &fixture.server.url(), "k", &milliseconds(LEASE), "Redisson"]);
    assert_eq!(holder.line(), "held");
    // The lease is renewed until the process is killed.
    sleep(LEASE * 2).await;
    holder.kill();
    let mut java = fixture.java(1);
    assert!(java.lock(LEASE).is_some(), "the lease has not ended yet");
    let free = until(LEASE * 2, || java.lock(LEASE).is_none()).await.expect("free after the lease");
    assert!(free <= LEASE * 3 / 2, "{free:?}");
}

/// testTryLockWait
#[tokio::test]
async fn a_wait_that_runs_out_takes_the_time_that_was_set() {
    let fixture = fixture().await;
    assert!(fixture.java(1).lock(LEASE * 20).is_none());
    let start = Instant::now();
    match fixture.one.lock("k").wait(LEASE * 3).acquire().await {
        Err(LockError::Busy {
            holder: Holder { kind: HolderKind::Elsewhere, lease_left: Some(_), .. },
            ..
        }) => {}
        other => panic!("{other:?}"),
    }
    let (waited, running) = (start.elapsed(), running_time(start));
    assert!(waited >= LEASE * 3 && running < LEASE * 4, "{waited:?}");
}

/// testConcurrency_SingleInstance, with a check of exclusion.
#[tokio::test]
async fn fifteen_tasks_of_one_client_count_exactly() {
    let fixture = fixture().await;
    assert_eq!(count(std::slice::from_ref(&fixture.one), 15, 1).await, 15);
}

/// testConcurrency_MultiInstance
#[tokio::test]
async fn a_hundred_clients_count_exactly() {
    let server = RedisServer::start();
    let mut clients = Vec::new();
    for _ in 0..100 {
        // A hundred clients have two hundred threads, and the leases are not what is tested.
        let client = builder(&server.url(), WireFormat::Redisson).lease(LEASE * 10);
        clients.push(client.connect().await.expect("up"));
    }
    assert_eq!(count(&clients, 100, 1).await, 100);
}

/// testConcurrencyLoop_MultiInstance: 16 clients, 100 times each.
#[tokio::test]
async fn sixteen_clients_that_loop_count_exactly() {
    let server = RedisServer::start();
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(connect(WireFormat::Redisson, &server).await);
    }
    assert_eq!(count(&clients, 16, 100).await, 1600);
    assert!(!server.exists("k"));
}

/// Distributes `tasks` tasks over these clients. Each increments an unguarded number `times` times.
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
                .expect("granted");
            }
        });
    }
    while let Some(counted) = counting.join_next().await {
        counted.expect("no panic");
    }
    number.load(Ordering::SeqCst)
}

/// testConcurrencyTryLockUnLock, together with threads of Java. No call fails, there is one holder
/// at a time, and the client counts its holds as held, so that it renews them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_and_java_threads_never_hold_the_lock_at_once() {
    let fixture = fixture().await;
    let inside = Arc::new(AtomicU32::new(0));
    let enter = |inside: &AtomicU32| {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    let enter_and_check = move |inside: &AtomicU32, client: &LockClient| {
        enter(inside);
        assert!(client.stats().held >= 1);
    };
    let threads = (1..=4).map(|n| {
        let (mut java, inside) = (fixture.java(n), Arc::clone(&inside));
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
    let mut tasks = JoinSet::new();
    for n in 0..4 {
        let client = if n % 2 == 0 { fixture.one.clone() } else { fixture.two.clone() };
        let (lock, inside) = (client.lock("k").wait(LEASE * 60), Arc::clone(&inside));
        tasks.spawn(async move {
            for _ in 0..100 {
                if let Some(guard) = lock.try_acquire().await.expect("up") {
                    enter_and_check(&inside, &client);
                    guard.release().await.expect("held");
                }
                lock.run(async { enter_and_check(&inside, &client) }).await.expect("granted");
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    let taken: u32 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    assert!(taken > 0, "the threads never got the lock");
    assert!(!fixture.server.exists("k"));
}

/// testSubscriptionsPerConnection
#[tokio::test]
async fn many_waiters_for_a_few_keys_all_succeed_and_leave_no_subscription() {
    let fixture = fixture().await;
    let mut java = Java::new(&fixture.server, "0", 1);
    assert!(java.lock(LEASE * 60).is_none());
    let mut tasks = JoinSet::new();
    for task in 0..32 {
        let client = if task % 2 == 0 { fixture.one.clone() } else { fixture.two.clone() };
        tasks.spawn(async move {
            for job in 0..160 {
                let lock = client.lock(((task + job) % 5).to_string());
                lock.run(tokio::task::yield_now()).await.expect("granted");
            }
        });
    }
    let channels = || fixture.server.channels("*");
    let waited_for = || channels().contains(&"redisson_lock__channel:{0}".into());
    assert!(until(LEASE * 10, waited_for).await.is_some(), "no task waits");
    assert_eq!(java.release(), Some(1));
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
    assert!(until(LEASE * 10, || channels().is_empty()).await.is_some(), "{:?}", channels());
}

/// testSinglePubSub, in which all subscriptions of a client share one connection, as in this
/// library.
#[tokio::test]
async fn short_waits_for_a_few_keys_end_with_a_grant_or_busy() {
    let fixture = fixture().await;
    let mut tasks = JoinSet::new();
    for task in 0..4 {
        let client = if task % 2 == 0 { fixture.one.clone() } else { fixture.two.clone() };
        tasks.spawn(async move {
            let mut done = 0;
            for job in 0..100 {
                let lock = client.lock(((task + job) % 3).to_string()).wait(LEASE / 2);
                match lock.run(sleep(LEASE / 500)).await {
                    Ok(()) => done += 1,
                    Err(LockError::Busy { .. }) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
            done
        });
    }
    while let Some(done) = tasks.join_next().await {
        assert!(done.expect("no panic") > 0);
    }
    until_idle(&fixture.one, LEASE).await;
    until_idle(&fixture.two, LEASE).await;
    assert_eq!(fixture.server.key_count(), 0);
}

/// testLockIsNotRenewedAfterInterruptedTryLock
#[tokio::test]
async fn a_dropped_call_leaves_nothing_that_is_renewed() {
    let fixture = fixture().await;
    for n in 0..20 {
        let call = fixture.one.lock("k").acquire();
        let _ = timeout(Duration::from_micros(50 * n), call).await;
    }
    until_idle(&fixture.one, LEASE * 5).await;
    assert!(!fixture.server.exists("k"));
    sleep(LEASE * 3 / 2).await;
    assert!(!fixture.server.exists("k"));
}

/// testRedisFailed
#[tokio::test]
async fn a_server_that_is_stopped_is_unavailable() {
    let mut fixture = fixture().await;
    fixture.server.kill();
    match fixture.one.lock("k").wait(LEASE / 2).acquire().await {
        Err(LockError::Unavailable { .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// testRemainTimeToLive, testRemainTimeToLive2
#[tokio::test]
async fn the_key_expires_with_its_lease_and_is_gone_after_its_release() {
    let fixture = fixture().await;
    let hour =
        fixture.one.lock("k").lease(Duration::from_secs(3600)).acquire().await.expect("free");
    assert!((3_590_000..=3_600_000).contains(&fixture.server.pttl("k")));
    hour.release().await.expect("held");
    assert_eq!(fixture.server.pttl("k"), -2);

    let ten = fixture.one.lock("k").lease(LEASE * 10);
    let body = async {
        for _ in 0..2 {
            ten.run(async {}).await.expect("shared");
        }
        fixture.server.pttl("k")
    };
    assert!((9_000..=10_000).contains(&ten.run(body).await.expect("free")));
    let _guard = fixture.one.lock("k").acquire().await.expect("free");
    assert!((1..=1000).contains(&fixture.server.pttl("k")), "the lease of the client");
}

/// `RedissonLockExpirationRenewalTest.testLockAfterTimeout`
#[tokio::test]
async fn after_a_restart_the_old_hold_is_lost_and_a_new_hold_is_renewed() {
    let mut fixture = fixture().await;
    let old = fixture.one.lock("k").acquire().await.expect("free");
    fixture.server.restart();
    // Waits until the client is connected again.
    fixture.one.lock("other").run(async {}).await.expect("connected again");
    assert!(matches!(old.release().await, Err(LockError::Lost { .. })));
    let guard = fixture.one.lock("k").acquire().await.expect("free");
    sleep(LEASE * 5 / 2).await;
    assert!(guard.is_held() && fixture.server.pttl("k") > 0);
    guard.release().await.expect("held");
}

/// `RedissonLockExpirationRenewalTest.testLockReentrantRenew`
#[tokio::test]
async fn a_hold_after_nested_holds_is_renewed() {
    let fixture = fixture().await;
    let again = fixture.one.lock("k");
    fixture
        .one
        .lock("k")
        .run(async { again.run(async {}).await })
        .await
        .expect("free")
        .expect("shared");
    let guard = fixture.one.lock("k").acquire().await.expect("free");
    let (start, owners) = (Instant::now(), fixture.owners());
    while start.elapsed() < LEASE * 10 {
        sleep(LEASE / 10).await;
        assert!(guard.is_held());
        assert_eq!(fixture.owners(), owners);
        assert!((1..=1000).contains(&fixture.server.pttl("k")));
    }
    guard.release().await.expect("held");
    assert!(!fixture.server.exists("k"));
}

/// `RedissonLockHeavyTest.lockUnlockRLock`, with the smaller of its sizes.
#[tokio::test]
async fn tasks_that_lock_thousands_of_keys_all_finish_and_leave_nothing() {
    work_through_names(false).await;
}

/// `RedissonLockHeavyTest.tryLockUnlockRLock`, with the smaller of its sizes.
#[tokio::test]
async fn tasks_that_try_thousands_of_keys_all_finish_and_leave_nothing() {
    work_through_names(true).await;
}

/// Tasks of two clients lock each of the same names in turn, and increment an unguarded counter per
/// name.
async fn work_through_names(tries: bool) {
    let (fixture, tasks) = (fixture().await, 4);
    let counts: Arc<Vec<AtomicU32>> = Arc::new((0..5000).map(|_| AtomicU32::new(0)).collect());
    let mut working = JoinSet::new();
    for n in 0..tasks {
        let client = if n % 2 == 0 { fixture.one.clone() } else { fixture.two.clone() };
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
                    lock.run(work).await.expect("granted");
                    taken += 1;
                    continue;
                }
                let guard = match lock.try_acquire().await {
                    // On a busy machine, the answer to another task of this process may be late.
                    Err(LockError::Unavailable { cause, .. }) if cause.contains("not answered") => {
                        continue;
                    }
                    answer => answer.expect("up"),
                };
                if let Some(guard) = guard {
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
    until_idle(&fixture.one, LEASE).await;
    until_idle(&fixture.two, LEASE).await;
    assert_eq!(fixture.server.key_count(), 0);
}

#[tokio::test]
async fn a_waiting_java_thread_is_woken_by_a_release() {
    let fixture = fixture().await;
    for key in ["k", "{user:7}:cart"] {
        let java = Java::new(&fixture.server, key, 1);
        let heard = java.listen(&fixture.server);
        let guard = fixture.one.lock(key).acquire().await.expect("free");
        guard.release().await.expect("held");
        assert_eq!(heard.join().expect("no panic"), "0");
    }
}

#[tokio::test]
async fn a_waiter_is_woken_by_an_unlock_of_java() {
    let fixture = fixture().await;
    let mut java = fixture.java(1);
    assert!(java.lock(LEASE * 20).is_none());
    let waiter = fixture.waiter("k").await;
    let released = Instant::now();
    assert_eq!(java.release(), Some(1));
    let (_guard, at) = waiter.await.expect("no panic").expect("woken");
    let got = running_time_between(released, at);
    assert!(got < WOKEN, "{got:?}");
}

/// A waiting thread of Java gets the lock long before all tasks of this process have had it.
#[tokio::test]
async fn a_tenure_of_this_process_ends_when_java_waits() {
    let fixture = fixture().await;
    let mut java = fixture.server.connection();
    let mut messages = java.as_pubsub();
    messages.subscribe("redisson_lock__channel:{k}").expect("a reply");
    messages.set_read_timeout(Some(LEASE)).expect("a plain socket");
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let lock = fixture.one.lock("k");
        tasks.spawn(async move { lock.run(async { sleep(Duration::from_millis(2)).await }).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic").expect("granted");
    }
    // The handoff limit is 32 holds, or twice that until the process learns that another process
    // waits. The releases are counted, because their times depend on the machine.
    let releases = fixture.server.calls("publish");
    assert!(releases >= 3, "{releases} releases in a hundred holds");
    for _ in 0..releases {
        let message = messages.get_message().expect("published");
        assert_eq!(message.get_payload::<String>().expect("text"), "0");
    }
}

#[tokio::test]
async fn a_lock_that_java_renews_stays_busy() {
    let fixture = fixture().await;
    let mut java = fixture.java(1);
    assert!(java.lock(LEASE).is_none());
    let start = Instant::now();
    while start.elapsed() < LEASE * 3 {
        assert!(!is_free(&fixture.one).await);
        assert!(java.renew());
        sleep(LEASE / 10).await;
    }
    assert_eq!(java.release(), Some(1));
}

/// The expiry of a lock of Java was removed.
#[tokio::test]
async fn a_lock_without_expiry_is_busy_and_the_error_says_why() {
    let fixture = fixture().await;
    let mut java = fixture.java(1);
    assert!(java.lock(LEASE).is_none());
    fixture.server.tell(&["PERSIST", "k"]);
    match fixture.one.lock("k").wait(LEASE / 2).acquire().await {
        Err(LockError::Busy { holder: Holder { kind: HolderKind::NoExpiry, .. }, .. }) => {}
        other => panic!("{other:?}"),
    }
    let waiter = fixture.waiter("k").await;
    assert_eq!(java.release(), Some(1));
    drop(waiter.await.expect("no panic").expect("woken"));
}

/// A server that is out of memory grants no new locks, but renews and releases held ones.
#[tokio::test]
async fn a_server_that_is_out_of_memory_still_renews_and_releases() {
    let fixture = fixture().await;
    let guard = fixture.one.lock("k").acquire().await.expect("free");
    fixture.server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    match fixture.one.lock("other").wait(LEASE / 4).acquire().await {
        Err(LockError::Unavailable { cause, .. }) => assert!(cause.contains("OOM"), "{cause}"),
        other => panic!("{other:?}"),
    }
    sleep(LEASE * 2).await;
    guard.release().await.expect("held");
    assert!(!fixture.server.exists("k"));
}
