//! A job that all replicas start.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use lock_recipes::job::{ServiceReplica, send_invoices, send_invoices_again};
use lock_runtime::{LockClient, LockError};
use lock_tests::RedisServer;
use tokio::sync::Barrier;

const REPLICAS: usize = 20;

/// Starts a job in all replicas at the same time. Returns how many calls have run it, and what was sent.
async fn start_everywhere(
    server: &RedisServer,
    job: impl AsyncFn(&ServiceReplica) -> Result<bool, LockError>,
) -> (usize, u32) {
    let sent = Arc::new(AtomicU32::new(0));
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        let locks = LockClient::connect(&server.url()).await.expect("the server is up");
        replicas.push(ServiceReplica::new(locks, Arc::clone(&sent)));
    }
    let start = Barrier::new(REPLICAS);
    let calls = replicas.iter().map(async |replica| {
        start.wait().await;
        job(replica).await.expect("the server is up")
    });
    let outcomes = futures_util::future::join_all(calls).await;
    (outcomes.into_iter().filter(|has_run| *has_run).count(), sent.load(Ordering::Relaxed))
}

/// The current period.
fn hour() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    time.as_secs() / 3600
}

#[tokio::test]
async fn one_of_twenty_replicas_runs_the_job_of_an_hour() {
    let server = RedisServer::start();
    loop {
        let began = hour();
        let first = start_everywhere(&server, send_invoices).await;
        let again = start_everywhere(&server, send_invoices).await;
        // At the end of an hour, there may be two runs.
        if hour() == began {
            assert_eq!((first, again), ((1, 1), (0, 0)));
            break;
        }
        server.tell(&["FLUSHALL"]);
    }
}

/// The negative control of the test above.
#[tokio::test]
async fn with_a_lock_alone_each_replica_runs_the_job() {
    let server = RedisServer::start();
    let runs = start_everywhere(&server, send_invoices_again).await;
    assert_eq!(runs, (REPLICAS, 20));
}
