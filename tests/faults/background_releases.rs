//! Calls that do not wait for the release of their lock (`release = "background"`).

use std::time::Duration;

use lock_runtime::{Identity, LockClient, ReleaseMode, distributed_lock, with_client};
use lock_tests::{Expected, Proxy, RedisServer, Toward, within};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{FaultFixture, LEASE, until, until_idle};

/// Long enough that no request times out in a test.
const LONG_LEASE: Duration = LEASE.saturating_mul(20);

async fn client_with(url: &str, lease: Duration, release: ReleaseMode) -> LockClient {
    let builder = LockClient::builder().url(url).lease(lease).wait(LEASE * 60);
    // Without a presence, which is written with the same command as locks.
    builder.release(release).identity(Identity::none()).connect().await.expect("up")
}

/// A client whose calls return when their bodies have ended.
async fn client_in_background(url: &str) -> LockClient {
    client_with(url, LEASE, ReleaseMode::Background).await
}

#[distributed_lock(key = "k", release = "background")]
async fn annotated() -> Result<(), lock_runtime::LockError> {
    Ok(())
}

#[tokio::test]
async fn a_call_does_not_wait_for_its_release_and_the_next_one_does() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let other = client_in_background(&server.url()).await;
    for mode in [ReleaseMode::Background, ReleaseMode::Awaited] {
        let client = client_with(&proxy.url(), LONG_LEASE, mode).await;
        let lock = client.lock("k");
        let before = proxy.triggered();
        proxy.hold("EVALSHA");
        let mut call = Box::pin(lock.run(async {}));
        let returned = timeout(LEASE / 2, &mut call).await;
        assert_eq!(returned.is_ok(), mode == ReleaseMode::Background, "{mode:?}");
        assert!(until(LEASE, || proxy.triggered() > before).await.is_some(), "it is on its way");
        assert!(server.exists("k"), "the release is on its way");
        for client in [&other, &client] {
            // After a while without an answer, the client of the call reports `Unavailable`.
            let tried = client.lock("k").try_acquire().await;
            assert!(!matches!(tried, Ok(Some(_))), "it is still held");
        }
        let attempts = server.calls("set");
        let next = tokio::spawn(lock.run(async {}));
        sleep(LEASE / 4).await;
        assert!(!next.is_finished(), "the next call waits for the release");
        assert_eq!(server.calls("set"), attempts, "without a request");
        proxy.deliver();
        if returned.is_err() {
            call.await.expect("released");
        }
        next.await.expect("no panic").expect("free");
        until_idle(&client, LEASE * 5).await;
        assert!(!server.exists("k"), "it is free");
    }
}

/// The slower the network, the more calls find a release on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_exclude_each_other_while_releases_are_on_their_way() {
    let fixture = FaultFixture::new().await;
    let (mut proxies, mut tasks) = (Vec::new(), JoinSet::new());
    for _ in 0..3 {
        let proxy = Proxy::to(fixture.server.port());
        proxy.delay(Toward::Server, LEASE / 500);
        let client = client_in_background(&proxy.url()).await;
        for _ in 0..4 {
            let client = client.clone();
            let (recorder, register) = (fixture.recorder.clone(), fixture.register.clone());
            tasks.spawn(async move {
                let end = Instant::now() + LEASE * 4;
                while Instant::now() < end {
                    let body = async |holder: &lock_tests::workload::WorkloadHolder| {
                        let token = holder.fence().await?;
                        holder.write(&register, token).await.expect("the register is up");
                        Ok::<_, lock_runtime::LockError>(())
                    };
                    // A connection that is reset may cost the token of a hold.
                    let _ = lock_tests::workload::run(&client, "k", &recorder, body).await;
                }
                client
            });
        }
        proxies.push(proxy);
    }
    for round in 0..12 {
        sleep(LEASE / 4).await;
        proxies[round % 3].reset();
    }
    while let Some(client) = tasks.join_next().await {
        until_idle(&client.expect("no panic"), LEASE * 20).await;
    }
    assert!(until(LEASE * 2, || !fixture.server.exists("k")).await.is_some(), "it is free");
    fixture.assert_history(Expected::EVERYTHING);
}

