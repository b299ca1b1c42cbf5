//! Faults of calls that take several locks together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason, WireFormat};
use lock_tests::{Cluster, Helper, Proxy, RedisServer, Toward, running_time, within};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LEASE, client, client_with_lease, milliseconds, until, until_idle};

const KEYS: [&str; 3] = ["a", "b", "c"];

async fn behind_proxy() -> (RedisServer, Proxy, LockClient) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // The lease does not end during the test.
    let client = client_with_lease(&proxy.url(), LEASE * 60).await;
    (server, proxy, client)
}

/// Whether all keys are free within this time.
async fn are_free(server: &RedisServer, within: Duration) -> bool {
    until(within, || KEYS.iter().all(|key| !server.exists(key))).await.is_some()
}

/// Aborts calls after each of these times, with a key that is busy meanwhile or not.
async fn abort_calls(server: &RedisServer, proxy: &Proxy, client: &LockClient, loses: bool) {
    for format in [WireFormat::Token, WireFormat::Redisson] {
        for step in 0..16_u32 {
            let busy = step % 2 == 1;
            if busy {
                // In the layout of the call.
                let words: &[&str] = match format {
                    WireFormat::Redisson => &["HSET", "b", "stranger:1", "1"],
                    _ => &["SET", "b", "stranger"],
                };
                server.tell(words);
                server.tell(&["PEXPIRE", "b", "60000"]);
            }
            if loses {
                proxy.blackhole(Toward::Client);
            }
            let set = client.lock_all(KEYS).wire_format(format);
            let call = tokio::spawn(async move { set.run(std::future::pending::<()>()).await });
            // The times are those of a few round trips.
            sleep(LEASE * step / 100).await;
            call.abort();
            assert!(call.await.expect_err("aborted").is_cancelled());
            if busy {
                server.tell(&["DEL", "b"]);
            }
            if loses {
                // A request without an answer is undone after the response timeout.
                proxy.heal();
            }
            assert!(are_free(server, LEASE * 8).await, "{format:?}, {step}: a key still exists");
            until_idle(client, LEASE * 8).await;
        }
    }
}

#[tokio::test]
async fn a_call_for_several_locks_dropped_at_any_time_leaves_nothing_on_a_slow_server() {
    let (server, proxy, client) = behind_proxy().await;
    for toward in [Toward::Server, Toward::Client] {
        proxy.delay(toward, LEASE / 50);
    }
    abort_calls(&server, &proxy, &client, false).await;
}

#[tokio::test]
async fn a_call_for_several_locks_dropped_at_any_time_leaves_nothing_if_answers_are_lost() {
    let (server, proxy, client) = behind_proxy().await;
    abort_calls(&server, &proxy, &client, true).await;
}

/// The request for all locks has taken effect, and its answer never comes.
#[tokio::test]
async fn a_lost_answer_to_a_request_for_several_locks_grants_nothing_and_is_undone() {
    let (server, proxy, client) = behind_proxy().await;
    client.lock_all(KEYS).run(async {}).await.expect("free");
    for _ in 0..5 {
        proxy.lose_reply_to("EVALSHA");
        let triggered = proxy.triggered();
        let result = client.lock_all(KEYS).wait(Duration::ZERO).acquire().await;
        assert!(proxy.triggered() > triggered, "the answer is lost");
        match result {
            // The keys are taken until the undo has arrived.
            Err(LockError::Busy { .. } | LockError::Unavailable { .. }) => {}
            Ok(guard) => guard.release().await.expect("held"),
            Err(other) => panic!("{other:?}"),
        }
        assert!(are_free(&server, LEASE * 5).await, "the request is undone");
        until_idle(&client, LEASE * 5).await;
        // A call that waits gets the locks.
        proxy.lose_reply_to("EVALSHA");
        let set = client.lock_all(KEYS);
        let guard = within(LEASE * 10, set.acquire()).await.expect("soon").expect("granted");
        assert!(guard.is_held());
        guard.release().await.expect("held");
        assert!(are_free(&server, LEASE * 5).await);
        until_idle(&client, LEASE * 5).await;
    }
}

