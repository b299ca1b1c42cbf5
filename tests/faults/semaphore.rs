//! Faults of semaphores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use lock_runtime::{Lock, LockClient, LockError};
use lock_tests::{Helper, Proxy, RedisServer, Toward, running_time, within};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    AcquireFuture, FaultFixture, LEASE, client, client_with_lease, kill_waiting, milliseconds,
    until, until_idle,
};
use crate::waits::{TRANSFER, assert_queued, held, its_turn, release, waiting};

/// Some of the permits of `k`.
fn permits(client: &LockClient, count: u32, limit: u32) -> Lock {
    client.semaphore("k", limit).permits(count).wait(LEASE * 60)
}

async fn is_free(lock: Lock) -> bool {
    let Some(guard) = lock.try_acquire().await.expect("up") else { return false };
    release(guard).await;
    true
}

/// A process that holds permits of `k`, or waits for them.
fn process(server: &RedisServer, lease: Duration, (count, limit): (u32, u32)) -> Helper {
    let (count, limit) = (count.to_string(), limit.to_string());
    let args = ["permits", &server.url(), "k", &milliseconds(lease), &count, &limit];
    Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args)
}

/// A process that holds permits of `k`.
fn holding_process(server: &RedisServer, lease: Duration, permits: (u32, u32)) -> Helper {
    let mut process = process(server, lease, permits);
    assert_eq!(process.line(), "held");
    process
}

/// A process that waits for permits of `k`.
async fn waiting_process(server: &RedisServer, permits: (u32, u32)) -> Helper {
    let before = server.queued("k");
    let process = process(server, LEASE * 60, permits);
    assert_queued(server, before + 1).await;
    process
}

#[tokio::test]
async fn permits_of_a_killed_holder_end_with_its_own_lease() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    let mut killed = holding_process(&server, LEASE * 3, (2, 3));
    let other = held(permits(&client, 1, 3)).await;
    let waits = waiting(&server, permits(&client, 2, 3)).await;
    killed.kill();
    let began = Instant::now();
    let next = its_turn(waits, LEASE * 20).await;
    let took = began.elapsed();
    assert!(running_time(began) < LEASE * 4, "its turn comes too late: {took:?}");
    assert!(took > LEASE, "before the end of the lease of the killed holder: {took:?}");
    assert!(other.is_held() && !is_free(permits(&client, 1, 3)).await);
    release(next).await;
    release(other).await;
    assert!(!server.exists("k"), "nothing is left");
}

#[tokio::test]
async fn a_killed_process_that_waited_for_many_permits_holds_nobody_back() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    let inside = held(permits(&client, 1, 3)).await;
    let mut killed = waiting_process(&server, (3, 3)).await;
    let waits = waiting(&server, permits(&client, 1, 3)).await;
    kill_waiting(&mut killed, &server).await;
    let began = Instant::now();
    release(its_turn(waits, LEASE * 20).await).await;
    let took = running_time(began);
    assert!(took < LEASE * 8, "its turn comes with the next check: {took:?}");
    assert!(inside.is_held() && is_free(permits(&client, 2, 3)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_process_that_waits_costs_the_others_one_transfer() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    // Another client, so that the permit is not passed on inside the process.
    let other = client_with_lease(&server.url(), LEASE * 60).await;
    let inside = held(permits(&other, 1, 1)).await;
    let suspended = waiting_process(&server, (1, 1)).await;
    let waits = waiting(&server, permits(&client, 1, 1)).await;
    suspended.freeze();
    release(inside).await;
    let began = Instant::now();
    let next = its_turn(waits, TRANSFER + LEASE * 10).await;
    let took = began.elapsed();
    assert!(took > TRANSFER / 2, "the suspended process has the permit: {took:?}");
    suspended.thaw();
    sleep(LEASE).await;
    assert!(next.is_held());
    release(next).await;
}

#[tokio::test]
async fn a_holder_suspended_past_its_lease_loses_all_permits() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    let suspended = holding_process(&server, LEASE, (2, 2));
    let waits = waiting(&server, permits(&client, 2, 2)).await;
    suspended.freeze();
    let next = its_turn(waits, LEASE * 20).await;
    suspended.thaw();
    // Its late renewal does not bring its permits back.
    sleep(LEASE).await;
    assert!(next.is_held() && !is_free(permits(&client, 1, 2)).await);
    assert_eq!(taken(&server), 2, "the next holder is the only one");
    release(next).await;
}

