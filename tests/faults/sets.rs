//! Faults of calls that take several locks together.

use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason, WireFormat};
use lock_tests::{Helper, Proxy, RedisServer, Toward};
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
        let guard = timeout(LEASE * 10, set.acquire()).await.expect("soon").expect("granted");
        assert!(guard.is_held());
        guard.release().await.expect("held");
        assert!(are_free(&server, LEASE * 5).await);
        until_idle(&client, LEASE * 5).await;
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
    sleep(LEASE / 4).await;
    assert!(!waiter.is_finished());
    process.kill();
    let start = Instant::now();
    let guard = waiter.await.expect("no panic").expect("free after the lease");
    assert!(start.elapsed() < LEASE * 3, "{:?}", start.elapsed());
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
    let guard = timeout(LEASE * 5, call).await.expect("soon").expect("no panic").expect("granted");
    assert!(guard.is_held() && KEYS.iter().all(|key| server.exists(key)));
    assert!(guard.remaining() > LEASE * 4, "the lease begins with the last lock");
    match timeout(LEASE * 20, guard.lost()).await.expect("the lease ends") {
        LockError::Lost { reason, .. } => assert_eq!(reason, LostReason::LeaseOver),
        other => panic!("{other:?}"),
    }
}