/// Neither tasks nor connections are left of calls that were dropped.
#[tokio::test]
async fn a_dropped_call_leaves_no_task_and_no_connection() {
    let server = RedisServer::start();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let connections = || server.command::<String>(&["CLIENT", "LIST"]).lines().count();
    let before = (tasks(), connections());
    let one = client(&server.url()).await;
    let two = client(&server.url()).await;
    let held = two.lock("b").acquire().await.expect("free");
    one.lock("a").run(async {}).await.expect("free");
    let at_rest = tasks();
    for _ in 0..20 {
        assert!(timeout(LEASE / 100, one.lock_all(KEYS).acquire()).await.is_err());
    }
    let ended = until(LEASE * 5, || tasks() <= at_rest).await;
    assert!(ended.is_some(), "{} tasks, {at_rest} before", tasks());
    held.release().await.expect("held");
    drop((one, two));
    let closed = until(LEASE * 10, || connections() <= before.1 && tasks() <= before.0).await;
    assert!(closed.is_some(), "{} connections and {} tasks", connections(), tasks());
}

/// The locks had been handed off, so the release offers them once more before it frees them.
#[tokio::test]
async fn a_release_of_several_locks_that_is_not_polled_blocks_no_other_call() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE * 10).await;
    let held = client.lock_all(["a", "b"]).acquire().await.expect("free");
    let set = client.lock_all(["a", "b"]);
    let waiter = tokio::spawn(async move { set.acquire().await });
    assert!(until(LEASE, || client.stats().queued > 0).await.is_some());
    held.release().await.expect("held");
    let guard = waiter.await.expect("no panic").expect("handed off");
    let mut release = Box::pin(guard.release());
    std::future::poll_fn(|cx| std::task::Poll::Ready(release.as_mut().poll(cx).is_pending())).await;
    for key in ["a", "b"] {
        let lock = client.lock(key).wait(LEASE * 2);
        lock.acquire().await.expect("not blocked").release().await.expect("held");
    }
    drop(release);
}

/// Each of the keys is wanted by another call, and the answers take long.
#[tokio::test]
async fn a_call_for_many_contended_keys_is_not_taken_for_blocked() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // Half of the response timeout.
    let slow = LEASE * 3 / 5;
    let one = client_with_lease(&proxy.url(), LEASE * 30).await;
    let keys: Vec<String> = (0..30).map(|n| format!("k{n}")).collect();
    let guard = one.lock_all(keys.iter().cloned()).acquire().await.expect("free");
    proxy.delay(Toward::Client, slow);
    let release = tokio::spawn(guard.release());
    let wanted: Vec<_> = keys
        .iter()
        .map(|key| {
            let lock = one.lock(key.clone()).wait(LEASE * 20);
            tokio::spawn(async move { lock.acquire().await.map(drop) })
        })
        .collect();
    assert_eq!(release.await.expect("no panic"), Ok(()), "the runtime is not blocked");
    for call in wanted {
        call.await.expect("no panic").expect("free");
    }
}

/// A process that holds the locks `a`, `b` and `c`.
fn holder(server: &RedisServer) -> Helper {
    let program = env!("CARGO_BIN_EXE_lock-helper");
    let mut process =
        Helper::start(program, &["hold-all", &server.url(), "a,b,c", &milliseconds(LEASE)]);
    assert_eq!(process.line(), "held");
    process
}

#[tokio::test]
async fn the_locks_of_a_process_that_is_killed_are_free_after_its_lease() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let mut process = holder(&server);
    let set = client.lock_all(["b", "c", "d"]);
    let waiter = tokio::spawn(async move { set.acquire().await });
    sleep(LEASE * 2).await;
    assert!(!waiter.is_finished(), "it waits for the killed process");
    process.kill();
    let start = Instant::now();
    let guard = waiter.await.expect("no panic").expect("free after the lease");
    assert!(running_time(start) < LEASE * 3, "{:?}", start.elapsed());
    guard.release().await.expect("held");
    client.lock_all(KEYS).run(async {}).await.expect("all are free");
}

