//! Faults of read-write locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use lock_runtime::{Lock, LockClient, LockError, LockMode, LostReason};
use lock_tests::{Helper, Proxy, RedisServer, running_time, within};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{
    AcquireFuture, FaultFixture, LEASE, client, client_with_lease, kill_waiting, milliseconds,
    until, until_idle,
};
use crate::waits::{TRANSFER, assert_queued, held, its_turn, release, waiting};
use lock_tests::support::of_read_write;

/// A reader of `k` that shares no hold, and that waits for longer than any test takes.
fn reader(client: &LockClient) -> Lock {
    client.read_write("k").read().max_hold(LEASE * 200).wait(LEASE * 60)
}

fn writer(client: &LockClient) -> Lock {
    client.read_write("k").write().wait(LEASE * 60)
}

/// A process that holds `k`.
fn process(server: &RedisServer, mode: &str, lease: Duration) -> Helper {
    let args = ["mode", &server.url(), "k", &milliseconds(lease), mode];
    let mut process = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args);
    assert_eq!(process.line(), "held");
    process
}

/// A process that waits for `k`.
async fn waiting_process(server: &RedisServer, mode: &str) -> Helper {
    let before = server.queued("k");
    let args = ["mode", &server.url(), "k", &milliseconds(LEASE * 60), mode];
    let process = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args);
    assert_queued(server, before + 1).await;
    process
}

#[tokio::test]
async fn a_killed_reader_leaves_at_the_end_of_its_lease_and_keeps_nobody_else() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    let mut killed = process(&server, "read", LEASE * 3);
    let other = held(reader(&client)).await;
    let writer = waiting(&server, writer(&client)).await;
    killed.kill();
    let ended = Instant::now();
    sleep(LEASE).await;
    assert!(!writer.is_finished() && other.is_held());
    release(other).await;
    let writer = its_turn(writer, LEASE * 5).await;
    let took = ended.elapsed();
    assert!(running_time(ended) < LEASE * 4, "too late: {took:?}");
    assert!(took > LEASE, "before the end of the lease of the killed reader: {took:?}");
    release(writer).await;
    assert!(!server.exists("k"), "nothing is left");
}

/// The number of holders that the server counts: the members of the key but the first one.
fn holders(server: &RedisServer) -> usize {
    server.command::<usize>(&["ZCARD", "k"]).saturating_sub(1)
}

#[tokio::test]
async fn after_a_killed_writer_the_readers_that_wait_get_the_lock_together() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let mut killed = process(&server, "write", LEASE);
    let readers = [waiting(&server, reader(&one)).await, waiting(&server, reader(&two)).await];
    let next = waiting(&server, writer(&one)).await;
    killed.kill();
    let mut inside = Vec::new();
    for reader in readers {
        inside.push(its_turn(reader, LEASE * 5).await);
    }
    assert!(!next.is_finished(), "the writer came after the readers");
    for reader in inside {
        release(reader).await;
    }
    release(its_turn(next, LEASE * 5).await).await;
}

#[tokio::test]
async fn a_killed_writer_that_waited_holds_no_reader_back() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    let inside = held(reader(&client)).await;
    let mut killed = waiting_process(&server, "write").await;
    let waits = waiting(&server, reader(&client)).await;
    kill_waiting(&mut killed, &server).await;
    let began = Instant::now();
    release(its_turn(waits, LEASE * 20).await).await;
    assert!(
        running_time(began) < LEASE * 8,
        "its turn comes with the next check: {:?}",
        began.elapsed()
    );
    release(held(reader(&client)).await).await;
    assert!(inside.is_held());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_process_that_waits_costs_the_others_one_transfer() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    let inside = held(reader(&client)).await;
    let suspended = waiting_process(&server, "write").await;
    let waits = waiting(&server, reader(&client)).await;
    let next = waiting(&server, writer(&client)).await;
    suspended.freeze();
    let began = Instant::now();
    release(inside).await;
    let reader = its_turn(waits, TRANSFER * 2).await;
    assert!(began.elapsed() > TRANSFER / 2, "the lock was given to the suspended process");
    release(reader).await;
    release(its_turn(next, LEASE * 5).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_suspended_past_its_lease_loses_the_lock() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 60).await;
    let other = held(reader(&client)).await;
    let suspended = process(&server, "read", LEASE);
    suspended.freeze();
    let writer = waiting(&server, writer(&client)).await;
    release(other).await;
    let writer = its_turn(writer, LEASE * 5).await;
    suspended.thaw();
    // Its late renewal does not make it a reader again.
    sleep(LEASE).await;
    assert!(writer.is_held());
    assert_eq!(holders(&server), 1, "the writer is the only holder");
    release(writer).await;
}

