//! A lock that goes from hand to hand inside one process, and others that wait for it.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LockGuard, LostReason};
use lock_tests::{Proxy, RedisServer, Toward};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LEASE, client, until, until_at_rest};

/// Tasks of one process that want one lock all the time.
struct Crowd {
    stop: Arc<AtomicBool>,
    grants: Arc<AtomicU64>,
    tasks: JoinSet<Result<(), LockError>>,
}

impl Crowd {
    async fn gather(client: &LockClient, tasks: usize, work: Duration) -> Self {
        let (stop, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut crowd = Self { stop, grants, tasks: JoinSet::new() };
        for _ in 0..tasks {
            let (stop, grants) = (Arc::clone(&crowd.stop), Arc::clone(&crowd.grants));
            let lock = client.lock("k");
            crowd.tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let guard = lock.acquire().await?;
                    grants.fetch_add(1, Ordering::Relaxed);
                    if work.is_zero() {
                        tokio::task::yield_now().await;
                    } else {
                        sleep(work).await;
                    }
                    guard.release().await?;
                }
                Ok(())
            });
        }
        let busy = until(LEASE * 5, || crowd.grants() > tasks as u64 * 10).await;
        assert!(busy.is_some() || !work.is_zero(), "they are at it");
        crowd
    }

    fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    async fn leave(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(task) = self.tasks.join_next().await {
            task.expect("no panic").expect("the server is up");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_never_stops_lets_another_one_have_its_turn() {
    let server = RedisServer::start();
    let (busy, other) = (client(&server.url()).await, client(&server.url()).await);
    let crowd = Crowd::gather(&busy, 8, Duration::ZERO).await;
    for _ in 0..20 {
        let turn = timeout(LEASE * 2, other.lock("k").acquire()).await.expect("its turn");
        turn.expect("the server is up").release().await.expect("held");
    }
    crowd.leave().await;
    until_at_rest(&busy, LEASE).await;
    assert!(!server.exists("k"));
}

/// How long a process leaves a key alone for others that it has woken: at first, and at the most.
const SHORTEST_STEP: Duration = Duration::from_millis(2);
const LONGEST_STEP: Duration = Duration::from_millis(50);
/// How long it takes the others for deaf when the longest was in vain.
const DEAFNESS: Duration = Duration::from_secs(1);

/// Whether one that is far away takes the key in time is up to the machine. What is promised is that the
/// key is left alone for it: after two shorter steps back for 50 ms, and anew after each second in which
/// it was taken for deaf.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_far_away_gets_its_share() {
    // Its lock is free for a small part of the time.
    const HOLD: Duration = LEASE.checked_div(10).expect("not by zero");
    // Twice the holds of a deaf second, because what a process hears of others may come late.
    const MOST_IN_A_ROW: u128 = 2 * DEAFNESS.as_millis() / HOLD.as_millis();

    let server = RedisServer::start();
    server.tell(&["ACL", "SETUSER", "far", "on", "nopass", "~*", "&*", "+@all"]);
    let proxy = Proxy::to(server.port());
    proxy.delay(Toward::Server, LEASE / 100);
    proxy.delay(Toward::Client, LEASE / 100);
    // With time for answers also on a machine that is busy.
    let client = async |url: String| {
        let builder = LockClient::builder().url(url).watchdog(LEASE * 30).wait(LEASE * 60);
        builder.connect().await.expect("the server is up")
    };
    let near = client(server.url()).await.lock("k");
    let far = client(proxy.url().replace("redis://", "redis://far:any@")).await;
    let far = Crowd::gather(&far, 1, LEASE / 1000).await;
    let far_listens = || {
        let clients: String = server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        clients.lines().any(|client| client.contains(" user=far ") && client.contains(" sub=1 "))
    };

    let sharing = async {
        let (mut shares, mut in_a_row) = (0, 0);
        let mut guard = near.acquire().await.expect("its turn");
        while shares < 8 {
            sleep(HOLD).await;
            let mut unsubscribed = server.calls("unsubscribe");
            while !far_listens() {
                sleep(HOLD / 10).await;
                unsubscribed = server.calls("unsubscribe");
            }
            let (before, released) = (far.grants(), Instant::now());
            guard.release().await.expect("held");
            let asked = released.elapsed();
            guard = near.acquire().await.expect("its turn");
            let (left_alone, was_shared) = (released.elapsed(), far.grants() > before);
            shares += u32::from(was_shared);
            // One that asks later than that has given the time of a first step already.
            let owed = asked < SHORTEST_STEP && server.calls("unsubscribe") == unsubscribed;
            let passed_by = owed && !was_shared && left_alone < LONGEST_STEP;
            in_a_row = if passed_by { in_a_row + 1 } else { 0 };
            assert!(in_a_row <= MOST_IN_A_ROW, "its share: passed by {in_a_row} times in a row");
        }
        guard.release().await.expect("held");
    };
    timeout(LEASE * 60, sharing).await.expect("its share");
    far.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_those_who_wait_give_up_the_lock_goes_on() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for others in [0, 1, 10] {
        let first = client.lock("k").acquire().await.expect("free");
        let mut second = Box::pin(client.lock("k").acquire());
        let waits = poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending()));
        assert!(waits.await);
        let mut behind = JoinSet::new();
        for _ in 0..others {
            let lock = client.lock("k");
            behind.spawn(async move { lock.acquire().await?.release().await });
        }
        let queued = || client.stats().queued == 1 + others;
        assert!(until(LEASE, queued).await.is_some(), "they queue");
        first.release().await.expect("passed on");
        // It is in this one's hand.
        drop(second);
        // Long before its lease is over.
        let all = timeout(LEASE / 2, async {
            while let Some(one) = behind.join_next().await {
                one.expect("no panic").expect("goes on to them");
            }
        });
        all.await.expect("at once");
        until_at_rest(&client, LEASE / 4).await;
        assert!(!server.exists("k"), "the key is left");
    }
}

