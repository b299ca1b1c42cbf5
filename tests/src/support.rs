//! What several suites use.

use std::time::Duration;

use lock_runtime::{ClientStats, LockClient};

use crate::RedisServer;

/// The lease of most tests: all other durations derive from it. Long enough that a busy machine
/// renews in time, short enough that waiting for its end is no burden.
pub const LEASE: Duration = Duration::from_secs(1);

/// A client with the tests' lease.
pub async fn client(url: &str) -> LockClient {
    let builder = LockClient::builder().url(url).watchdog(LEASE).wait(LEASE * 20);
    builder.connect().await.expect("the server is up")
}

/// A duration as an argument of a helper process.
#[must_use]
pub fn milliseconds(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// A store, and the clients of two services that share it.
#[derive(Debug)]
pub struct Pair {
    /// The first service's.
    pub one: LockClient,
    /// The second service's.
    pub two: LockClient,
    /// Kept until the end of the test.
    pub server: Option<RedisServer>,
}

impl Pair {
    /// On a server of its own.
    pub async fn redis() -> Self {
        let server = RedisServer::start();
        let (one, two) = (client(&server.url()).await, client(&server.url()).await);
        Self { one, two, server: Some(server) }
    }

    /// On the memory store of this name.
    pub async fn memory(name: &str) -> Self {
        let url = format!("memory:{name}");
        Self { one: client(&url).await, two: client(&url).await, server: None }
    }
}

/// Waits until `what` is true, for `limit` at the most. Returns how long it took.
pub async fn until(limit: Duration, mut what: impl FnMut() -> bool) -> Option<Duration> {
    let start = tokio::time::Instant::now();
    loop {
        if what() {
            return Some(start.elapsed());
        }
        if start.elapsed() > limit {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the client has nothing on its hands any more, for `limit` at the most, and fails with
/// what it still has.
pub async fn until_at_rest(client: &LockClient, limit: Duration) {
    until(limit, || client.stats() == ClientStats::default()).await;
    assert_eq!(client.stats(), ClientStats::default(), "left after {limit:?}");
}
