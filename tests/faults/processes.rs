//! Processes that are killed, frozen, or end.

use lock_tests::{Expected, Helper};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LEASE, Scene, client, milliseconds, take, until};

/// A waiter's bound on top of the holder's lease: it wakes up by itself.
const WAKE: std::time::Duration = std::time::Duration::from_millis(250);

#[tokio::test]
async fn the_lock_of_a_killed_process_is_taken_over_at_the_end_of_its_lease() {
    let mut scene = Scene::new().await;
    let (mut process, first) = scene.keeper(&scene.server.url());
    let client = client(&scene.server.url()).await;
    let waiting = take(&client, &scene);
    let killing = async {
        sleep(LEASE).await;
        scene.kill(&mut process);
        (Instant::now(), scene.server.pttl("k"))
    };
    let (token, (killed, left)) = tokio::join!(timeout(LEASE * 5, waiting), killing);
    let token = token.expect("within the lease").expect("the server is up");
    assert!(left > 0, "it was killed while it held the lock");
    let took = killed.elapsed();
    assert!(took.as_millis() >= u128::from(left.unsigned_abs()) / 2, "not before: {took:?}");
    assert!(took < LEASE + WAKE, "and not much later: {took:?}");
    assert!(token > first);
    scene.assert_history(Expected::EVERYTHING);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_frozen_past_its_lease_does_nothing_more() {
    let mut scene = Scene::new().await;
    let (mut process, first) = scene.keeper(&scene.server.url());
    process.freeze();
    let client = client(&scene.server.url()).await;
    let token = timeout(LEASE * 5, take(&client, &scene)).await.expect("at its end").expect("up");
    assert!(token > first);
    let guard = client.lock("k").acquire().await.expect("free");
    process.thaw();
    let told = tokio::task::spawn_blocking(move || {
        let mut line = process.line();
        // A write that was on its way.
        while line == "refused" {
            line = process.line();
        }
        line
    });
    let told = timeout(LEASE * 5, told).await.expect("at once").expect("no panic");
    assert!(told.starts_with("lost "), "{told}");
    // Whatever it does about its own hold leaves ours alone.
    sleep(LEASE).await;
    assert!(guard.is_held());
    guard.release().await.expect("held");
    // What it had begun to write before it was frozen arrives late, and only the fence refuses it.
    scene.assert_history(Expected { exclusion: true, no_stale_write: false });
}

#[tokio::test]
async fn a_process_that_was_frozen_for_less_than_its_lease_goes_on() {
    let mut scene = Scene::new().await;
    let (process, first) = scene.keeper(&scene.server.url());
    let owner: String = scene.server.command(&["GET", "k"]);
    for _ in 0..3 {
        process.freeze();
        sleep(LEASE / 3).await;
        process.thaw();
        sleep(LEASE / 3).await;
        let now: Option<String> = scene.server.command(&["GET", "k"]);
        assert_eq!(now.as_deref(), Some(&*owner));
    }
    let client = client(&scene.server.url()).await;
    assert_eq!(client.lock("k").try_acquire().await.expect("up").map(drop), None);
    assert!(first > 0);
    scene.assert_history(Expected::EVERYTHING);
}

#[tokio::test]
async fn the_lock_of_a_process_that_ended_expires_with_its_lease() {
    let scene = Scene::new().await;
    let args = ["exit", &scene.server.url(), "k", &milliseconds(LEASE)];
    let mut process = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args);
    assert_eq!(process.line(), "held");
    assert_eq!(process.line(), "", "and that was all");
    let gone = until(LEASE * 2, || !scene.server.exists("k")).await.expect("it expires");
    assert!(gone < LEASE + WAKE, "{gone:?}");
}
