//! The store as a part of a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::fixture::owner;
use crate::client::LockClient;
use crate::store::Store;
use crate::timeout::Wait;

const TASKS: usize = 8;
const CALLS: usize = 10;

/// The bodies of many calls of two clients run one after the other, and each one runs.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn calls_of_two_clients_exclude_each_other<S: Store>(one: S, two: S) {
    let key = format!("conformance:{}", owner());
    let (running, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for store in [one, two] {
        let builder = LockClient::builder().store(store).lease(Duration::from_secs(30));
        let client = builder.connect().await.expect("the store connects");
        for _ in 0..TASKS / 2 {
            let lock = client.lock(key.clone()).wait(Wait::Forever);
            let (running, done) = (Arc::clone(&running), Arc::clone(&done));
            tasks.push(tokio::spawn(async move {
                for _ in 0..CALLS {
                    let body = async {
                        assert_eq!(
                            running.fetch_add(1, Ordering::SeqCst),
                            0,
                            "two bodies at a time"
                        );
                        tokio::task::yield_now().await;
                        running.fetch_sub(1, Ordering::SeqCst);
                        done.fetch_add(1, Ordering::SeqCst);
                    };
                    lock.run(body).await.expect("every call gets its turn");
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no body runs beside another one");
    }
    assert_eq!(done.load(Ordering::SeqCst), TASKS * CALLS);
}