/// Joining is limited, so that readers of one process do not keep the writers of others out.
#[tokio::test(flavor = "multi_thread")]
async fn readers_of_one_process_do_not_starve_a_writer_of_another_one() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let stop = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    for n in 0..8 {
        let (lock, stop) = (one.read_write("k").read().wait(LEASE * 60), Arc::clone(&stop));
        readers.spawn(async move {
            sleep(LEASE / 80 * n).await;
            while !stop.load(Ordering::Relaxed) {
                lock.run(sleep(LEASE / 10)).await.expect("its turn");
            }
        });
    }
    sleep(LEASE).await;
    for _ in 0..3 {
        let (began, writer) = (Instant::now(), two.read_write("k").write().wait(LEASE * 20));
        let (written, waited) = (writer.run(async {}).await, running_time(began));
        assert!(
            written.is_ok() && waited < LEASE * 3,
            "the readers let the writer in: {written:?} after {waited:?}"
        );
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(reader) = readers.join_next().await {
        reader.expect("no panic");
    }
}

/// A steady stream of each side lets the other one in.
#[tokio::test(flavor = "multi_thread")]
async fn neither_readers_nor_writers_starve() {
    for (many, one) in [(LockMode::Read, LockMode::Write), (LockMode::Write, LockMode::Read)] {
        let server = RedisServer::start();
        let single = client(&server.url()).await;
        let lock = |client: &LockClient, mode| {
            let lock = client.read_write("k");
            let lock = if mode == LockMode::Read { lock.read() } else { lock.write() };
            lock.wait(LEASE * 60)
        };
        let (stop, mut calls) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        for n in 0..4 {
            let lock = lock(&client(&server.url()).await, many);
            let stop = Arc::clone(&stop);
            calls.spawn(async move {
                sleep(LEASE / 40 * n).await;
                while !stop.load(Ordering::Relaxed) {
                    // Otherwise, they might hold the lock in step, so that it is free in between.
                    let hold = LEASE * fastrand::u32(5..15) / 100;
                    lock.run(sleep(hold)).await.expect("its turn");
                }
            });
        }
        sleep(LEASE).await;
        for _ in 0..3 {
            let began = Instant::now();
            let call = lock(&single, one).run(async {});
            within(LEASE * 10, call).await.expect("the other side lets it in").expect("up");
            let took = running_time(began);
            assert!(took < LEASE * 2, "the other side lets it in: {one:?} after {took:?}");
        }
        stop.store(true, Ordering::Relaxed);
        while let Some(call) = calls.join_next().await {
            call.expect("no panic");
        }
    }
}

/// The first of them acquires the lock for all.
#[tokio::test(flavor = "multi_thread")]
async fn readers_that_are_not_polled_block_no_other_readers() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let first = held(two.read_write("k").write()).await;
    let mut unpolled: Vec<AcquireFuture> = Vec::new();
    for _ in 0..3 {
        let mut call: AcquireFuture =
            Box::pin(one.read_write("k").read().wait(LEASE * 60).acquire());
        let began = Instant::now();
        // Until the first one stands in the queue of the store.
        while timeout(LEASE / 100, &mut call).await.is_err() && server.queued("k") == 0 {
            assert!(running_time(began) < LEASE * 20, "the call does not queue");
        }
        unpolled.push(call);
    }
    let polled = tokio::spawn(one.read_write("k").read().wait(LEASE * 60).acquire());
    release(first).await;
    let polled = within(TRANSFER, polled).await.expect("others get the lock").expect("no panic");
    let polled = polled.expect("others get the lock");
    for call in unpolled {
        release(call.await.expect("it joins the others")).await;
    }
    release(polled).await;
    until_idle(&one, LEASE * 5).await;
    release(held(two.read_write("k").write()).await).await;
}

