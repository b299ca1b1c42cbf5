//! What several suites use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::{ClientStats, LockClient};
use tokio::task::JoinSet;

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
    until(limit, || client.stats().is_idle()).await;
    // What has been lost before is no matter here.
    let ClientStats { lost, dropped_events, .. } = client.stats();
    let mut idle = ClientStats::default();
    (idle.lost, idle.dropped_events) = (lost, dropped_events);
    assert_eq!(client.stats(), idle, "left after {limit:?}");
}

/// So many tasks of these clients take one lock, and count.
///
/// # Panics
///
/// If two of them have it at once, or one does not get it.
pub async fn count_under_contention(clients: [&LockClient; 2], tasks: usize) {
    let (inside, total) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut counting = JoinSet::new();
    for client in clients.into_iter().cycle().take(tasks) {
        let (lock, inside, total) = (client.lock("k"), Arc::clone(&inside), Arc::clone(&total));
        counting.spawn(async move {
            lock.run(async {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                tokio::task::yield_now().await;
                total.fetch_add(1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
            })
            .await
        });
    }
    while let Some(counted) = counting.join_next().await {
        counted.expect("no panic").expect("in turn");
    }
    assert_eq!(total.load(Ordering::SeqCst), tasks);
}
