//! Bodies that end in different ways, and bodies that block.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lock_runtime::{LockError, distributed_lock, with_client};
use lock_tests::RedisServer;
use tokio::time::timeout;

use crate::support::{LEASE, client, until, until_idle};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyEnding {
    Return,
    Error,
    Panic,
    Abort,
    Cut,
    RuntimeGone,
}

#[derive(Debug, PartialEq)]
enum WorkError {
    Own,
    Lock(LockError),
}

impl From<LockError> for WorkError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

#[distributed_lock(key = "k")]
async fn work(ending: BodyEnding, begun: Arc<AtomicBool>) -> Result<(), WorkError> {
    begun.store(true, Ordering::SeqCst);
    tokio::task::yield_now().await;
    match ending {
        BodyEnding::Return => Ok(()),
        BodyEnding::Error => Err(WorkError::Own),
        BodyEnding::Panic => panic!("as planned"),
        BodyEnding::Abort | BodyEnding::Cut | BodyEnding::RuntimeGone => {
            std::future::pending().await
        }
    }
}

#[tokio::test]
async fn the_key_is_free_at_once_however_the_body_ends() {
    let server = RedisServer::start();
    // The lease outlasts the test, so a key that is free was released.
    let client = lock_runtime::LockClient::builder().url(server.url()).lease(LEASE * 60);
    let client = client.connect().await.expect("up");
    for ending in [
        BodyEnding::Return,
        BodyEnding::Error,
        BodyEnding::Panic,
        BodyEnding::Abort,
        BodyEnding::Cut,
        BodyEnding::RuntimeGone,
    ] {
        let begun = Arc::new(AtomicBool::new(false));
        let running = with_client(client.clone(), work(ending, Arc::clone(&begun)));
        let is_running = || begun.load(Ordering::SeqCst);
        match ending {
            BodyEnding::Return => assert_eq!(running.await, Ok(())),
            BodyEnding::Error => assert_eq!(running.await, Err(WorkError::Own)),
            BodyEnding::Panic => {
                assert!(tokio::spawn(running).await.expect_err("the body panics").is_panic());
            }
            BodyEnding::Abort => {
                let task = tokio::spawn(running);
                assert!(until(LEASE * 10, is_running).await.is_some());
                task.abort();
                assert!(task.await.expect_err("aborted").is_cancelled());
            }
            BodyEnding::Cut => assert!(timeout(LEASE / 4, running).await.is_err()),
            BodyEnding::RuntimeGone => {
                let other = tokio::runtime::Builder::new_multi_thread().enable_all().build();
                let other = other.expect("a runtime");
                other.spawn(running);
                assert!(until(LEASE * 10, is_running).await.is_some());
                other.shutdown_background();
            }
        }
        assert!(begun.load(Ordering::SeqCst), "{ending:?}: the body ran");
        let free = until(LEASE * 5, || !server.exists("k")).await;
        assert!(free.is_some(), "{ending:?}: still there for {} ms", server.pttl("k"));
        until_idle(&client, LEASE * 5).await;
    }
}

/// The body blocks the only thread of its runtime.
#[tokio::test(flavor = "current_thread")]
async fn a_body_that_blocks_its_thread_for_three_leases_loses_no_lock() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let other = client.lock("other").acquire().await.expect("free");
    let outcome = client
        .lock("k")
        .run(async {
            std::thread::sleep(LEASE * 3);
            // The body is polled again only if the lock is still held.
            tokio::task::yield_now().await;
            "done"
        })
        .await;
    assert_eq!(outcome, Ok("done"));
    assert!(other.is_held(), "the other task keeps its lock, too");
    other.release().await.expect("held");
}