/// A reader and a writer of one process stand in different queues.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_not_polled_does_not_block_the_other_side_of_its_process() {
    for unpolled_mode in [LockMode::Read, LockMode::Write] {
        let server = RedisServer::start();
        let one = client_with_lease(&server.url(), LEASE * 60).await;
        let two = client_with_lease(&server.url(), LEASE * 60).await;
        let lock = |mode| {
            let lock = one.read_write("k");
            let lock = if mode == LockMode::Read { lock.read() } else { lock.write() };
            lock.wait(LEASE * 60)
        };
        let first = held(writer(&two)).await;
        let mut unpolled: AcquireFuture = Box::pin(lock(unpolled_mode).acquire());
        let began = Instant::now();
        while server.queued("k") == 0 {
            assert!(timeout(LEASE / 100, &mut unpolled).await.is_err(), "the lock is held");
            assert!(running_time(began) < LEASE * 20, "the call does not queue");
        }
        let other = match unpolled_mode {
            LockMode::Read => LockMode::Write,
            LockMode::Write => LockMode::Read,
        };
        // A writer that waits comes after the readers.
        let other = waiting(&server, lock(other)).await;
        release(first).await;
        // Sooner than the lease of its transfer ends.
        release(its_turn(other, TRANSFER * 2 / 3).await).await;
        release(unpolled.await.expect("its turn")).await;
    }
}

/// They count as one reader, whatever their number.
#[tokio::test(flavor = "multi_thread")]
async fn all_readers_that_wait_in_one_process_have_their_turn_together() {
    let server = RedisServer::start();
    let one = client_with_lease(&server.url(), LEASE * 60).await;
    let two = client_with_lease(&server.url(), LEASE * 60).await;
    let first = held(writer(&two)).await;
    let lock = one.read_write("k").read().wait(LEASE * 60);
    let calls: Vec<_> = (0..100).map(|_| tokio::spawn(lock.acquire())).collect();
    assert_queued(&server, 1).await;
    let three = client_with_lease(&server.url(), LEASE * 60).await;
    let next = waiting(&server, writer(&three)).await;
    release(first).await;
    let mut guards = Vec::new();
    for call in calls {
        let guard = within(LEASE * 5, call).await.expect("they do not wait for the next writer");
        guards.push(guard.expect("no panic").expect("up"));
    }
    assert!(!next.is_finished());
    drop(guards);
    release(its_turn(next, LEASE * 5).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_a_reader_that_is_not_polled_reaches_the_store() {
    let server = RedisServer::start();
    let (one, two) = (
        client_with_lease(&server.url(), LEASE * 60).await,
        client_with_lease(&server.url(), LEASE * 60).await,
    );
    let guard = held(one.read_write("k").read()).await;
    let next = waiting(&server, writer(&two)).await;
    let mut unpolled = Box::pin(guard.release());
    let _ = unpolled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    release(its_turn(next, LEASE * 10).await).await;
}

/// The answer is lost, or the caller gives up before it.
#[tokio::test]
async fn requests_for_a_read_write_lock_are_repeated_or_undone() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let one = LockClient::builder().url(proxy.url()).lease(LEASE * 60).connect().await.expect("up");
    let two = client_with_lease(&server.url(), LEASE * 60).await;
    release(held(writer(&one)).await).await;
    for lock in [reader(&one), writer(&one), one.read_write("k").read()] {
        proxy.lose_reply_to("EVALSHA");
        let begun = proxy.triggered();
        let guard = lock.clone().wait(LEASE * 5).acquire().await.expect("the retry has one hold");
        assert_eq!(holders(&server), 1, "one hold for {begun}");
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
        let free = within(LEASE * 10, writer(&two).acquire()).await.expect("undone").expect("up");
        release(free).await;
    }
    until_idle(&one, LEASE * 5).await;
}

#[tokio::test]
async fn a_change_of_the_mode_whose_answer_is_lost_is_repeated() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let one = LockClient::builder().url(proxy.url()).lease(LEASE * 60).connect().await.expect("up");
    let two = client_with_lease(&server.url(), LEASE * 60).await;
    for _ in 0..5 {
        let guard = held(reader(&one)).await;
        proxy.lose_reply_to("EVALSHA");
        assert!(of_read_write(&guard).try_upgrade().await.expect("the repetition is answered"));
        assert_eq!(guard.mode(), Some(LockMode::Write));
        assert!(reader(&two).try_acquire().await.expect("up").is_none());
        proxy.lose_reply_to("EVALSHA");
        of_read_write(&guard).downgrade().await.expect("the repetition is answered");
        assert_eq!(guard.mode(), Some(LockMode::Read));
        release(held(reader(&two)).await).await;
        release(guard).await;
        assert!(!server.exists("k"));
    }
    assert_eq!(proxy.triggered(), 10, "the replies were lost");
}

