//! Servers that die, forget, go silent, or have another idea of the time.

use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason};
use lock_tests::{Expected, Proxy, RedisServer, Toward};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LEASE, Scene, client, keep, take, until};

/// Starts somebody who holds `k` for as long as it is let; returns the task and the token.
async fn start_keeper(
    client: &LockClient,
    scene: &Scene,
) -> (tokio::task::JoinHandle<Result<(), LockError>>, u64) {
    let (held, token) = oneshot::channel();
    let (diary, register) = (scene.diary.clone(), scene.register.clone());
    let keeper = tokio::spawn(keep(client.clone(), diary, register, held));
    (keeper, timeout(LEASE, token).await.expect("at once").expect("it has the lock"))
}

fn lost(outcome: Result<(), LockError>) -> LostReason {
    match outcome {
        Err(LockError::Lost { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_died_and_forgot_ends_the_hold() {
    let mut scene = Scene::new().await;
    let client = client(&scene.server.url()).await;
    let (keeper, first) = start_keeper(&client, &scene).await;
    scene.server.restart();
    let outcome = timeout(LEASE * 2, keeper).await.expect("by its next renewal");
    let reason = lost(outcome.expect("no panic"));
    assert!(matches!(reason, LostReason::Gone | LostReason::RenewalFailed), "{reason:?}");
    sleep(LEASE / 2).await;
    assert!(!scene.server.exists("k"), "a lock that is lost is not made again");
    let second = take(&client, &scene).await.expect("free");
    assert!(second > first, "{second} after {first}");
    // Both might have held it for a moment: the server kept nothing.
    scene.assert_history(Expected::THE_LEAST);
}

#[tokio::test]
async fn a_server_that_died_and_kept_its_data_keeps_the_hold() {
    let server = RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut scene = Scene::on(server).await;
    let lease = LEASE * 6;
    let client = LockClient::builder().url(scene.server.url()).watchdog(lease);
    let client = client.connect().await.expect("up");
    let (keeper, first) = start_keeper(&client, &scene).await;
    let owner: String = scene.server.command(&["GET", "k"]);
    scene.server.kill();
    // Longer than a renewal can be off.
    sleep(lease / 3 + LEASE / 5).await;
    scene.server.restart();
    sleep(lease).await;
    assert!(!keeper.is_finished(), "{:?}", keeper.await);
    assert_eq!(scene.server.command::<String>(&["GET", "k"]), owner);
    keeper.abort();
    assert!(until(LEASE, || !scene.server.exists("k")).await.is_some(), "and is released");
    assert!(take(&client, &scene).await.expect("free") > first);
    scene.assert_history(Expected::EVERYTHING);
}

#[tokio::test]
async fn a_server_that_is_still_loading_is_unavailable_and_waited_for() {
    let mut scene = Scene::new().await;
    let fill = "for n = 1, 20000 do redis.call('set', 'n:' .. n, n) end";
    scene.server.tell(&["EVAL", fill, "0"]);
    scene.server.tell(&["SAVE"]);
    let client = client(&scene.server.url()).await;
    // 100 µs for each key, and clients are answered meanwhile.
    scene.server.restart_with(&[
        "--key-load-delay",
        "100",
        "--loading-process-events-interval-bytes",
        "1024",
    ]);
    loop {
        match client.lock("k").wait(LEASE / 3).acquire().await {
            Err(LockError::Unavailable { cause, .. }) if cause.contains("LOADING") => break,
            // The connection to the server of before, or a wait that ended in the middle of a request.
            Err(LockError::Unavailable { .. }) => {}
            other => panic!("it was to be loading for two seconds: {other:?}"),
        }
    }
    let guard = client.lock("k").wait(LEASE * 20).acquire().await.expect("when it is done");
    assert_eq!(scene.server.command::<u32>(&["DBSIZE"]), 20_001);
    guard.release().await.expect("held");
}

#[tokio::test]
async fn a_server_out_of_reach_ends_the_hold_at_its_deadline() {
    let scene = Scene::new().await;
    let proxy = Proxy::to(scene.server.port());
    let far = client(&proxy.url()).await;
    let near = client(&scene.server.url()).await;
    let (keeper, first) = start_keeper(&far, &scene).await;
    sleep(LEASE).await;
    let left = scene.server.pttl("k");
    proxy.partition();
    let cut = Instant::now();
    let waiting = far.lock("other").wait(LEASE / 2).acquire();
    match waiting.await {
        Err(LockError::Unavailable { .. }) => {}
        other => panic!("nobody can know whether it is busy: {other:?}"),
    }
    let outcome = timeout(LEASE, keeper).await.expect("at its deadline").expect("no panic");
    let after = cut.elapsed();
    assert_eq!(lost(outcome), LostReason::RenewalFailed);
    let left = Duration::from_millis(left.unsigned_abs());
    assert!(after <= left + LEASE / 10, "not later: {after:?} of {left:?}");
    assert!(after + LEASE / 5 >= left, "and not much earlier: {after:?} of {left:?}");
    let second = timeout(LEASE * 2, take(&near, &scene)).await.expect("expired").expect("up");
    assert!(second > first);
    let guard = near.lock("k").acquire().await.expect("free");
    proxy.heal();
    sleep(LEASE).await;
    assert!(guard.is_held(), "what was on its way has done nothing to it");
    guard.release().await.expect("held");
    far.lock("k").acquire().await.expect("all is well").release().await.expect("held");
    scene.assert_history(Expected::EVERYTHING);
}

#[tokio::test]
async fn an_answer_that_comes_after_the_lease_is_no_grant() {
    let scene = Scene::new().await;
    let proxy = Proxy::to(scene.server.port());
    // Patient enough to wait for the answer.
    let client = LockClient::builder().url(proxy.url()).watchdog(LEASE * 6).connect().await;
    let client = client.expect("up");
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
    proxy.delay(Toward::Client, LEASE * 3 / 4);
    let lease = LEASE / 2;
    match client.lock("k").lease(lease).try_acquire().await {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("longer than the lease"), "{cause}");
        }
        other => panic!("it had expired by then: {other:?}"),
    }
    assert!(until(LEASE * 4, || !scene.server.exists("k")).await.is_some());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_whose_clock_jumps_ahead_gives_the_lock_away_and_the_holder_is_told() {
    let scene = Scene::on(RedisServer::with_own_clock(&[])).await;
    let url = scene.server.url();
    let (one, two) = (client(&url).await, client(&url).await);
    let (keeper, first) = start_keeper(&one, &scene).await;
    scene.server.set_clock(60);
    let second = timeout(LEASE * 3, take(&two, &scene)).await.expect("by the poll").expect("up");
    assert!(second > first, "{second} after {first}");
    let outcome = timeout(LEASE, keeper).await.expect("by its next renewal").expect("no panic");
    let reason = lost(outcome);
    assert!(matches!(reason, LostReason::Gone | LostReason::Taken), "{reason:?}");
    // For a moment there were two, which only the fence can tell apart.
    scene.assert_history(Expected::THE_LEAST);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_server_whose_clock_is_set_back_makes_nobody_wait_and_its_tokens_rise() {
    let scene = Scene::on(RedisServer::with_own_clock(&[])).await;
    let url = scene.server.url();
    let (one, two) = (client(&url).await, client(&url).await);
    let (keeper, first) = start_keeper(&one, &scene).await;
    scene.server.set_clock(-120);
    let stretched = until(LEASE, || scene.server.pttl("k") > 100_000).await;
    assert!(stretched.is_some(), "the server believes that there is an age left");
    let waiting = take(&two, &scene);
    let releasing = async {
        sleep(LEASE / 2).await;
        keeper.abort();
        Instant::now()
    };
    let (second, released) = tokio::join!(timeout(LEASE * 10, waiting), releasing);
    let second = second.expect("not an age").expect("up");
    // Woken, or by the safety poll.
    assert!(released.elapsed() < LEASE * 3 / 2, "{:?}", released.elapsed());
    assert!(second > first, "{second} after {first}");
    scene.assert_history(Expected::EVERYTHING);
}