#[tokio::test]
async fn a_holder_that_cannot_reach_the_server_loses_its_permits_before_others_get_them() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let one = client(&proxy.url()).await;
    let two = client_with_lease(&server.url(), LEASE * 60).await;
    let guard = held(permits(&one, 2, 2)).await;
    let waits = waiting(&server, permits(&two, 1, 2)).await;
    proxy.partition();
    let next = its_turn(waits, LEASE * 20).await;
    assert!(!guard.is_held(), "it has lost them before");
    guard.lost().await;
    proxy.heal();
    sleep(LEASE).await;
    assert!(next.is_held() && taken(&server) == 1, "nothing arrives late");
    release(next).await;
}

/// The tasks of one process pass permits on, and leave the queue to the other one in time.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_with_few_permits_do_not_starve_a_call_for_all_of_them() {
    for processes in [1, 4] {
        let server = RedisServer::start();
        let single = client(&server.url()).await;
        let mut tasks = JoinSet::new();
        for _ in 0..processes {
            let client = client(&server.url()).await;
            for n in 0..8 {
                let lock = permits(&client, 1, 4);
                tasks.spawn(async move {
                    sleep(LEASE / 24 * n).await;
                    loop {
                        // Much longer than a permit is free in between, also on a busy machine.
                        lock.run(sleep(LEASE / 3)).await.expect("its turn");
                    }
                });
            }
        }
        sleep(LEASE).await;
        for _ in 0..3 {
            let began = Instant::now();
            let got = timeout(LEASE * 10, permits(&single, 4, 4).run(async {})).await;
            let took = running_time(began);
            assert!(
                matches!(got, Ok(Ok(()))) && took < LEASE * 5,
                "a large call has its turn: {got:?} after {took:?}"
            );
        }
        tasks.abort_all();
    }
}

#[tokio::test]
async fn requests_for_permits_are_repeated_or_undone() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let one = LockClient::builder().url(proxy.url()).lease(LEASE * 60).connect().await.expect("up");
    let two = client_with_lease(&server.url(), LEASE * 60).await;
    release(held(permits(&one, 1, 4)).await).await;
    for count in [1, 2] {
        proxy.lose_reply_to("EVALSHA");
        let lock = permits(&one, count, 4);
        let guard = lock.clone().wait(LEASE * 5).acquire().await.expect("the retry gets permits");
        until_idle_but(&one, 1).await;
        let taken = until(LEASE * 10, || taken(&server) == count).await;
        assert!(taken.is_some(), "the lost grant is undone");
        release(guard).await;
        assert!(!server.exists("k"));
        until_idle(&one, LEASE * 5).await;
        proxy.hold("EVALSHA");
        let outcome = lock.wait(LEASE / 4).acquire().await;
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
        let calls = server.calls("evalsha");
        proxy.deliver();
        let arrives = until(LEASE * 10, || server.calls("evalsha") > calls).await;
        assert!(arrives.is_some(), "the request arrives");
        let all = timeout(LEASE * 10, permits(&two, 4, 4).acquire()).await;
        release(all.expect("the late grant is undone").expect("up")).await;
    }
    until_idle(&one, LEASE * 5).await;
}

/// The number of permits that the server counts.
fn taken(server: &RedisServer) -> u32 {
    server.command::<Option<u32>>(&["ZSCORE", "k", "taken"]).unwrap_or_default()
}

/// Waits until the client has no more than this number of keys.
async fn until_idle_but(client: &LockClient, keys: usize) {
    let idle = until(LEASE * 10, || client.stats().releasing == 0 && client.stats().keys <= keys);
    assert!(idle.await.is_some(), "{:?}", client.stats());
}

/// A server that is out of memory refuses free permits, and nothing else.
#[tokio::test]
async fn a_server_that_is_out_of_memory_renews_and_frees_permits() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let (first, second) = (held(permits(&one, 1, 4)).await, held(permits(&two, 3, 4)).await);
    server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    sleep(LEASE * 3).await;
    assert!(first.is_held() && second.is_held(), "both are renewed");
    release(second).await;
    release(first).await;
    assert!(!server.exists("k"));
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    release(held(permits(&two, 4, 4)).await).await;
}

#[tokio::test]
async fn a_server_that_was_emptied_ends_all_permits() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guards = [held(permits(&client, 1, 3)).await, held(permits(&client, 2, 3)).await];
    server.tell(&["FLUSHALL"]);
    for guard in &guards {
        within(LEASE * 2, guard.lost()).await.expect("by the next renewal");
    }
    release(held(permits(&client, 3, 3)).await).await;
}

