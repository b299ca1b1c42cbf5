//! Bodies that end in whatever way, and bodies that block.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lock_runtime::{LockError, distributed_lock, with_client};
use lock_tests::RedisServer;
use tokio::time::timeout;

use crate::support::{LEASE, client, until, until_at_rest};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
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
async fn work(ending: Ending, begun: Arc<AtomicBool>) -> Result<(), WorkError> {
    begun.store(true, Ordering::SeqCst);
    tokio::task::yield_now().await;
    match ending {
        Ending::Return => Ok(()),
        Ending::Error => Err(WorkError::Own),
        Ending::Panic => panic!("as planned"),
        Ending::Abort | Ending::Cut | Ending::RuntimeGone => std::future::pending().await,
    }
}

#[tokio::test]
async fn however_a_body_ends_its_key_is_free_at_once() {
    let server = RedisServer::start();
    // Its lease says nothing here.
    let client = lock_runtime::LockClient::builder().url(server.url()).watchdog(LEASE * 60);
    let client = client.connect().await.expect("up");
    for ending in [
        Ending::Return,
        Ending::Error,
        Ending::Panic,
        Ending::Abort,
        Ending::Cut,
        Ending::RuntimeGone,
    ] {
        let begun = Arc::new(AtomicBool::new(false));
        let running = with_client(client.clone(), work(ending, Arc::clone(&begun)));
        let is_running = || begun.load(Ordering::SeqCst);
        match ending {
            Ending::Return => assert_eq!(running.await, Ok(())),
            Ending::Error => assert_eq!(running.await, Err(WorkError::Own)),
            Ending::Panic => {
                assert!(tokio::spawn(running).await.expect_err("it panics").is_panic());
            }
            Ending::Abort => {
                let task = tokio::spawn(running);
                assert!(until(LEASE, is_running).await.is_some());
                task.abort();
                assert!(task.await.expect_err("aborted").is_cancelled());
            }
            Ending::Cut => assert!(timeout(LEASE / 4, running).await.is_err()),
            Ending::RuntimeGone => {
                let other = tokio::runtime::Builder::new_multi_thread().enable_all().build();
                let other = other.expect("a runtime");
                other.spawn(running);
                assert!(until(LEASE, is_running).await.is_some());
                other.shutdown_background();
            }
        }
        assert!(begun.load(Ordering::SeqCst), "{ending:?}: it had the lock");
        let free = until(LEASE / 2, || !server.exists("k")).await;
        assert!(free.is_some(), "{ending:?}: still there for {} ms", server.pttl("k"));
        until_at_rest(&client, LEASE).await;
    }
}

/// On a runtime with one thread, which the body blocks.
#[tokio::test(flavor = "current_thread")]
async fn a_body_that_blocks_its_thread_for_three_leases_loses_no_lock() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let other = client.lock("other").acquire().await.expect("free");
    let outcome = client
        .lock("k")
        .run(async {
            std::thread::sleep(LEASE * 3);
            // It is polled again only if its lock is still there.
            tokio::task::yield_now().await;
            "done"
        })
        .await;
    assert_eq!(outcome, Ok("done"));
    assert!(other.is_held(), "and that of another task is, too");
    other.release().await.expect("held");
}
