//! Wake-ups that get lost.

use std::time::Duration;

use lock_runtime::LockClient;
use lock_tests::{Proxy, RedisServer};
use tokio::time::{Instant, sleep};

use crate::support::{LEASE, client, milliseconds};

/// The longest that a contender sleeps.
const SAFETY_POLL: Duration = Duration::from_secs(1);

/// Lets a client wait for a key that a stranger holds, and returns how long after `free` it has it.
async fn waited(server: &RedisServer, client: &LockClient, free: impl AsyncFnOnce()) -> Duration {
    let lock = client.lock("k").wait(SAFETY_POLL * 20);
    let waiting = async {
        let guard = lock.acquire().await.expect("it becomes free");
        let now = Instant::now();
        drop(guard);
        now
    };
    let freeing = async {
        // It waits by then, and has subscribed.
        sleep(LEASE / 4).await;
        free().await;
        Instant::now()
    };
    assert!(server.exists("k"));
    let (got, freed) = tokio::join!(waiting, freeing);
    got.saturating_duration_since(freed)
}

#[tokio::test]
async fn a_key_that_is_deleted_without_a_word_is_found_free_by_the_safety_poll() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    for _ in 0..3 {
        server.tell(&["SET", "k", "stranger", "PX", "100000"]);
        let took = waited(&server, &client, async || server.tell(&["DEL", "k"])).await;
        assert!(took < SAFETY_POLL + LEASE / 4, "{took:?}");
    }
}

#[tokio::test]
async fn a_key_that_expires_is_found_free_at_that_moment() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let left = milliseconds(LEASE / 4 + LEASE / 2);
    server.tell(&["SET", "k", "stranger", "PX", &left]);
    // From here on, half a lease is left.
    let took = waited(&server, &client, async || {}).await;
    assert!(took >= LEASE * 9 / 20, "not before: {took:?}");
    assert!(took < LEASE / 2 + LEASE / 4, "and not by the next poll: {took:?}");
}

/// The connection that would tell of the release is lost before it, and comes back after it.
#[tokio::test]
async fn a_release_that_falls_into_a_reconnection_is_noticed() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (client(&server.url()).await, client(&proxy.url()).await);
    for n in 0..10_u32 {
        let guard = one.lock("k").acquire().await.expect("free");
        let took = waited(&server, &two, async || {
            proxy.refuse(true);
            proxy.reset();
            guard.release().await.expect("over another connection");
            sleep(LEASE * n / 100).await;
            proxy.refuse(false);
        })
        .await;
        assert!(took < SAFETY_POLL + LEASE / 4, "{took:?}");
    }
}
