//! Fairness between processes, and hand-offs inside a process.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use lock_runtime::{Identity, LockClient, LockError, LockGuard, LostReason, WireFormat};
use lock_tests::{Proxy, RedisServer, Toward, within};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LEASE, client, client_with_lease, until, until_idle};

/// Tasks of one process that acquire one lock in a loop.
struct Contenders {
    stop: Arc<AtomicBool>,
    grants: Arc<AtomicU64>,
    tasks: JoinSet<Result<(), LockError>>,
}

impl Contenders {
    async fn start(client: &LockClient, tasks: usize, work: Duration) -> Self {
        let (stop, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut contenders = Self { stop, grants, tasks: JoinSet::new() };
        for _ in 0..tasks {
            let (stop, grants) = (Arc::clone(&contenders.stop), Arc::clone(&contenders.grants));
            let lock = client.lock("k");
            contenders.tasks.spawn(async move {
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
        let busy = until(LEASE * 5, || contenders.grants() > tasks as u64 * 10).await;
        assert!(busy.is_some() || !work.is_zero(), "the tasks acquire the lock");
        contenders
    }

    fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    async fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(task) = self.tasks.join_next().await {
            task.expect("no panic").expect("the server is up");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_process_lets_another_process_acquire_the_lock() {
    let server = RedisServer::start();
    let (busy, other) = (client(&server.url()).await, client(&server.url()).await);
    let contenders = Contenders::start(&busy, 8, Duration::ZERO).await;
    for _ in 0..20 {
        let acquired = within(LEASE * 2, other.lock("k").acquire()).await;
        let guard = acquired.expect("the other process gets the lock").expect("the server is up");
        guard.release().await.expect("held");
    }
    contenders.stop().await;
    until_idle(&busy, LEASE * 5).await;
    assert!(!server.exists("k"));
}

/// The shortest and the longest time for which a process yields a key to other processes.
const SHORTEST_YIELD: Duration = Duration::from_millis(2);
const LONGEST_YIELD: Duration = Duration::from_millis(50);
/// The time for which a process does not yield after the longest yield was in vain.
const NO_YIELD: Duration = Duration::from_secs(1);

/// Whether a process with a long round trip takes the key in time depends on the machine. The
/// promise is that the near process yields the key: for 50 ms after two shorter yields, and again
/// after each second without yields.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_with_a_long_round_trip_gets_its_share() {
    // The key is free only for a small part of the time.
    const HOLD: Duration = LEASE.checked_div(10).expect("not by zero");
    // Twice the holds in the time without yields, because releases of other processes are seen
    // late.
    const MOST_IN_A_ROW: u128 = 2 * NO_YIELD.as_millis() / HOLD.as_millis();

    let server = RedisServer::start();
    server.tell(&["ACL", "SETUSER", "far", "on", "nopass", "~*", "&*", "+@all"]);
    let proxy = Proxy::to(server.port());
    proxy.delay(Toward::Server, LEASE / 100);
    proxy.delay(Toward::Client, LEASE / 100);
    // The long lease leaves enough time for replies on a busy machine.
    let lease = LEASE * 30;
    let near = client_with_lease(&server.url(), lease).await.lock("k");
    let near = near.wire_format(WireFormat::Redisson);
    let far = proxy.url().replace("://", "://far:any@");
    let far = LockClient::builder().url(far).lease(lease).wire_format(WireFormat::Redisson);
    // It subscribes to nothing else.
    let far = far.identity(Identity::none()).connect().await.expect("up");
    let far = Contenders::start(&far, 1, LEASE / 1000).await;
    let far_listens = || {
        let clients: String = server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        let is_subscribed =
            |client: &str| client.contains(" sub=1 ") || client.contains(" ssub=1 ");
        clients.lines().any(|client| client.contains(" user=far ") && is_subscribed(client))
    };

    let sharing = async {
        let (mut shares, mut in_a_row) = (0, 0);
        let mut guard = near.acquire().await.expect("granted");
        // A few are those of a busy machine, on which the near process is late.
        while shares < 32 {
            sleep(HOLD).await;
            let unsubscriptions = || server.calls("unsubscribe") + server.calls("sunsubscribe");
            let mut unsubscribed = unsubscriptions();
            while !far_listens() {
                sleep(HOLD / 10).await;
                unsubscribed = unsubscriptions();
            }
            let (before, released) = (far.grants(), Instant::now());
            guard.release().await.expect("held");
            let asked = released.elapsed();
            guard = near.acquire().await.expect("granted");
            let (yielded, was_shared) = (released.elapsed(), far.grants() > before);
            shares += u32::from(was_shared);
            // If the near process asks later than this, it has already yielded for the shortest
            // time.
            let owed = asked < SHORTEST_YIELD && unsubscriptions() == unsubscribed;
            let passed_over = owed && !was_shared && yielded < LONGEST_YIELD;
            in_a_row = if passed_over { in_a_row + 1 } else { 0 };
            assert!(in_a_row <= MOST_IN_A_ROW, "its share: passed over {in_a_row} times in a row");
        }
        guard.release().await.expect("held");
    };
    within(LEASE * 60, sharing).await.expect("its share");
    far.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_offered_to_a_waiter_that_gives_up_goes_to_the_next_waiter() {
    let server = RedisServer::start();
    // The lease outlasts the test, so a key that is free was released.
    let client = client_with_lease(&server.url(), LEASE * 60).await;
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
        assert!(until(LEASE * 10, queued).await.is_some(), "all calls are queued");
        first.release().await.expect("handed off");
        // The lock is on offer to this waiter.
        drop(second);
        let all = timeout(LEASE * 5, async {
            while let Some(one) = behind.join_next().await {
                one.expect("no panic").expect("handed off to the next waiter");
            }
        });
        all.await.expect("well before the lease ends");
        until_idle(&client, LEASE * 5).await;
        assert!(!server.exists("k"), "the key still exists");
    }
}

/// Some tasks end just when the lock is handed off to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_tasks_that_end_at_any_time_leave_nothing() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let mut waiting = JoinSet::new();
    for n in 0..500 {
        let lock = client.lock("k").wait(LEASE * 8);
        let task = waiting.spawn(async move {
            let guard = lock.acquire().await?;
            sleep(LEASE / 1000).await;
            if n % 3 == 1 {
                // Drops the guard without a release.
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
    until_idle(&client, LEASE * 5).await;
    assert!(!server.exists("k"), "the key still exists");
}

/// A guard of the lock, and another task of the same process that waits for the lock.
async fn holder_and_waiter(
    client: &LockClient,
) -> (LockGuard, JoinHandle<Result<LockGuard, LockError>>) {
    let first = client.lock("k").acquire().await.expect("free");
    let second = tokio::spawn(client.lock("k").acquire());
    assert!(
        until(LEASE * 10, || client.stats().queued == 1).await.is_some(),
        "the second task is queued"
    );
    (first, second)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_deleted_before_a_hand_off_is_lost_for_the_next_holder() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (first, second) = holder_and_waiter(&client).await;
    server.tell(&["DEL", "k"]);
    first.release().await.expect("the loss is not yet known");
    let second = second.await.expect("no panic").expect("handed off");
    let reason = within(LEASE * 5, second.lost()).await.expect("by its next renewal");
    assert_eq!(reason, LostReason::Gone);
    assert!(matches!(second.release().await, Err(LockError::Lost { .. })));
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
}

/// The store has granted the second holder nothing, so it has no more time than the first holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_does_not_extend_the_lease() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (first, second) = holder_and_waiter(&client).await;
    server.freeze();
    sleep(LEASE / 4).await;
    let left = first.remaining();
    // An awaited release would ask the store whether others wait.
    drop(first);
    let second = second.await.expect("no panic").expect("handed off");
    assert!(second.remaining() <= left, "the lease got longer: {:?}", second.remaining());
    assert_eq!(timeout(LEASE * 5, second.lost()).await, Ok(LostReason::RenewalFailed));
    server.thaw();
}
