//! One service, which knows its store by a URL alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason, distributed_lock, held_keys, with_client};
use lock_tests::{TestedStore, within};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::LEASE;

/// The lease of the clients, which is renewed while a body runs.
const RENEWED: Duration = LEASE.saturating_mul(6);

/// The accounts of the service. Each operation reads and writes in two steps, so it needs its lock.
#[derive(Debug, Default)]
struct Balances {
    amounts: [AtomicU64; 3],
    imports: AtomicU32,
}

#[distributed_lock(key = "account:<id>", wait = "60s")]
async fn deposit(accounts: &Balances, id: usize, amount: u64) -> Result<u64, LockError> {
    let balance = accounts.amounts[id].load(Ordering::SeqCst);
    tokio::task::yield_now().await;
    accounts.amounts[id].store(balance + amount, Ordering::SeqCst);
    Ok(balance + amount)
}

#[distributed_lock(keys = ["account:<from>", "account:<to>"], wait = "60s")]
async fn transfer(accounts: &Balances, from: usize, to: usize) -> Result<u64, LockError> {
    assert_eq!(held_keys().len(), 2);
    // The lock of the enclosing body is shared.
    let balance = accounts.amounts[from].load(Ordering::SeqCst);
    tokio::task::yield_now().await;
    accounts.amounts[from].store(balance - 1, Ordering::SeqCst);
    deposit(accounts, to, 1).await
}

#[distributed_lock(key = "import", wait = "0s", on_busy = Ok(false), min_hold = "10s")]
async fn import(accounts: &Balances) -> Result<bool, LockError> {
    accounts.imports.fetch_add(1, Ordering::SeqCst);
    Ok(true)
}

#[distributed_lock(key = "report", lease = "1s", wait = "60s", guard = lock)]
async fn report() -> Result<u64, LockError> {
    lock.fencing_token().await
}

#[distributed_lock(key = "endless", lease = "1s")]
async fn endless() -> Result<(), LockError> {
    std::future::pending().await
}

#[distributed_lock(key = "slow", wait = "60s")]
async fn slow(time: Duration) -> Result<(), LockError> {
    sleep(time).await;
    Ok(())
}

/// What a program that uses the annotated functions sees of its store.
async fn serve(one: LockClient, two: LockClient) {
    // Two replicas of the service.
    let accounts = Arc::new(Balances::default());
    let mut calls = JoinSet::new();
    for client in [&one, &two].into_iter().cycle().take(20) {
        let (client, accounts) = (client.clone(), Arc::clone(&accounts));
        calls.spawn(async move {
            for id in 0..3 {
                with_client(client.clone(), deposit(&accounts, id, 10)).await.expect("granted");
            }
        });
    }
    while let Some(call) = calls.join_next().await {
        call.expect("no panic");
    }
    for (n, client) in [&one, &two].into_iter().cycle().take(12).enumerate() {
        let (client, accounts) = (client.clone(), Arc::clone(&accounts));
        calls.spawn(async move {
            let moved = with_client(client, transfer(&accounts, n % 3, (n + 1) % 3)).await;
            moved.expect("granted");
        });
    }
    while let Some(call) = calls.join_next().await {
        call.expect("no panic");
    }
    let total: u64 = accounts.amounts.iter().map(|it| it.load(Ordering::SeqCst)).sum();
    assert_eq!(total, 3 * 20 * 10);

    // Once for all replicas.
    assert_eq!(with_client(one.clone(), import(&accounts)).await, Ok(true));
    assert_eq!(with_client(two.clone(), import(&accounts)).await, Ok(false));
    assert_eq!(accounts.imports.load(Ordering::SeqCst), 1);

    // Fencing tokens rise, whoever has the lock.
    let mut highest = 0;
    for client in [&one, &two, &one] {
        let token = with_client(client.clone(), report()).await.expect("granted");
        assert!(token > highest, "{token} after {highest}");
        highest = token;
    }

    // A fixed lease ends its body.
    let lost = within(LEASE * 5, with_client(one.clone(), endless())).await.expect("it ends");
    let reason = LostReason::LeaseOver;
    assert!(matches!(lost, Err(LockError::Lost { reason: r, .. }) if r == reason), "{lost:?}");

    // Another lease is renewed, and the next call has its turn when the body ends.
    let body = tokio::spawn(with_client(one.clone(), slow(RENEWED + LEASE * 2)));
    sleep(LEASE / 4).await;
    let began = Instant::now();
    with_client(two.clone(), slow(Duration::ZERO)).await.expect("granted");
    assert!(began.elapsed() > RENEWED, "the locks exclude each other");
    body.await.expect("no panic").expect("held to the end");
    one.shutdown().await.expect("drained");
    two.shutdown().await.expect("drained");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_service_runs_on_this_store_by_its_url_alone() {
    let store = TestedStore::start_shared().await;
    let connect = async || {
        let client = LockClient::builder().url(store.url()).lease(RENEWED).connect().await;
        client.expect("the store is up")
    };
    serve(connect().await, connect().await).await;
}