/// The holder is not a writer again when its first downgrade arrives.
#[tokio::test]
async fn a_downgrade_that_arrives_late_makes_no_reader_of_a_writer() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let one = LockClient::builder().url(proxy.url()).lease(LEASE * 60).connect().await.expect("up");
    let two = client_with_lease(&server.url(), LEASE * 60).await;
    let guard = held(writer(&one)).await;
    proxy.hold("EVALSHA");
    of_read_write(&guard).downgrade().await.expect("the repetition is answered");
    let is_writer = of_read_write(&guard).try_upgrade().await.expect("up");
    let calls = server.calls("evalsha");
    proxy.deliver();
    let arrives = until(LEASE * 10, || server.calls("evalsha") > calls).await;
    assert!(arrives.is_some(), "the request arrives");
    let read = reader(&two).try_acquire().await.expect("up");
    assert!(!(is_writer && read.is_some()), "a reader beside a writer");
    release(guard).await;
}

/// A late attempt does not change the mode of a hold, either.
#[tokio::test]
async fn an_attempt_that_arrives_late_makes_no_reader_of_a_writer() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let one = LockClient::builder().url(proxy.url()).lease(LEASE * 60).connect().await.expect("up");
    let two = client_with_lease(&server.url(), LEASE * 60).await;
    release(held(reader(&one)).await).await;
    proxy.hold("EVALSHA");
    let guard = reader(&one).wait(LEASE * 30).acquire().await.expect("free");
    assert!(of_read_write(&guard).try_upgrade().await.expect("the only reader"));
    let calls = server.calls("evalsha");
    proxy.deliver();
    let arrives = until(LEASE * 10, || server.calls("evalsha") > calls).await;
    assert!(arrives.is_some(), "the attempt arrives");
    assert!(reader(&two).try_acquire().await.expect("up").is_none(), "a reader beside a writer");
    release(guard).await;
}

/// As after a failover to a replica without the upgrade.
#[tokio::test]
async fn a_writer_that_the_server_takes_for_a_reader_has_lost_the_lock() {
    let server = RedisServer::start();
    let one = client(&server.url()).await;
    let guard = held(one.read_write("k").read()).await;
    let before: Vec<u8> = server.command(&["DUMP", "k"]);
    assert!(of_read_write(&guard).try_upgrade().await.expect("the only reader"));
    let mut connection = server.connection();
    let mut restore = redis::cmd("RESTORE");
    restore.arg("k").arg(60_000).arg(before).arg("REPLACE");
    restore.exec(&mut connection).expect("up");
    let lost = within(LEASE * 2, guard.lost()).await.expect("the next renewal finds it");
    assert_eq!(lost, LostReason::Taken);
}

/// The hold counts as that of a reader, and its release frees whatever the store has made of it.
#[tokio::test]
async fn an_upgrade_that_is_dropped_leaves_a_reader() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let one = LockClient::builder().url(proxy.url()).lease(LEASE * 60).connect().await.expect("up");
    let two = client_with_lease(&server.url(), LEASE * 60).await;
    let guard = held(reader(&one)).await;
    proxy.lose_reply_to("EVALSHA");
    let _ = timeout(LEASE / 10, of_read_write(&guard).try_upgrade()).await.map_err(drop);
    if guard.mode() == Some(LockMode::Read) {
        assert!(guard.fencing_token().await.is_err(), "a reader has no token");
    }
    assert!(guard.is_held());
    release(guard).await;
    release(held(writer(&two)).await).await;
}

/// A server that is out of memory refuses free locks, and nothing else.
#[tokio::test]
async fn a_server_that_is_out_of_memory_renews_changes_and_frees() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let (first, second) = (held(reader(&one)).await, held(reader(&two)).await);
    server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    sleep(LEASE * 3).await;
    assert!(first.is_held() && second.is_held(), "both are renewed");
    release(second).await;
    assert!(of_read_write(&first).try_upgrade().await.expect("up"));
    sleep(LEASE * 2).await;
    of_read_write(&first).downgrade().await.expect("up");
    let refused = two.read_write("free").read().wait(LEASE / 2).acquire().await;
    assert!(matches!(refused, Err(LockError::Unavailable { .. })), "{refused:?}");
    release(first).await;
    assert!(!server.exists("k"));
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    release(held(writer(&two)).await).await;
}

