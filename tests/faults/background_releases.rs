//! Calls that do not wait for the release of their lock (`release = "background"`).

use std::time::Duration;

use lock_runtime::{LockClient, ReleaseMode, distributed_lock, with_client};
use lock_tests::{Expected, Proxy, RedisServer, Toward};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{FaultFixture, LEASE, until, until_idle};

/// Long enough that no request times out in a test.
const LONG_LEASE: Duration = LEASE.saturating_mul(20);

async fn client_with(url: &str, lease: Duration, release: ReleaseMode) -> LockClient {
    let builder = LockClient::builder().url(url).lease(lease).wait(LEASE * 60);
    builder.release(release).connect().await.expect("up")
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
        proxy.hold("EVALSHA");
        let mut call = Box::pin(lock.run(async {}));
        let returned = timeout(LEASE / 2, &mut call).await;
        assert_eq!(returned.is_ok(), mode == ReleaseMode::Background, "{mode:?}");
        assert!(server.exists("k"), "the release is on its way");
        assert!(other.lock("k").try_acquire().await.expect("up").is_none(), "it is still held");
        let next = tokio::spawn(lock.run(async {}));
        sleep(LEASE / 4).await;
        assert!(!next.is_finished(), "the next call waits for the release");
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
    let client = client_in_background(&proxy.url()).await;
    let faults: [&dyn Fn(); 2] = [&|| proxy.lose_reply_to("EVALSHA"), &|| proxy.cut("EVALSHA", 10)];
    for (fault, number) in faults.iter().zip(1..) {
        fault();
        client.lock("k").run(async {}).await.expect("the body has ended");
        let freed = until(LEASE * 3 / 4, || !server.exists("k")).await;
        assert!(freed.is_some(), "the release is repeated before the end of the lease");
        until_idle(&client, LEASE * 10).await;
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

#[tokio::test]
async fn a_loss_that_only_the_release_finds_is_counted() {
    let server = RedisServer::start();
    let client = client_in_background(&server.url()).await;
    let result = client.lock("k").run(async { server.tell(&["DEL", "k"]) }).await;
    result.expect("the body has ended");
    let counted = until(LEASE * 5, || client.stats().lost == 1).await;
    assert!(counted.is_some(), "{:?}", client.stats());
}