/// Some end just as the lock comes to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_who_give_up_at_any_time_leave_nothing() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let mut waiting = JoinSet::new();
    for n in 0..500 {
        let lock = client.lock("k").wait(LEASE * 8);
        let task = waiting.spawn(async move {
            let guard = lock.acquire().await?;
            sleep(LEASE / 1000).await;
            if n % 3 == 1 {
                // In the middle of its body.
                return Ok(());
            }
            guard.release().await
        });
        if n % 3 == 2 {
            tokio::spawn(async move {
                sleep(LEASE.mul_f64(fastrand::f64() / 3.0)).await;
                task.abort();
            });
        }
    }
    while let Some(task) = waiting.join_next().await {
        if let Ok(outcome) = task {
            outcome.expect("the server is up");
        }
    }
    until_at_rest(&client, LEASE * 5).await;
    assert!(!server.exists("k"), "the key is left");
}

/// One who has the lock, and another one of the same process who waits for it.
async fn holder_and_waiter(
    client: &LockClient,
) -> (LockGuard, JoinHandle<Result<LockGuard, LockError>>) {
    let first = client.lock("k").acquire().await.expect("free");
    let second = tokio::spawn(client.lock("k").acquire());
    assert!(until(LEASE, || client.stats().queued == 1).await.is_some(), "it queues");
    (first, second)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_deleted_is_lost_for_whoever_has_it_by_then() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (first, second) = holder_and_waiter(&client).await;
    server.tell(&["DEL", "k"]);
    first.release().await.expect("as far as anybody knows");
    let second = second.await.expect("no panic").expect("passed on");
    let reason = timeout(LEASE * 2 / 3, second.lost()).await.expect("by its next renewal");
    assert_eq!(reason, LostReason::Gone);
    assert!(matches!(second.release().await, Err(LockError::Lost { .. })));
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
}

/// The second of them was granted nothing by the store, and has as little time as the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_passed_on_lasts_no_longer_for_that() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (first, second) = holder_and_waiter(&client).await;
    server.freeze();
    sleep(LEASE / 4).await;
    let left = first.remaining();
    // Awaited, it would ask whether others wait.
    drop(first);
    let second = second.await.expect("no panic").expect("passed on");
    assert!(second.remaining() <= left, "it lasts longer: {:?}", second.remaining());
    assert_eq!(timeout(LEASE, second.lost()).await, Ok(LostReason::RenewalFailed));
    server.thaw();
}
