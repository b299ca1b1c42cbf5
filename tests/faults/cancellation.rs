//! Futures that are dropped, after each number of polls that they can be dropped after.

use std::time::Duration;

use lock_runtime::{LockClient, LockError, LockGuard, distributed_lock, with_client};
use lock_tests::{Proxy, RedisServer, Toward};
use tokio::runtime::Handle;

use crate::support::{LEASE, polled, until, until_at_rest};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Acquire,
    TryAcquire,
    Release,
    Run,
    Annotated,
}

const CALLS: [Call; 5] =
    [Call::Acquire, Call::TryAcquire, Call::Release, Call::Run, Call::Annotated];

#[distributed_lock(key = "k")]
async fn annotated() -> Result<(), LockError> {
    tokio::task::yield_now().await;
    Ok(())
}

impl Call {
    /// `guard` is there for the one that releases it. Its outcome depends on the network.
    async fn make(self, client: LockClient, guard: Option<LockGuard>) {
        let outcome = match self {
            Self::Acquire => client.lock("k").acquire().await.map(drop),
            Self::TryAcquire => client.lock("k").try_acquire().await.map(drop),
            Self::Release => guard.expect("acquired before").release().await,
            Self::Run => client.lock("k").run(tokio::task::yield_now()).await,
            Self::Annotated => with_client(client, annotated()).await,
        };
        if let Err(error) = outcome {
            let expected = matches!(error, LockError::Unavailable { .. } | LockError::Lost { .. });
            assert!(expected, "{error:?}");
        }
    }
}

/// What one network looks like from a client.
struct Network<'a> {
    client: LockClient,
    /// Whether the key is there.
    exists: &'a dyn Fn() -> bool,
    /// How long until the key is free.
    free: Duration,
    /// How long until nothing else is left either.
    soon: Duration,
    /// Makes the network what it is to be, after what was prepared on a good one.
    spoil: &'a dyn Fn(),
    heal: &'a dyn Fn(),
}

/// Drops each call after each number of polls until it is done. Returns how many drops that were.
async fn drop_everywhere(network: Network<'_>) -> usize {
    let Network { client, exists, free, soon, spoil, heal } = network;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    // On a busy machine an answer may be late, and is asked for again.
    let lock = client.lock("k").wait(LEASE * 10);
    lock.run(async {}).await.expect("free");
    let tasks_at_rest = tasks();
    let mut drops = 0;
    for call in CALLS {
        for times in 0.. {
            let guard = match call {
                Call::Release => Some(lock.acquire().await.expect("free")),
                _ => None,
            };
            spoil();
            let done = polled(call.make(client.clone(), guard), times, LEASE * 10).await;
            let done = done.expect("it asks to be polled again until it is done");
            let freed = until(free, || !exists()).await;
            assert!(freed.is_some(), "{call:?}, {times} polls: the key is left");
            heal();
            // What stood still has arrived now.
            let freed = until(free, || !exists()).await;
            assert!(freed.is_some(), "{call:?}, {times} polls: the key is left after all");
            until_at_rest(&client, soon).await;
            assert!(
                until(LEASE * 10, || tasks() <= tasks_at_rest).await.is_some(),
                "{call:?}, {times} polls: {} tasks, {tasks_at_rest} before",
                tasks()
            );
            let next = tokio::time::timeout(LEASE * 20, lock.acquire()).await;
            // A short lease may be over again on a busy machine, which is no matter here.
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
async fn on_the_memory_store_nothing_is_left_wherever_a_call_is_dropped() {
    let one = LockClient::connect("memory:faults::cancellation").await.expect("no server");
    let two = LockClient::connect("memory:faults::cancellation").await.expect("no server");
    let exists = || {
        let mut taking = std::pin::pin!(two.lock("k").try_acquire());
        // It answers at once.
        let waker = std::task::Waker::noop();
        let answer = taking.as_mut().poll(&mut std::task::Context::from_waker(waker));
        !matches!(answer, std::task::Poll::Ready(Ok(Some(_))))
    };
    let nothing = || {};
    let network = Network {
        client: one,
        exists: &exists,
        free: LEASE / 2,
        soon: LEASE,
        spoil: &nothing,
        heal: &nothing,
    };
    assert!(drop_everywhere(network).await >= CALLS.len());
}

/// A client behind a proxy, with this lease.
async fn behind_proxy(lease: Duration, wait: Duration) -> (RedisServer, Proxy, LockClient) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = LockClient::builder().url(proxy.url()).watchdog(lease).wait(wait);
    let client = client.connect().await.expect("up");
    (server, proxy, client)
}

#[tokio::test]
async fn on_a_live_server_nothing_is_left_wherever_a_call_is_dropped() {
    // Its end would come too late.
    let (server, _proxy, client) = behind_proxy(LEASE * 60, LEASE * 10).await;
    let (exists, nothing) = (|| server.exists("k"), || {});
    // What may come late is looked for once more after a second.
    let soon = LEASE * 3;
    let free = LEASE;
    let network = Network { client, exists: &exists, free, soon, spoil: &nothing, heal: &nothing };
    let drops = drop_everywhere(network).await;
    assert!(drops > 3 * CALLS.len(), "{drops}");
}

#[tokio::test]
async fn on_a_slow_server_nothing_is_left_wherever_a_call_is_dropped() {
    let (server, proxy, client) = behind_proxy(LEASE * 60, LEASE * 10).await;
    let exists = || server.exists("k");
    for toward in [Toward::Server, Toward::Client] {
        proxy.delay(toward, LEASE / 50);
    }
    let (soon, nothing) = (LEASE * 3, || {});
    let free = LEASE;
    let network = Network { client, exists: &exists, free, soon, spoil: &nothing, heal: &nothing };
    let drops = drop_everywhere(network).await;
    assert!(drops > 3 * CALLS.len(), "{drops}");
}

/// It hears everything, and nobody hears it.
#[tokio::test]
async fn on_a_server_whose_answers_are_lost_nothing_is_left_wherever_a_call_is_dropped() {
    let (server, proxy, client) = behind_proxy(LEASE * 60, LEASE).await;
    let exists = || server.exists("k");
    let (spoil, heal) = (|| proxy.blackhole(Toward::Client), || proxy.heal());
    let (free, soon) = (LEASE, LEASE * 5);
    let network = Network { client, exists: &exists, free, soon, spoil: &spoil, heal: &heal };
    let drops = drop_everywhere(network).await;
    assert!(drops > 2 * CALLS.len(), "{drops}");
}

/// The link is cut as soon as a call is made, and comes back when it was dropped and its lease is
/// over.
#[tokio::test]
async fn on_a_server_that_never_answers_nothing_is_left_after_a_lease() {
    let lease = LEASE / 4;
    let (server, proxy, client) = behind_proxy(lease, lease * 2).await;
    let exists = || server.exists("k");
    let (spoil, heal) = (|| proxy.partition(), || proxy.heal());
    let (free, soon) = (lease * 2, LEASE * 3);
    let network = Network { client, exists: &exists, free, soon, spoil: &spoil, heal: &heal };
    let drops = drop_everywhere(network).await;
    assert!(drops > 3 * CALLS.len(), "{drops}");
}
