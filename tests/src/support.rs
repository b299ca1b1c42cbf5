//! Helpers shared by several suites.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use lock_runtime::{ClientStats, Identity, LockClient, LockGuard, ReadWriteHold};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{Helper, RedisServer, TestedStore, running_time};

/// The lease of most tests. All other durations derive from it. It is long enough for a busy
/// machine to renew in time, and short enough to wait for its end.
pub const LEASE: Duration = Duration::from_secs(1);

/// A client with the lease [`LEASE`].
pub async fn client(url: &str) -> LockClient {
    let builder = LockClient::builder().url(url).lease(LEASE).wait(LEASE * 20);
    builder.connect().await.expect("the server is up")
}

/// A client that only sends what its calls need: it has no presence, and its leases are so long that no renewal
/// comes in between.
pub async fn quiet_client(url: &str) -> LockClient {
    let builder = LockClient::builder().url(url).identity(Identity::none());
    let builder = builder.lease(LEASE * 600).wait(LEASE * 20);
    builder.connect().await.expect("the server is up")
}

/// What only the guard of a read-write lock can do.
///
/// # Panics
///
/// If it is that of another lock.
pub fn of_read_write(guard: &LockGuard) -> ReadWriteHold<'_> {
    guard.read_write().expect("a read-write lock")
}

/// Formats a duration as an argument of a helper process.
#[must_use]
pub fn milliseconds(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// A store, and the clients of two services that share it.
#[derive(Debug)]
pub struct Pair {
    /// The client of the first service.
    pub one: LockClient,
    /// The client of the second service.
    pub two: LockClient,
    /// Keeps the server running until the end of the test.
    pub server: Option<RedisServer>,
    /// The same, of another store.
    pub store: Option<TestedStore>,
}

impl Pair {
    /// Two clients of a new server.
    pub async fn redis() -> Self {
        let server = RedisServer::start();
        let (one, two) = (client(&server.url()).await, client(&server.url()).await);
        Self { one, two, server: Some(server), store: None }
    }

    /// Two clients of the memory store `name`.
    pub async fn memory(name: &str) -> Self {
        let url = format!("memory:{name}");
        Self { one: client(&url).await, two: client(&url).await, server: None, store: None }
    }

    /// The URL of the store; `None` for the memory store.
    #[must_use]
    pub fn url(&self) -> Option<String> {
        let of_server = self.server.as_ref().map(RedisServer::url);
        of_server.or_else(|| self.store.as_ref().map(TestedStore::url))
    }

    /// Whether one request takes the locks of several keys. A cluster and the other stores take one after the other.
    #[must_use]
    pub fn takes_sets_in_one_step(&self) -> bool {
        self.store.is_none()
            && !self.server.as_ref().is_some_and(|server| server.url().starts_with("redis+cluster"))
    }
}

/// Waits until `condition` is true, for at most `limit`, not counting the time in which the machine stood still. Returns how long
/// it took, or `None` after `limit`.
pub async fn until(limit: Duration, mut condition: impl FnMut() -> bool) -> Option<Duration> {
    let start = Instant::now();
    loop {
        if condition() {
            return Some(start.elapsed());
        }
        if running_time(start) > limit {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The outcomes of calls that run as tasks.
///
/// # Panics
///
/// If a call has panicked.
pub async fn outcomes_of<T: Send + 'static>(calls: Vec<tokio::task::JoinHandle<T>>) -> Vec<T> {
    let mut outcomes = Vec::new();
    for call in calls {
        outcomes.push(call.await.expect("no panic"));
    }
    outcomes
}

/// Waits until the client is idle, for at most `limit`, and asserts that it is.
pub async fn until_idle(client: &LockClient, limit: Duration) {
    until(limit, || client.stats().is_idle()).await;
    // Earlier losses and dropped events do not make a client busy.
    let ClientStats { lost, dropped_events, .. } = client.stats();
    let mut idle = ClientStats::default();
    (idle.lost, idle.dropped_events) = (lost, dropped_events);
    assert_eq!(client.stats(), idle, "left after {limit:?}");
}

/// Lets `tasks` tasks of these clients take one lock and increment a counter.
///
/// # Panics
///
/// If two tasks hold the lock at once, or if a task does not get it.
pub async fn count_under_contention(clients: [&LockClient; 2], tasks: usize) {
    let (inside, total) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut counting = JoinSet::new();
    for client in clients.into_iter().cycle().take(tasks) {
        let (lock, inside, total) = (client.lock("k"), Arc::clone(&inside), Arc::clone(&total));
        counting.spawn(async move {
            lock.run(async {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two tasks hold the lock");
                tokio::task::yield_now().await;
                total.fetch_add(1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
            })
            .await
        });
    }
    while let Some(counted) = counting.join_next().await {
        counted.expect("no panic").expect("granted");
    }
    assert_eq!(total.load(Ordering::SeqCst), tasks);
}

/// Lets another runtime make the first calls of a client, and then blocks it in the middle of a call. Meanwhile, calls and
/// renewals on this runtime, which has several threads, go on for longer than the client's lease, which is `LEASE * 6`. Then the
/// other client gets the lock of the call in the middle.
///
/// # Panics
///
/// If a call takes as long as a response timeout, or fails, or if a lock is lost.
pub async fn calls_go_on_beside_a_blocked_runtime(client: &LockClient, other: &LockClient) {
    let (lease, delayed) = (LEASE * 6, "a blocked runtime delays no calls of others");
    let (block, blocked) = tokio::sync::oneshot::channel();
    let (unblock, unblocked) = std::sync::mpsc::channel::<()>();
    let (client_of_first, second) = (client.clone(), client.lock("second"));
    let blocked_calls = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            // As many connections as it may have.
            let calls = (0..16).map(|n| client_of_first.lock(format!("first{n}")));
            let mut first: JoinSet<_> =
                calls.map(|lock| async move { lock.run(async {}).await }).collect();
            while let Some(called) = first.join_next().await {
                called.expect("no panic").expect("free");
            }
            let call = tokio::spawn(async move { second.acquire().await });
            tokio::task::yield_now().await;
            block.send(()).expect("it is awaited");
            // Ends when the sender is dropped.
            let _ = unblocked.recv();
            call.await.expect("no panic").map(drop)
        })
    });
    blocked.await.expect("the first call succeeds");
    let until = tokio::time::Instant::now() + lease * 6 / 5;
    let held = timeout(lease / 4, client.lock("held").acquire()).await;
    let held = held.expect(delayed).expect("free");
    while tokio::time::Instant::now() < until {
        let call = timeout(lease / 4, client.lock("k").run(async {})).await;
        call.expect(delayed).expect("free");
        tokio::time::sleep(lease / 20).await;
    }
    held.release().await.expect("renewed");
    let second = timeout(lease * 2, other.lock("second").acquire()).await;
    let second = second.expect("a blocked runtime keeps no key for longer than a lease");
    second.expect("free").release().await.expect("held");
    drop(unblock);
    blocked_calls.await.expect("no panic").expect("granted after all");
}

