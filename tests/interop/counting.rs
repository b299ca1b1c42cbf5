//! A counter that is guarded only by the lock.

use std::time::Duration;

use lock_tests::workload::patient_connection;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::fixture::InteropFixture;
use crate::with_every_client;

/// The number of tasks on each side.
const TASKS: u64 = 4;
/// The number of increments by each side.
const TIMES: u64 = 1000;
/// The number of rounds. Both sides start each round at the same time. In a single round, the sides
/// would count one after the other, because a holder that asks again is faster than a client that
/// polls.
const ROUNDS: u64 = 10;

with_every_client! {
    async fn both_sides_count_exactly(fixture: InteropFixture) {
        assert_eq!(count(&fixture, fixture.client.key, "k").await, 2 * TIMES);
    }

    /// The control of the test above.
    async fn the_count_is_wrong_if_this_library_locks_another_key(fixture: InteropFixture) {
        assert!(count(&fixture, "other", "k").await < 2 * TIMES);
    }

    async fn the_count_is_wrong_if_the_peer_locks_another_key(fixture: InteropFixture) {
        assert!(count(&fixture, fixture.client.key, "other").await < 2 * TIMES);
    }
}

/// Lets both sides count, each under its own lock. Returns the final value of the counter.
async fn count(fixture: &InteropFixture, key: &str, peer_key: &str) -> u64 {
    let mut peer = fixture.peer().await;
    let server = patient_connection(&fixture.server.url()).await.expect("up");
    for _ in 0..ROUNDS {
        let counting = peer.send(&format!("count {peer_key} n {TASKS} {}", TIMES / ROUNDS));
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (lock, server) = (fixture.lock_client.lock(key), server.clone());
            tasks.spawn(async move {
                for _ in 0..TIMES / ROUNDS / TASKS {
                    lock.run(add_one(server.clone())).await.expect("granted");
                    // Leaves the key free at times, because peers that poll have no queue.
                    sleep(Duration::from_millis(fastrand::u64(0..10))).await;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
        assert_eq!(counting.await, "ok");
    }
    fixture.server.command(&["GET", "n"])
}

async fn add_one(mut server: MultiplexedConnection) {
    let n: Option<u64> = redis::cmd("GET").arg("n").query_async(&mut server).await.expect("up");
    let next = n.unwrap_or(0) + 1;
    redis::cmd("SET").arg("n").arg(next).query_async::<()>(&mut server).await.expect("up");
}