#[tokio::test]
async fn a_release_whose_request_or_answer_is_lost_is_repeated() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = client_with(&proxy.url(), LONG_LEASE, ReleaseMode::Background).await;
    let faults: [&dyn Fn(); 2] = [&|| proxy.lose_reply_to("EVALSHA"), &|| proxy.cut("EVALSHA", 10)];
    for (fault, number) in faults.iter().zip(1..) {
        fault();
        client.lock("k").run(async {}).await.expect("the body has ended");
        let freed = until(LONG_LEASE / 4, || !server.exists("k")).await;
        assert!(freed.is_some(), "the release is repeated before the end of the lease");
        until_idle(&client, LONG_LEASE / 2).await;
        assert_eq!(proxy.triggered(), number);
        assert_eq!(client.stats().lost, 0);
    }
}

#[tokio::test]
async fn a_release_outlives_the_runtime_of_its_call_and_a_shutdown_waits_for_it() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = client_with(&proxy.url(), LONG_LEASE, ReleaseMode::Background).await;
    proxy.hold("EVALSHA");
    let of_call = client.clone();
    let call = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(with_client(of_call, annotated()))
    });
    call.join().expect("no panic").expect("the body has ended");
    let shutdown = tokio::spawn({
        let client = client.clone();
        async move { client.shutdown().await }
    });
    sleep(LEASE / 4).await;
    assert!(!shutdown.is_finished(), "the shutdown waits for the release");
    proxy.deliver();
    shutdown.await.expect("no panic").expect("everything is released");
    assert!(!server.exists("k"), "the runtime of the call has ended, and the lock is free");
}

/// Of a lock that the store has granted, and of one that was handed off.
#[tokio::test]
async fn a_loss_that_only_the_release_finds_is_counted() {
    let server = RedisServer::start();
    let client = client_with(&server.url(), LONG_LEASE, ReleaseMode::Background).await;
    let lock = client.lock("k");
    let delete = async || {
        lock.run(async { server.tell(&["DEL", "k"]) }).await.expect("the body has ended");
    };
    delete().await;
    let counted = until(LEASE * 5, || client.stats().lost == 1).await;
    assert!(counted.is_some(), "{:?}", client.stats());
    let first = lock.run(sleep(LEASE / 10));
    let (first, ()) = tokio::join!(first, async {
        tokio::task::yield_now().await;
        delete().await;
    });
    first.expect("the body has ended");
    let counted = until(LEASE * 5, || client.stats().lost == 2).await;
    assert!(counted.is_some(), "{:?}", client.stats());
}

#[tokio::test]
async fn calls_wait_for_their_releases_when_very_many_are_on_their_way() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = client_with(&proxy.url(), LONG_LEASE, ReleaseMode::Background).await;
    // Long enough that even a busy machine reaches the limit.
    proxy.delay(Toward::Server, LEASE / 2);
    let mut tasks = JoinSet::new();
    for task in 0..2000 {
        let lock = client.lock(format!("k{task}"));
        tasks.spawn(async move {
            for _ in 0..2 {
                lock.run(async {}).await.expect("free");
            }
        });
    }
    let mut most = 0;
    while !tasks.is_empty() {
        most = most.max(client.stats().releasing);
        let _ = timeout(LEASE / 200, tasks.join_next()).await;
    }
    println!("at most {most} releases on their way");
    // The limit is checked before the release begins.
    assert!(most > 500 && most < 1100, "{most} releases are on their way");
    until_idle(&client, LEASE * 20).await;
}

/// At the limit of hand-offs, a call asks for the number of waiting processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_releases_are_on_their_way_lets_another_one_acquire_the_lock() {
    let server = RedisServer::start();
    let busy = client_with(&server.url(), LONG_LEASE, ReleaseMode::Background).await;
    let other = client_with(&server.url(), LONG_LEASE, ReleaseMode::Background).await;
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let lock = busy.lock("k");
        tasks.spawn(async move {
            loop {
                lock.run(tokio::task::yield_now()).await.expect("up");
            }
        });
    }
    for _ in 0..20 {
        let call = other.lock("k").run(async {});
        within(LEASE * 2, call).await.expect("it gets the lock").expect("up");
    }
    tasks.shutdown().await;
    until_idle(&busy, LEASE * 5).await;
    assert!(until(LEASE, || !server.exists("k")).await.is_some(), "it is free");
}