/// Two processes add to `counter` under locks of the store at `url`, each with this number of tasks. Returns the sum.
/// `program` is the `lock-helper`.
#[must_use]
pub fn count_by_processes(
    program: &str,
    (url, counter): (&str, &RedisServer),
    tasks: u64,
    how: &str,
) -> u64 {
    let args = ["count", url, &counter.plain_url(), "hot", &tasks.to_string(), how];
    let mut processes = [Helper::start(program, &args), Helper::start(program, &args)];
    for process in &mut processes {
        assert_eq!(process.line(), "ready");
    }
    for process in &mut processes {
        process.tell("go");
    }
    for process in &mut processes {
        assert_eq!(process.line(), "done");
    }
    counter.command(&["GET", "n"])
}

/// Polls a future up to `times` times, each time after it was woken, and then drops it. Returns
/// whether it completed, or `None` if it was not woken within `limit`.
pub async fn polled<F: Future>(future: F, times: usize, limit: Duration) -> Option<bool> {
    let woken = Arc::new(WakeSignal(Notify::new()));
    let waker = Waker::from(Arc::clone(&woken));
    let mut future = pin!(future);
    for _ in 0..times {
        let done = poll_fn(|_| {
            Poll::Ready(future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready())
        });
        if done.await {
            return Some(true);
        }
        if timeout(limit, woken.0.notified()).await.is_err() {
            return None;
        }
    }
    Some(false)
}

struct WakeSignal(Notify);

impl Wake for WakeSignal {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}