/// A call that waits in the queue of the server for a permit, and is not polled any more.
async fn unpolled_call(server: &RedisServer, client: &LockClient) -> AcquireFuture {
    let mut call: AcquireFuture = Box::pin(permits(client, 1, 1).acquire());
    let began = Instant::now();
    while !server.has_woken_claims("k", 1) {
        assert!(timeout(LEASE / 100, &mut call).await.is_err(), "the permit is taken");
        assert!(running_time(began) < LEASE * 20, "the call does not queue");
    }
    let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    call
}

/// The call with the turn is not polled any more. The notifier thread polls it, and it keeps its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_not_polled_does_not_block_the_others_of_its_process() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    let inside = held(permits(&client, 1, 1)).await;
    let unpolled = unpolled_call(&server, &client).await;
    let behind = tokio::spawn(permits(&client, 1, 1).acquire());
    sleep(LEASE / 4).await;
    release(inside).await;
    let behind = within(TRANSFER, behind).await.expect("others get the permit");
    release(behind.expect("no panic").expect("others get the permit")).await;
    let late = within(LEASE * 20, unpolled).await.expect("it keeps its place");
    release(late.expect("its turn")).await;
    until_idle(&client, LEASE * 5).await;
    assert!(!server.exists("k"));
}

/// A lock that was passed on to it goes back to the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_not_polled_keeps_no_permit_from_other_processes() {
    let server = RedisServer::start();
    let (one, two) = (
        client_with_lease(&server.url(), LEASE * 60).await,
        client_with_lease(&server.url(), LEASE * 60).await,
    );
    let inside = held(permits(&one, 1, 1)).await;
    let unpolled = unpolled_call(&server, &one).await;
    release(inside).await;
    let other = timeout(TRANSFER, permits(&two, 1, 1).acquire()).await;
    release(other.expect("other processes get the permit").expect("up")).await;
    let late = within(LEASE * 20, unpolled).await.expect("it keeps its place");
    release(late.expect("its turn")).await;
}

/// Two permits become free in the same moment: one for the call that waits, and one for the call behind it,
/// which is not polled.
#[tokio::test]
async fn permits_that_are_left_to_a_call_that_is_not_polled_go_to_other_processes() {
    let server = RedisServer::start();
    let (one, two) = (
        client_with_lease(&server.url(), LEASE * 60).await,
        client_with_lease(&server.url(), LEASE * 60).await,
    );
    let inside = [held(permits(&one, 1, 2)).await, held(permits(&one, 1, 2)).await];
    let first = waiting(&server, permits(&one, 1, 2)).await;
    let mut unpolled: AcquireFuture = Box::pin(permits(&one, 1, 2).acquire());
    assert!(timeout(LEASE / 4, &mut unpolled).await.is_err(), "no permit is free");
    let _ = unpolled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let [one_of_two, other] = inside;
    // Both releases begin before any other task runs, so that both permits stay in the process.
    tokio::join!(release(one_of_two), release(other));
    let first = its_turn(first, LEASE * 20).await;
    let other = timeout(TRANSFER, permits(&two, 1, 2).acquire()).await;
    release(other.expect("other processes get the permit").expect("up")).await;
    let late = within(LEASE * 20, unpolled).await.expect("it is still in the queue");
    release(late.expect("its turn")).await;
    release(first).await;
    until_idle(&one, LEASE * 5).await;
    assert!(!server.exists("k"));
}

/// A claim whose client receives no messages. Nobody would notice its death.
#[tokio::test]
async fn a_claim_that_polls_holds_nobody_back() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    let inside = held(permits(&client, 1, 3)).await;
    let waits = waiting(&server, permits(&client, 3, 3)).await;
    assert!(!is_free(permits(&client, 2, 3)).await, "a claim that is woken holds others back");
    let queues: Vec<String> = server.command(&["KEYS", "lock_queue:{*}:k"]);
    let claim = format!("{:032x}{:-<36}s3/3/{}", 7, "", TRANSFER.as_millis());
    server.tell(&["ZADD", &queues[0], "1", &claim]);
    waits.abort();
    assert!(
        until(LEASE * 10, || server.queued("k") == 1).await.is_some(),
        "only the other one waits"
    );
    assert!(is_free(permits(&client, 2, 3)).await, "a claim that polls holds nobody back");
    release(inside).await;
    // It has a turn, although nobody takes it.
    assert_eq!(taken(&server), 3);
    release(held(permits(&client, 3, 3)).await).await;
}

