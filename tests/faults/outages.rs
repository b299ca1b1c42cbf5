//! How long calls tolerate an outage of the store, and clients that start during one.

use std::time::Duration;

use lock_runtime::{LockClient, LockClientBuilder, LockError};
use lock_tests::{Cluster, RedisServer, running_time};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{LEASE, until, until_idle};

/// The outage that the calls of these tests tolerate.
const TOLERATED: Duration = LEASE.saturating_mul(2);

/// Longer than any of these tests takes.
const WAIT: Duration = LEASE.saturating_mul(120);

fn builder(url: &str) -> LockClientBuilder {
    LockClient::builder().url(url).lease(LEASE).wait(WAIT).unavailable_after(TOLERATED)
}

fn assert_unavailable(outcome: &Result<(), LockError>) {
    assert!(matches!(outcome, Err(LockError::Unavailable { key: Some(_), .. })), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_fail_when_an_outage_is_longer_than_they_tolerate() {
    for freezes in [false, true] {
        let mut server = RedisServer::start();
        let client = builder(&server.url()).connect().await.expect("up");
        let lock = client.lock("k");
        lock.run(async {}).await.expect("up");
        if freezes {
            server.freeze();
        } else {
            server.kill();
        }
        let began = Instant::now();
        assert_unavailable(&lock.run(async {}).await);
        let took = began.elapsed();
        // An attempt may take a response timeout, and the pauses between attempts are up to half a second.
        assert!((TOLERATED..TOLERATED * 5).contains(&took), "{took:?}, freezes: {freezes}");
        // The outage lasts, so others do not wait for it.
        let mut calls = JoinSet::new();
        for n in 0..50 {
            let lock = client.lock(if n % 2 == 0 { "k".to_owned() } else { format!("k{n}") });
            calls.spawn(async move { lock.run(async {}).await });
        }
        let began = Instant::now();
        while let Some(outcome) = calls.join_next().await {
            assert_unavailable(&outcome.expect("no panic"));
        }
        assert!(running_time(began) < TOLERATED * 5, "{:?}", began.elapsed());
        if freezes {
            server.thaw();
        } else {
            server.restart();
        }
        let again = async || lock.run(async {}).await.is_ok();
        let began = Instant::now();
        while !again().await {
            assert!(running_time(began) < LEASE * 30, "calls notice that it works again");
            tokio::time::sleep(LEASE / 10).await;
        }
        until_idle(&client, LEASE * 10).await;
    }
}

/// The control: without the setting, a call waits for the whole wait.
#[tokio::test]
async fn by_default_calls_wait_for_the_end_of_an_outage() {
    let mut server = RedisServer::start();
    let client = LockClient::builder().url(server.url()).lease(LEASE).wait(WAIT).connect().await;
    let lock = client.expect("up").lock("k");
    server.kill();
    let call = tokio::spawn(async move { lock.run(async {}).await });
    tokio::time::sleep(TOLERATED * 2).await;
    assert!(!call.is_finished());
    server.restart();
    call.await.expect("no panic").expect("the outage is over");
}

#[tokio::test]
async fn a_short_outage_fails_no_call() {
    let mut server = RedisServer::start();
    let builder = builder(&server.url()).unavailable_after(LEASE * 30);
    let lock = builder.connect().await.expect("up").lock("k");
    server.kill();
    let call = tokio::spawn(async move { lock.run(async {}).await });
    tokio::time::sleep(LEASE).await;
    server.restart();
    call.await.expect("no panic").expect("tolerated");
}

#[tokio::test]
async fn a_busy_lock_is_no_outage() {
    let server = RedisServer::start();
    let client = builder(&server.url()).connect().await.expect("up");
    server.tell(&["SET", "k", "stranger", "PX", &(TOLERATED * 2).as_millis().to_string()]);
    let began = Instant::now();
    client.lock("k").run(async {}).await.expect("after the other lease");
    assert!(began.elapsed() > TOLERATED);
}

/// The nodes of a cluster have outages of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_one_node_fails_no_call_for_another_one() {
    let cluster = Cluster::start();
    // Shorter than the failover.
    let builder = builder(&cluster.url()).unavailable_after(LEASE / 2);
    let client = builder.connect().await.expect("up");
    let [down, works] = [0, 1].map(|shard| cluster.key_of(shard, 0));
    for key in [&down, &works] {
        client.lock(&**key).run(async {}).await.expect("up");
    }
    let master = cluster.master_of(&down).expect("it has one");
    cluster.freeze(master);
    assert_unavailable(&client.lock(&*down).run(async {}).await);
    client.lock(&*works).run(async {}).await.expect("another node");
    cluster.thaw(master);
}

#[tokio::test]
async fn a_client_may_start_while_its_server_is_down() {
    let mut server = RedisServer::start();
    server.kill();
    let client = builder(&server.url()).connect_lazy().expect("the settings are valid");
    let once = client.lock("k").wait(Duration::ZERO);
    assert_unavailable(&once.run(async {}).await);
    assert!(client.ready().await.is_err());
    let lock = client.lock("k");
    let waits = tokio::spawn(async move { lock.run(async {}).await });
    server.restart();
    waits.await.expect("no panic").expect("it is up");
    client.ready().await.expect("it is up");
    // Messages are received as well.
    let guard = client.lock("k").acquire().await.expect("free");
    let other = builder(&server.url()).connect().await.expect("up").lock("k");
    let next = tokio::spawn(async move { other.run(async {}).await });
    assert!(until(LEASE * 20, || server.queued("k") == 1).await.is_some());
    guard.release().await.expect("held");
    next.await.expect("no panic").expect("its turn");
}

#[test]
fn a_lazy_client_needs_no_runtime_and_has_its_settings_checked() {
    for builder in [
        LockClient::builder(),
        LockClient::builder().url("http://localhost"),
        LockClient::builder().url("redis://localhost").lease(Duration::ZERO),
        LockClient::builder().url("redis://localhost").unavailable_after(Duration::ZERO),
    ] {
        assert!(matches!(builder.connect_lazy(), Err(LockError::Config { .. })));
    }
    let server = RedisServer::start();
    let client = LockClient::builder().url(server.url()).connect_lazy().expect("valid");
    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let call = async { client.lock("k").run(async {}).await };
        runtime.expect("a runtime").block_on(call).expect("up");
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_used_is_an_error_of_each_call() {
    let server = RedisServer::plain(&[]);
    server.tell(&["ACL", "SETUSER", "default", "-eval", "-evalsha", "-set"]);
    let client = LockClient::builder().url(server.url()).connect_lazy().expect("valid");
    let outcome = client.lock("k").run(async {}).await;
    assert!(matches!(outcome, Err(LockError::Denied { .. })), "{outcome:?}");
}