#[tokio::test]
async fn the_locks_of_a_process_that_is_suspended_are_lost_together() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let mut process = holder(&server);
    process.freeze();
    // One of its keys goes to another holder.
    let _guard = client.lock("b").acquire().await.expect("free after the lease");
    process.thaw();
    assert!(process.line().starts_with("lost"), "the body is dropped");
    client.lock_all(["a", "c"]).run(async {}).await.expect("free");
}

/// The keys are collected one after the other, and the server forgets one of them meanwhile.
#[tokio::test]
async fn a_lock_that_is_lost_while_others_are_collected_is_acquired_anew() {
    let server = RedisServer::start();
    let client = client_with_lease(&server.url(), LEASE).await;
    server.tell(&["HSET", "b", "stranger:1", "1"]);
    server.tell(&["PEXPIRE", "b", "60000"]);
    let set = client.lock_all(KEYS).wire_format(WireFormat::Redisson).lease(LEASE * 5);
    let call = tokio::spawn(async move { set.acquire().await });
    assert!(until(LEASE, || server.exists("a")).await.is_some(), "the first lock is held");
    // The first attempts wait for the busy key alone.
    server.tell(&["DEL", "a"]);
    sleep(LEASE).await;
    server.tell(&["DEL", "b"]);
    let guard = within(LEASE * 5, call).await.expect("soon").expect("no panic").expect("granted");
    assert!(guard.is_held() && KEYS.iter().all(|key| server.exists(key)));
    assert!(guard.remaining() > LEASE * 4, "the lease begins with the last lock");
    let lost = within(LEASE * 20, guard.lost()).await;
    assert_eq!(lost.expect("the lease ends"), LostReason::LeaseOver);
}

/// Marks keys as held, for as long as it exists.
struct Inside<'a> {
    holders: &'a [AtomicU64],
    keys: &'a [usize],
}