/// A short wait is for the permits, and not for the answer of the server.
#[tokio::test]
async fn a_short_wait_ends_with_what_is_known() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = LockClient::builder().url(proxy.url()).lease(LEASE * 60).connect().await;
    let client = client.expect("up");
    proxy.delay(Toward::Client, LEASE / 50);
    let short = permits(&client, 1, 1).wait(LEASE / 200);
    release(held(short.clone()).await).await;
    proxy.hold("EVALSHA");
    let outcome = permits(&client, 1, 1).wait(LEASE / 20).acquire().await;
    assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
    proxy.deliver();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_is_passed_on_to_a_dropped_call_goes_to_the_next_one() {
    let server = RedisServer::start();
    // The release hands the permit off.
    let builder = LockClient::builder().url(server.url()).lease(LEASE * 60).wait(LEASE * 60);
    let client = builder.handoff_limit(100, LEASE).connect().await.expect("up");
    let other = client_with_lease(&server.url(), LEASE * 60).await;
    for has_next in [true, false] {
        let inside = held(permits(&client, 1, 1)).await;
        let dropped = unpolled_call(&server, &client).await;
        let next = has_next.then(|| tokio::spawn(permits(&client, 1, 1).acquire()));
        sleep(LEASE / 10).await;
        release(inside).await;
        drop(dropped);
        let next = match next {
            Some(next) => next,
            None => tokio::spawn(permits(&other, 1, 1).acquire()),
        };
        let next = within(TRANSFER, next).await.expect("its turn").expect("no panic");
        release(next.expect("its turn")).await;
        until_idle(&client, LEASE * 5).await;
        until_idle(&other, LEASE * 5).await;
        assert!(!server.exists("k"));
    }
}

/// The call that was offered permits gives up in that moment: the next one gets them.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_give_up_pass_permits_on() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    for round in 0..50 {
        let inside = held(permits(&client, 1, 1)).await;
        let mut calls: Vec<_> = Vec::new();
        for _ in 0..4 {
            calls.push(tokio::spawn(permits(&client, 1, 1).acquire()));
            tokio::task::yield_now().await;
        }
        let last = calls.pop().expect("four calls");
        if round % 2 == 0 {
            assert_queued(&server, 1).await;
        }
        let ending = async {
            for call in &calls {
                call.abort();
                if round % 3 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        };
        tokio::join!(release(inside), ending);
        for call in calls {
            if let Ok(guard) = call.await {
                release(guard.expect("its turn")).await;
            }
        }
        let last = within(LEASE * 10, last).await.expect("its turn");
        release(last.expect("no panic").expect("its turn")).await;
    }
    until_idle(&client, LEASE * 5).await;
    assert!(!server.exists("k"), "nothing is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_of_permits_that_end_at_any_time_leave_nothing() {
    let server = RedisServer::start();
    let clients = [client(&server.url()).await, client(&server.url()).await];
    let inside = Arc::new(AtomicU32::new(0));
    let mut calls = JoinSet::new();
    for n in 0..300 {
        let count = 1 + n % 3;
        let lock = permits(&clients[n as usize % 2], count, 4);
        let inside = Arc::clone(&inside);
        calls.spawn(async move {
            for _ in 0..4 {
                let call = async {
                    let guard = held(lock.clone()).await;
                    {
                        let _inside = InSemaphore::enter(&inside, count);
                        sleep(LEASE.mul_f64(fastrand::f64() / 500.0)).await;
                    }
                    let _ = guard.release().await;
                };
                let limit = LEASE.mul_f64(fastrand::f64() / 5.0);
                let _ = timeout(limit, call).await;
            }
        });
    }
    while let Some(call) = calls.join_next().await {
        call.expect("no violation");
    }
    for client in &clients {
        until_idle(client, LEASE * 10).await;
    }
    release(held(permits(&clients[0], 4, 4)).await).await;
    let left: Vec<String> = server.keys();
    assert!(left.is_empty(), "{left:?}");
}

/// A holder of so many permits that is inside.
struct InSemaphore<'a> {
    inside: &'a AtomicU32,
    count: u32,
}

impl<'a> InSemaphore<'a> {
    fn enter(inside: &'a AtomicU32, count: u32) -> Self {
        let held = inside.fetch_add(count, Ordering::SeqCst) + count;
        assert!(held <= 4, "{held} permits are held");
        Self { inside, count }
    }
}

impl Drop for InSemaphore<'_> {
    fn drop(&mut self) {
        self.inside.fetch_sub(self.count, Ordering::SeqCst);
    }
}

/// The promises of permits while processes are killed and suspended at random.
#[tokio::test(flavor = "multi_thread")]
async fn permits_are_within_the_limit_while_processes_die() {
    let mut fixture = FaultFixture::new().await;
    fixture.assert_sharing_holds(FaultFixture::permit_sharer).await;
}
