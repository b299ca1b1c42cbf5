//! Processes and servers that are killed or suspended.

use std::time::Duration;

use lock_runtime::{LockError, LostReason};
use lock_tests::support::{count_by_processes, until_idle};
use lock_tests::{Helper, RedisServer, StoreFaults, TestedStore, running_time_between, within};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LEASE, helper, milliseconds, until};

/// Longer than a store needs after a restart until it grants locks again.
const LONG: Duration = LEASE.saturating_mul(30);

/// A process that holds the lock on `k`, and prints how it ends.
fn holder(store: &TestedStore) -> Helper {
    let mut process = helper(&["body", &store.url(), "k", &milliseconds(LEASE)]);
    assert_eq!(process.line(), "poll");
    process
}

#[tokio::test]
async fn the_lock_of_a_killed_process_is_free_when_its_lease_ends() {
    let store = TestedStore::start().await;
    let client = store.client(LEASE).await;
    let mut process = holder(&store);
    process.kill();
    let killed = Instant::now();
    let guard = within(LONG, client.lock("k").acquire()).await.expect("after the lease");
    drop(guard.expect("free"));
    // The last renewal may be a third of the lease ago, or a little more.
    assert!(killed.elapsed() > LEASE / 3, "too early: {:?}", killed.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_suspended_past_its_lease_does_not_resume_its_body() {
    let store = TestedStore::start().await;
    let client = store.client(LEASE).await;
    let mut process = holder(&store);
    process.freeze();
    let guard = within(LONG, client.lock("k").acquire()).await.expect("after the lease");
    let guard = guard.expect("free");
    process.thaw();
    let outcome = tokio::task::spawn_blocking(move || {
        // What the process had printed before it was suspended.
        let lines = std::iter::repeat_with(|| process.line());
        let ended = lines.into_iter().find(|line| line != "poll");
        (ended, process)
    });
    let (outcome, _process) = within(LONG, outcome).await.expect("at once").expect("no panic");
    assert!(outcome.is_some_and(|line| line.starts_with("lost ")));
    // The release and the renewal of the lost hold do not affect this hold.
    sleep(LEASE).await;
    assert!(guard.is_held());
    guard.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_suspended_for_less_than_a_lease_costs_no_lock() {
    let mut store = TestedStore::start().await;
    let (one, two) = (store.client(LEASE * 2).await, store.client(LEASE * 2).await);
    let guard = one.lock("k").acquire().await.expect("free");
    for _ in 0..3 {
        store.freeze();
        sleep(LEASE / 2).await;
        store.thaw();
        sleep(LEASE).await;
        assert!(guard.is_held());
    }
    assert!(matches!(
        two.lock("k").wait(LEASE / 2).acquire().await,
        Err(LockError::Busy { .. } | LockError::Unavailable { .. })
    ));
    guard.release().await.expect("held");
    drop(within(LONG, two.lock("k").acquire()).await.expect("at once").expect("free"));
    assert_eq!(one.stats().lost, 0);
}

/// The control of the test above, and the promise that a body does not outlive its lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_ends_before_its_lease_when_the_store_is_suspended() {
    let mut store = TestedStore::start().await;
    let (one, two) = (store.client(LEASE).await, store.client(LEASE).await);
    let lock = one.lock("k");
    let (held, is_held) = tokio::sync::oneshot::channel();
    let body = tokio::spawn(async move {
        let outcome = lock
            .run(async {
                let _ = held.send(());
                std::future::pending::<()>().await;
            })
            .await;
        (outcome, Instant::now())
    });
    is_held.await.expect("free");
    store.freeze();
    let frozen = Instant::now();
    let (outcome, ended) = within(LONG, body).await.expect("at its deadline").expect("no panic");
    let lost = matches!(
        outcome,
        Err(LockError::Lost { reason: LostReason::RenewalFailed | LostReason::LeaseOver, .. })
    );
    assert!(lost, "{outcome:?}");
    assert!(
        running_time_between(frozen + LEASE, ended) < LEASE / 4,
        "a lease that was renewed just before: {:?}",
        ended - frozen
    );
    store.thaw();
    drop(within(LONG, two.lock("k").acquire()).await.expect("soon").expect("nobody has it"));
    until_idle(&one, LONG).await;
    until_idle(&two, LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_reported_and_locks_are_granted_after_it() {
    let mut store = TestedStore::start().await;
    let client = store.client(LEASE).await;
    let held = client.lock("held").acquire().await.expect("free");
    let before = client.lock("k").acquire().await.expect("free");
    let first = before.fencing_token().await.expect("held");
    before.release().await.expect("held");
    store.kill();
    let outcome = client.lock("k").wait(LEASE / 2).acquire().await.map(drop);
    assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
    assert!(client.ready().await.is_err());
    let lost = until(LEASE * 2, || !held.is_held()).await;
    assert!(lost.is_some(), "held without a store");
    store.restart();
    let guard = within(LONG, client.lock("k").acquire()).await.expect("soon").expect("free");
    let token = guard.fencing_token().await.expect("held");
    assert!(token > first, "{token} after {first}");
    guard.release().await.expect("held");
    drop(within(LONG, client.lock("held").acquire()).await.expect("soon").expect("free"));
    client.ready().await.expect("up");
    drop(held);
    until_idle(&client, LONG).await;
}

/// A store that keeps its locks costs no hold when it is back before the lease ends. Without that, the lock is lost, and
/// others may have it before the holder notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_store_keeps_its_locks_when_it_restarts() {
    let mut store = TestedStore::start().await;
    // So long that even a slow machine restarts the store in time.
    let lease = LEASE * 8;
    let (one, two) = (store.client(lease).await, store.client(lease).await);
    let guard = one.lock("k").acquire().await.expect("free");
    store.kill();
    store.restart();
    let granted = async {
        loop {
            match two.lock("k").try_acquire().await {
                Err(LockError::Unavailable { .. }) => sleep(LEASE / 20).await,
                outcome => break outcome.expect("the store is up").is_some(),
            }
        }
    };
    let granted = within(LONG, granted).await.expect("the store answers");
    if store.is_durable() {
        assert!(!granted && guard.is_held());
        guard.release().await.expect("held");
        drop(within(LONG, two.lock("k").acquire()).await.expect("at once").expect("free"));
    } else {
        // The control. A quorum waits until the lease that it may have forgotten has ended.
        assert!(granted);
    }
}

/// The lease is so long that it does not end during the test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_dropped_at_any_time_leaves_nothing() {
    let store = TestedStore::start().await;
    let (one, two) = (store.client(LEASE * 60).await, store.client(LEASE * 60).await);
    one.lock("k").run(async {}).await.expect("connected");
    for times in 0..12 {
        let lock = one.lock("k");
        let acquiring = async { drop(lock.acquire().await) };
        lock_tests::support::polled(acquiring, times, LEASE).await;
        drop(within(LEASE * 10, two.lock("k").acquire()).await.expect("free").expect("up"));
    }
    until_idle(&one, LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_dropped_while_the_store_does_not_answer_leave_nothing() {
    let mut store = TestedStore::start().await;
    let (one, two) = (store.client(LEASE * 60).await, store.client(LEASE * 60).await);
    one.lock("k").run(async {}).await.expect("connected");
    store.freeze();
    for n in 0..10 {
        let lock = one.lock(format!("k{n}"));
        let ended = timeout(LEASE / 20, lock.acquire()).await;
        assert!(ended.is_err(), "granted by a store that is suspended");
    }
    store.thaw();
    for n in 0..10 {
        let acquired = timeout(LONG, two.lock(format!("k{n}")).acquire()).await;
        drop(acquired.expect("undone").expect("up"));
    }
    until_idle(&one, LONG).await;
}

/// The connections and the requests of its callers end with the runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_ends_while_the_store_does_not_answer_leaves_nothing() {
    let mut store = TestedStore::start().await;
    let (one, two) = (store.client(LEASE * 60).await, store.client(LEASE * 60).await);
    let first = one.lock("k0");
    let runtime = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(first.run(async {})).expect("free");
        runtime
    });
    let runtime = runtime.await.expect("no panic");
    store.freeze();
    let locks: Vec<_> = (0..10).map(|n| one.lock(format!("k{n}"))).collect();
    let ended = tokio::task::spawn_blocking(move || {
        runtime.block_on(async {
            for lock in locks {
                tokio::spawn(async move { lock.run(std::future::pending::<()>()).await });
            }
            sleep(LEASE / 20).await;
        });
    });
    ended.await.expect("no panic");
    store.thaw();
    for n in 0..10 {
        let acquired = timeout(LONG, two.lock(format!("k{n}")).acquire()).await;
        drop(acquired.expect("undone").expect("up"));
    }
    one.lock("k0").run(async {}).await.expect("this runtime takes the place of that one");
    until_idle(&one, LONG).await;
}

fn count(store: &TestedStore, tasks: u64, how: &str) -> u64 {
    let counter = RedisServer::plain(&[]);
    count_by_processes(env!("CARGO_BIN_EXE_lock-helper"), (&store.url(), &counter), tasks, how)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_count_exactly() {
    let tasks = 250;
    for how in ["plain", "set"] {
        assert_eq!(count(&TestedStore::start().await, tasks, how), 2 * tasks, "{how}");
    }
}

/// The control of the test above: the counter is not safe without the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_lock_the_count_is_wrong() {
    let tasks = 250;
    assert!(count(&TestedStore::start().await, tasks, "none") < 2 * tasks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_break_no_promise() {
    let (program, rng) = (env!("CARGO_BIN_EXE_lock-helper"), fastrand::Rng::new());
    let store = TestedStore::start().await;
    let mut faults = StoreFaults::start(program, store, LEASE, rng);
    faults.inject(LEASE * 10).await;
    let (run, violations) = faults.stop();
    let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
    assert!(violations.is_empty(), "{violations:?}");
    assert!(run.grants > 0 && run.unexpected() == 0, "{run:?}");
}