impl<'a> Inside<'a> {
    fn enter(holders: &'a [AtomicU64], keys: &'a [usize]) -> Self {
        for key in keys {
            assert_eq!(holders[*key].fetch_add(1, Ordering::SeqCst), 0, "two calls hold a lock");
        }
        Self { holders, keys }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        for key in self.keys {
            self.holders[*key].fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Eight tasks of these clients lock random sets of these keys with random terms, and many of their
/// calls are dropped at random instants. Returns how many bodies have completed.
async fn lock_random_sets(clients: [LockClient; 2], keys: Vec<String>, time: Duration) -> usize {
    let holders: Arc<[AtomicU64]> = keys.iter().map(|_| AtomicU64::new(0)).collect();
    let (keys, end) = (Arc::new(keys), Instant::now() + time);
    let mut tasks = JoinSet::new();
    for n in 0..8 {
        let (client, keys) = (clients[n % 2].clone(), Arc::clone(&keys));
        let holders = Arc::clone(&holders);
        tasks.spawn(async move {
            let mut completed = 0;
            while Instant::now() < end {
                let count = fastrand::usize(1..5);
                let mut some: Vec<usize> =
                    (0..count).map(|_| fastrand::usize(..keys.len())).collect();
                let set = client.lock_all(some.iter().map(|key| keys[*key].clone()));
                let set = set.wait(LEASE * fastrand::u32(0..10) / 5);
                let set = match fastrand::u32(0..4) {
                    0 => set.lease(LEASE / 2),
                    1 => set.max_hold(LEASE / 2),
                    2 => set.linger(LEASE / 10),
                    _ => set,
                };
                some.sort_unstable();
                some.dedup();
                let body = async {
                    let _inside = Inside::enter(&holders, &some);
                    sleep(LEASE * fastrand::u32(0..4) / 1000).await;
                };
                let limit =
                    if fastrand::bool() { LEASE * 5 } else { LEASE * fastrand::u32(0..20) / 1000 };
                // A call may find the locks busy, or lose them with a connection.
                completed += usize::from(matches!(timeout(limit, set.run(body)).await, Ok(Ok(()))));
            }
            completed
        });
    }
    let mut completed = 0;
    while let Some(task) = tasks.join_next().await {
        completed += task.expect("no two holders");
    }
    for client in &clients {
        until_idle(client, LEASE * 10).await;
    }
    let all = clients[0].lock_all(keys.iter().cloned()).wait(LEASE * 5);
    all.acquire().await.expect("nothing is left").release().await.expect("held");
    completed
}

#[tokio::test(flavor = "multi_thread")]
async fn random_sets_exclude_each_other_although_answers_and_connections_are_lost() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let clients = [client(&proxy.url()).await, client(&server.url()).await];
    let keys = (0..5).map(|n| format!("k{n}")).collect();
    let running = tokio::spawn(lock_random_sets(clients, keys, LEASE * 8));
    for _ in 0..10 {
        sleep(LEASE / 3).await;
        match fastrand::u32(0..3) {
            0 => proxy.reset(),
            1 => proxy.lose_reply_to("EVALSHA"),
            _ => proxy.lose_reply_to("SET"),
        }
    }
    let completed = running.await.expect("no panic");
    assert!(completed > 20, "{completed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn random_sets_of_a_cluster_exclude_each_other_while_slots_are_moved() {
    let cluster = Cluster::start();
    let clients = [client(&cluster.url()).await, client(&cluster.url()).await];
    let keys = ["{s}a", "{s}b", "{s}c"].map(ToOwned::to_owned).into_iter();
    let keys = keys.chain((0..3).map(|master| cluster.key_of(master, 1))).collect();
    let running = tokio::spawn(lock_random_sets(clients, keys, LEASE * 8));
    let slot = cluster.slot_of("{s}a");
    let home = cluster.master_of("{s}a").expect("a master");
    let away = cluster.masters().into_iter().find(|master| *master != home).expect("three masters");
    let moving = tokio::task::spawn_blocking(move || {
        for (from, to) in [(home, away), (away, home), (home, away)] {
            std::thread::sleep(LEASE);
            cluster.move_slot(slot, from, to);
        }
        cluster
    });
    let completed = running.await.expect("no panic");
    assert!(completed > 20, "{completed}");
    drop(moving.await.expect("the slot is moved"));
}

/// The runtime of a call does not run any more, as while its thread is blocked.
#[test]
fn a_call_on_a_runtime_that_does_not_run_keeps_no_lock() {
    let runtime = || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime")
    };
    let (stopped, running) = (runtime(), runtime());
    let server = RedisServer::start();
    let (one, two) =
        running.block_on(async { (client(&server.url()).await, client(&server.url()).await) });
    for is_dropped in [true, false] {
        for (format, busy) in [(WireFormat::Token, false), (WireFormat::Redisson, true)] {
            let held = busy.then(|| {
                let lock = two.lock("b").wire_format(format);
                running.block_on(lock.acquire()).expect("free")
            });
            let set = one.lock_all(KEYS).wire_format(format);
            let mut call = Some(Box::pin(set.acquire()));
            // The call is polled once. It gets all locks, or waits for the second one.
            let first_poll = stopped.block_on(async {
                let polled = std::future::poll_fn(|cx| {
                    std::task::Poll::Ready(call.as_mut().expect("a call").as_mut().poll(cx))
                });
                let is_pending = polled.await.is_pending();
                sleep(LEASE / 10).await;
                is_pending
            });
            assert!(first_poll, "the call waits");
            if is_dropped {
                call = None;
            }
            // A lease that is no longer renewed ends, and its key some time later.
            let limit = if is_dropped { LEASE / 2 } else { LEASE * 4 };
            for client in [&one, &two] {
                let lock = client.lock("a").wire_format(format).wait(limit);
                let acquired = running.block_on(lock.acquire());
                let guard = acquired.unwrap_or_else(|error| {
                    panic!("dropped: {is_dropped}, {format:?}: {error}");
                });
                running.block_on(guard.release()).expect("held");
            }
            drop(call);
            if let Some(held) = held {
                running.block_on(held.release()).expect("held");
            }
            running.block_on(until_idle(&one, LEASE * 5));
        }
    }
}

#[tokio::test]
async fn a_release_on_a_runtime_that_does_not_run_keeps_no_lock() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let other = client.clone();
    let stopped = tokio::task::spawn_blocking(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        let guard = runtime.block_on(other.lock_all(KEYS).acquire()).expect("free");
        let mut release = Box::pin(guard.release());
        runtime.block_on(async {
            let polled = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(release.as_mut().poll(cx).is_pending())
            });
            polled.await
        });
        (runtime, release)
    });
    let (runtime, release) = stopped.await.expect("no panic");
    for key in KEYS {
        let lock = client.lock(key).wait(LEASE * 5);
        lock.acquire().await.expect("not kept").release().await.expect("held");
    }
    drop(release);
    runtime.shutdown_background();
    until_idle(&client, LEASE * 5).await;
}

