//! A counter that only the lock guards.

use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::scene::Scene;
use crate::with_every_client;

/// Of each side.
const TASKS: u64 = 4;
const TIMES: u64 = 1000;
/// Both sides begin each of them at the same time. In one go those that poll would count one after the
/// other: who has the lock and wants it again is faster than who looks now and then.
const ROUNDS: u64 = 10;

with_every_client! {
    async fn ours_and_theirs_count_every_time(scene: Scene) {
        assert_eq!(count(&scene, scene.client.key, "k").await, 2 * TIMES);
    }

    /// What the row above is worth.
    async fn the_count_is_wrong_if_ours_lock_another_key(scene: Scene) {
        assert!(count(&scene, "other", "k").await < 2 * TIMES);
    }

    async fn the_count_is_wrong_if_theirs_lock_another_key(scene: Scene) {
        assert!(count(&scene, scene.client.key, "other").await < 2 * TIMES);
    }
}

/// Both sides count, each under its own lock. Returns what the counter says in the end.
async fn count(scene: &Scene, our_key: &str, their_key: &str) -> u64 {
    let mut theirs = scene.theirs().await;
    let server = redis::Client::open(scene.server.url()).expect("a valid URL");
    // A machine that stands still for a moment is no mistake of the lock's.
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let server = server.get_multiplexed_async_connection_with_config(&patient).await.expect("up");
    for _ in 0..ROUNDS {
        let counting = theirs.send(&format!("count {their_key} n {TASKS} {}", TIMES / ROUNDS));
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (lock, server) = (scene.ours.lock(our_key), server.clone());
            tasks.spawn(async move {
                for _ in 0..TIMES / ROUNDS / TASKS {
                    lock.run(add_one(server.clone())).await.expect("in turn");
                    // Theirs do not queue; they only find what is free when they look.
                    sleep(Duration::from_millis(fastrand::u64(0..10))).await;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
        assert_eq!(counting.await, "ok");
    }
    scene.server.command(&["GET", "n"])
}

async fn add_one(mut server: MultiplexedConnection) {
    let n: Option<u64> = redis::cmd("GET").arg("n").query_async(&mut server).await.expect("up");
    let next = n.unwrap_or(0) + 1;
    redis::cmd("SET").arg("n").arg(next).query_async::<()>(&mut server).await.expect("up");
}