/// All of them have the same lease.
#[tokio::test]
async fn readers_that_share_a_hold_lose_it_together() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let lock = client.read_write("k").read();
    let first = held(lock.clone()).await;
    let mut bodies = JoinSet::new();
    for _ in 0..10 {
        let lock = lock.clone();
        bodies.spawn(async move { lock.run(std::future::pending::<()>()).await });
    }
    sleep(LEASE / 10).await;
    server.tell(&["FLUSHALL"]);
    let lost = async {
        while let Some(body) = bodies.join_next().await {
            let error = body.expect("no panic").expect_err("lost");
            assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
        }
        first.lost().await
    };
    within(LEASE * 2, lost).await.expect("by the next renewal");
    // Later readers have a hold of their own.
    release(held(lock).await).await;
    drop(first);
    until_idle(&client, LEASE * 5).await;
    release(held(writer(&client)).await).await;
}

/// Its runtime ends while others share the hold.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_reader_may_leave_with_its_runtime() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let lock = client.read_write("k").read();
    let first = std::thread::spawn({
        let lock = lock.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(held(lock))
        }
    });
    let first = tokio::task::spawn_blocking(|| first.join().expect("no panic"));
    let first = first.await.expect("no panic");
    let second = held(lock).await;
    assert_eq!(holders(&server), 1, "they share the hold");
    drop(first);
    sleep(LEASE * 2).await;
    assert!(second.is_held(), "it is renewed");
    release(second).await;
    assert!(!server.exists("k"));
}

/// They are dropped while they wait, hold the lock, change its mode or release it.
#[tokio::test(flavor = "multi_thread")]
async fn readers_and_writers_that_end_at_any_time_leave_nothing() {
    let server = RedisServer::start();
    let clients = [client(&server.url()).await, client(&server.url()).await];
    let inside = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let mut calls = JoinSet::new();
    for n in 0..300 {
        let lock = clients[n % 2].read_write("k");
        let is_writer = n % 5 == 0;
        let lock = if is_writer { lock.write() } else { lock.read() }.wait(LEASE * 60);
        let inside = Arc::clone(&inside);
        calls.spawn(async move {
            for _ in 0..4 {
                let call = async {
                    let guard = held(lock.clone()).await;
                    {
                        let _inside = InLock::enter(&inside, is_writer);
                        sleep(LEASE.mul_f64(fastrand::f64() / 500.0)).await;
                    }
                    if fastrand::bool() {
                        let _ = of_read_write(&guard).downgrade().await;
                    }
                    if fastrand::bool() {
                        let _ = of_read_write(&guard).try_upgrade().await;
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
    release(held(writer(&clients[0])).await).await;
    let left: Vec<String> = server.keys();
    assert!(left.iter().all(|key| key.starts_with("lock_fence:")), "{left:?}");
}

/// A holder that is inside, as a reader or as a writer.
struct InLock<'a> {
    inside: &'a [AtomicUsize; 2],
    is_writer: bool,
}

impl<'a> InLock<'a> {
    fn enter(inside: &'a [AtomicUsize; 2], is_writer: bool) -> Self {
        inside[usize::from(is_writer)].fetch_add(1, Ordering::SeqCst);
        let [readers, writers] = [0, 1].map(|side: usize| inside[side].load(Ordering::SeqCst));
        assert!(
            writers == 0 || writers == 1 && readers == 0,
            "{readers} readers, {writers} writers"
        );
        Self { inside, is_writer }
    }
}

impl Drop for InLock<'_> {
    fn drop(&mut self) {
        self.inside[usize::from(self.is_writer)].fetch_sub(1, Ordering::SeqCst);
    }
}

/// Processes read and write, and are killed and suspended.
#[tokio::test(flavor = "multi_thread")]
async fn readers_and_writers_exclude_each_other_while_processes_die() {
    let mut fixture = FaultFixture::new().await;
    fixture.assert_sharing_holds(FaultFixture::sharer).await;
}
