//! The store as a part of a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Barrier;

use super::fixture::{CheckedStore, new_key};
use crate::timeout::Wait;

const TASKS: usize = 8;
const CALLS: usize = 10;

/// The time that a body takes.
const BODY: Duration = Duration::from_millis(2);

/// The bodies of many calls of two clients run one after the other, and each one runs.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn calls_of_two_clients_exclude_each_other(one: CheckedStore, two: CheckedStore) {
    let key = new_key();
    let (running, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut clients = Vec::new();
    for store in [one, two] {
        clients.push(store.client(Duration::from_secs(30)).await);
    }
    let (barrier, mut tasks) = (Arc::new(Barrier::new(TASKS)), Vec::new());
    for client in clients {
        for _ in 0..TASKS / 2 {
            let lock = client.lock(key.clone()).wait(Wait::Forever);
            let (running, done) = (Arc::clone(&running), Arc::clone(&done));
            let barrier = Arc::clone(&barrier);
            tasks.push(tokio::spawn(async move {
                barrier.wait().await;
                for _ in 0..CALLS {
                    let body = async {
                        assert_eq!(
                            running.fetch_add(1, Ordering::SeqCst),
                            0,
                            "two bodies at a time"
                        );
                        tokio::time::sleep(BODY).await;
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