/// The keys of a set are in three slots, and the second one cannot be locked: another client has it, its
/// value is no lock, or its node does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_slot_that_cannot_be_locked_keeps_no_other_key() {
    // No replica takes over from a suspended node.
    let cluster = Cluster::with(&["--cluster-node-timeout", "60000"]);
    let (one, two) = (client(&cluster.url()).await, client(&cluster.url()).await);
    // A set takes its keys in this order.
    let keys: Vec<String> = ["a", "b", "c"]
        .iter()
        .zip([0, 1, 2])
        .map(|(first, shard)| {
            (0..1_000)
                .map(|n| format!("{first}{n}"))
                .find(|key| cluster.master_of(key) == Some(shard))
                .expect("one of them")
        })
        .collect();
    let set = |wait: Duration| one.lock_all(keys.iter().cloned()).wait(wait);
    set(LEASE).run(async {}).await.expect("free");
    let assert_others_are_free = async || {
        let are_free = || [0, 2].iter().all(|shard| !cluster.node(*shard).exists(&keys[*shard]));
        assert!(until(LEASE * 5, are_free).await.is_some(), "the keys of the other slots are free");
        for shard in [0, 2] {
            let free = two.lock(&*keys[shard]).try_acquire().await.expect("up");
            free.expect("free").release().await.expect("held");
        }
    };
    let second = &keys[1];
    for wait in [Duration::ZERO, LEASE / 2] {
        let busy = two.lock(&**second).acquire().await.expect("free");
        match set(wait).acquire().await {
            Err(LockError::Busy { key, .. }) => assert_eq!(&key, second),
            other => panic!("{other:?}"),
        }
        assert_others_are_free().await;
        busy.release().await.expect("held");

        // The lock may have been given to the call that has given up, and is freed then.
        let is_free = || !cluster.node(1).exists(second);
        assert!(until(LEASE * 5, is_free).await.is_some(), "the key of the middle slot is free");
        cluster.node(1).tell(&["RPUSH", second, "precious"]);
        match set(wait).acquire().await {
            Err(LockError::WrongFormat { key, found, .. }) => {
                assert_eq!((&key, found.as_str()), (second, "list"));
            }
            other => panic!("{other:?}"),
        }
        assert_others_are_free().await;
        cluster.node(1).tell(&["DEL", second]);

        cluster.freeze(1);
        match set(wait).acquire().await {
            Err(LockError::Unavailable { key, .. }) => assert_eq!(key.as_ref(), Some(second)),
            other => panic!("{other:?}"),
        }
        cluster.thaw(1);
        assert_others_are_free().await;
        until_idle(&one, LEASE * 10).await;
    }
    set(LEASE * 20).run(async {}).await.expect("free again");
}
