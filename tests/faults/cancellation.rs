//! Futures that are dropped after each possible number of polls.

use std::time::Duration;

use lock_runtime::{LockClient, LockError, LockGuard, distributed_lock, with_client};
use lock_tests::{Proxy, RedisServer};
use tokio::runtime::Handle;

use crate::support::{LEASE, polled, until, until_idle};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiCall {
    Acquire,
    TryAcquire,
    Release,
    Run,
    Annotated,
}

pub(crate) const CALLS: [ApiCall; 5] =
    [ApiCall::Acquire, ApiCall::TryAcquire, ApiCall::Release, ApiCall::Run, ApiCall::Annotated];

#[distributed_lock(key = "k")]
async fn annotated() -> Result<(), LockError> {
    tokio::task::yield_now().await;
    Ok(())
}

impl ApiCall {
    /// Makes the call. `guard` is the guard to release. The outcome depends on the network.
    pub(crate) async fn make(self, client: LockClient, guard: Option<LockGuard>) {
        let outcome = match self {
            Self::Acquire => client.lock("k").acquire().await.map(drop),
            Self::TryAcquire => client.lock("k").try_acquire().await.map(drop),
            Self::Release => guard.expect("a guard to release").release().await,
            Self::Run => client.lock("k").run(tokio::task::yield_now()).await,
            Self::Annotated => with_client(client, annotated()).await,
        };
        if let Err(error) = outcome {
            let expected = matches!(error, LockError::Unavailable { .. } | LockError::Lost { .. });
            assert!(expected, "{error:?}");
        }
    }
}

/// A client on a network with certain faults.
struct FaultyNetwork<'a> {
    client: LockClient,
    /// Whether the key exists.
    exists: &'a dyn Fn() -> bool,
    /// The time within which the key must be free.
    free: Duration,
    /// The time within which the client must be idle.
    soon: Duration,
    /// Injects the fault, after the preparations on a working network.
    inject: &'a dyn Fn(),
    heal: &'a dyn Fn(),
}

/// Drops each call after each number of polls, until it completes. Returns the number of drops.
async fn drop_everywhere(network: FaultyNetwork<'_>) -> usize {
    let FaultyNetwork { client, exists, free, soon, inject, heal } = network;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    // Time to repeat a request whose reply is late on a busy machine.
    let lock = client.lock("k").wait(LEASE * 10);
    lock.run(async {}).await.expect("free");
    let tasks_at_rest = tasks();
    let mut drops = 0;
    for call in CALLS {
        for times in 0.. {
            let guard = match call {
                ApiCall::Release => Some(lock.acquire().await.expect("free")),
                _ => None,
            };
            inject();
            let done = polled(call.make(client.clone(), guard), times, LEASE * 10).await;
            let done = done.expect("the call is woken until it completes");
            let freed = until(free, || !exists()).await;
            assert!(freed.is_some(), "{call:?}, {times} polls: the key still exists");
            heal();
            // Requests that were held back have arrived by now.
            let freed = until(free, || !exists()).await;
            assert!(
                freed.is_some(),
                "{call:?}, {times} polls: the key still exists after the fault"
            );
            until_idle(&client, soon).await;
            assert!(
                until(LEASE * 10, || tasks() <= tasks_at_rest).await.is_some(),
                "{call:?}, {times} polls: {} tasks, {tasks_at_rest} before",
                tasks()
            );
            let next = tokio::time::timeout(LEASE * 20, lock.acquire()).await;
            // On a busy machine, a short lease may have ended before the release.
            let _ = next.expect("at once").expect("free").release().await;
            drops += 1;
            if done {
                break;
            }
        }
    }
    drops
}

#[tokio::test]
async fn a_call_dropped_at_any_poll_leaves_nothing_on_the_memory_store() {
    let one = LockClient::connect("memory:faults::cancellation").await.expect("the memory store");
    let two = LockClient::connect("memory:faults::cancellation").await.expect("the memory store");
    let exists = || {
        let mut taking = std::pin::pin!(two.lock("k").try_acquire());
        // The memory store replies at once.
        let waker = std::task::Waker::noop();
        let answer = taking.as_mut().poll(&mut std::task::Context::from_waker(waker));
        !matches!(answer, std::task::Poll::Ready(Ok(Some(_))))
    };
    let nothing = || {};
    let network = FaultyNetwork {
        client: one,
        exists: &exists,
        free: LEASE / 2,
        soon: LEASE,
        inject: &nothing,
        heal: &nothing,
    };
    assert!(drop_everywhere(network).await >= CALLS.len());
}

/// A server behind a proxy, and a client with this lease that connects through the proxy.
async fn behind_proxy(lease: Duration, wait: Duration) -> (RedisServer, Proxy, LockClient) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = LockClient::builder().url(proxy.url()).lease(lease).wait(wait);
    let client = client.connect().await.expect("up");
    (server, proxy, client)
}

#[tokio::test]
async fn a_call_dropped_at_any_poll_leaves_nothing_on_a_live_server() {
    // The lease does not end during the test.
    let (server, _proxy, client) = behind_proxy(LEASE * 60, LEASE * 10).await;
    let (exists, nothing) = (|| server.exists("k"), || {});
    // The second round of a cleanup is sent after a second.
    let soon = LEASE * 3;
    let free = LEASE;
    let network =
        FaultyNetwork { client, exists: &exists, free, soon, inject: &nothing, heal: &nothing };
    let drops = drop_everywhere(network).await;
    assert!(drops > 3 * CALLS.len(), "{drops}");
}
