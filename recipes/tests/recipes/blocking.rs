//! `spawn_blocking` in a body.

use std::sync::mpsc;
use std::time::Duration;

use lock_recipes::blocking::{
    IndexBuilder, RebuildError, rebuild, rebuild_to_the_end, rebuild_with_guard,
};
use lock_runtime::{LockClient, LockError, LostReason};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use crate::PATIENCE;

type WritePage = Box<dyn FnOnce(u64) + Send>;

/// Pages that are written when the test says so, and the tokens of those that were.
struct PageFeed {
    pages: mpsc::Sender<WritePage>,
    written: UnboundedReceiver<u64>,
    write: Box<dyn Fn() -> WritePage>,
}

impl PageFeed {
    fn new() -> (Self, mpsc::IntoIter<WritePage>) {
        let (pages, source) = mpsc::channel();
        let (tokens, written) = unbounded_channel();
        let write = Box::new(move || -> WritePage {
            let tokens = tokens.clone();
            Box::new(move |token| tokens.send(token).expect("the test waits"))
        });
        (Self { pages, written, write }, source.into_iter())
    }

    /// Lets the thread continue with one page. Returns whether there is still a thread.
    fn feed(&self) -> bool {
        self.pages.send((self.write)()).is_ok()
    }
}

async fn builder(limit: Duration) -> IndexBuilder {
    // A guard that is not dropped keeps its key until the end of the lease.
    let locks = LockClient::builder().url("memory:").lease(Duration::from_secs(1)).connect().await;
    IndexBuilder { locks: locks.expect("a store in memory"), limit }
}

#[track_caller]
fn assert_lost(outcome: Result<usize, RebuildError>) {
    match outcome {
        Err(RebuildError::Lock(LockError::Lost { reason: LostReason::MaxHold, .. })) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn all_pages_are_written_with_the_token_of_the_holder() {
    let (mut feed, pages) = PageFeed::new();
    assert!(feed.feed() && feed.feed());
    drop(feed.pages);
    let written =
        rebuild(&builder(PATIENCE).await, "books", pages).await.expect("the lock is free");
    assert_eq!(written, 2);
    let (one, other) = (feed.written.recv().await, feed.written.recv().await);
    assert!(one.is_some() && one == other, "{one:?}, {other:?}");
}

#[tokio::test]
async fn the_thread_stops_when_the_lock_is_lost() {
    let (mut feed, pages) = PageFeed::new();
    let builder = builder(Duration::from_secs(1)).await;
    assert_lost(rebuild(&builder, "books", pages).await);
    // The thread waits for a page, and does not write it.
    feed.feed();
    drop(feed.write);
    let written = timeout(PATIENCE, feed.written.recv()).await.expect("the thread has ended");
    assert_eq!(written, None);
}

/// The negative control of the test above: the next holder has the lock, and the thread of the first one writes.
#[tokio::test]
async fn without_the_flag_the_thread_writes_under_the_lock_of_the_next_holder() {
    let (mut feed, pages) = PageFeed::new();
    let builder = builder(Duration::from_secs(1)).await;
    assert_lost(rebuild_to_the_end(&builder, "books", pages).await);
    let next = builder.locks.lock("index:books").acquire().await.expect("the lock is free");
    let token = next.fencing_token().await.expect("held");
    assert!(feed.feed(), "the thread waits for a page");
    let late = timeout(PATIENCE, feed.written.recv()).await.expect("in time");
    assert!(late.expect("a page was written") < token, "a fence would refuse it");
    assert!(next.is_held());
}

#[tokio::test]
async fn a_guard_in_the_thread_stops_it_when_the_lock_is_lost() {
    let (mut feed, pages) = PageFeed::new();
    let builder = builder(Duration::from_secs(1)).await;
    let locks = builder.locks.clone();
    let call = tokio::spawn(async move { rebuild_with_guard(&builder, "books", pages).await });
    let next = locks.lock("index:books").wait(PATIENCE);
    assert!(feed.feed());
    let first = timeout(PATIENCE, feed.written.recv()).await.expect("in time");
    let next = next.acquire().await.expect("the limit ends");
    assert!(first.expect("a page was written") < next.fencing_token().await.expect("held"));
    assert!(feed.feed(), "the thread waits for a page");
    assert_lost(timeout(PATIENCE, call).await.expect("the thread ends").expect("no panic"));
    drop(feed.write);
    assert_eq!(feed.written.recv().await, None);
}

#[tokio::test]
async fn a_call_that_is_dropped_keeps_the_lock_until_its_thread_has_ended() {
    let (mut feed, pages) = PageFeed::new();
    let builder = builder(PATIENCE).await;
    let next = builder.locks.lock("index:books").wait(PATIENCE);
    let call = tokio::spawn(async move { rebuild_with_guard(&builder, "books", pages).await });
    assert!(feed.feed());
    let first = timeout(PATIENCE, feed.written.recv()).await.expect("in time");
    call.abort();
    assert!(call.await.expect_err("dropped").is_cancelled());
    assert_eq!(next.try_acquire().await.expect("the store is up").map(drop), None);
    assert!(feed.feed(), "the thread waits for a page");
    let second = timeout(PATIENCE, feed.written.recv()).await.expect("in time");
    assert_eq!(first, second, "under the same lock");
    drop(feed.pages);
    drop(next.acquire().await.expect("the thread has ended"));
}

#[tokio::test]
async fn a_page_that_panics_is_an_error() {
    let pages = std::iter::once(|_| panic!("a page that cannot be written"));
    let outcome = rebuild(&builder(PATIENCE).await, "books", pages).await;
    assert!(matches!(outcome, Err(RebuildError::Thread(_))), "{outcome:?}");
}
