//! `spawn_blocking` in a body: the body can be dropped, and the thread cannot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::{LockClient, LockError, distributed_lock};
use tokio::task::{JoinError, spawn_blocking};

/// An index that is rebuilt page by page.
#[derive(Debug)]
pub struct IndexBuilder {
    /// Gives each rebuild its lock.
    pub locks: LockClient,
    /// The longest time for which a rebuild may hold its lock.
    pub limit: Duration,
}

/// Why an index was not rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The lock was not acquired, or not kept.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A page panicked.
    #[error("the thread that rebuilds failed: {0}")]
    Thread(#[from] JoinError),
}

/// Tells a thread that its body has ended: the flag is set when this is dropped, also if the body is dropped because its
/// lock was lost.
#[derive(Debug, Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Writes pages on a thread that may block, each with the fencing token of the holder. Returns how many.
///
/// Cancel safe: if the future is dropped, the thread stops before the next page. The token lets the index refuse a page
/// that was already on its way.
///
/// # Errors
///
/// The lock was not acquired or not kept, or a page panicked.
#[distributed_lock(
    key = "index:<name>", guard = lock, max_hold = builder.limit, client = builder.locks
)]
pub async fn rebuild<P: FnOnce(u64) + Send + 'static>(
    builder: &IndexBuilder,
    name: &str,
    pages: impl Iterator<Item = P> + Send + 'static,
) -> Result<usize, RebuildError> {
    let token = lock.fencing_token().await?;
    let body = StopOnDrop::default();
    let has_ended = Arc::clone(&body.0);
    let thread = spawn_blocking(move || {
        pages.take_while(|_| !has_ended.load(Ordering::Acquire)).map(|write| write(token)).count()
    });
    Ok(thread.await?)
}

/// The same with a guard in the thread. If the lock is lost, the thread stops before the next page.
///
/// Cancel safe: if the future is dropped, the thread continues under the lock, and the lock is released when it has ended.
///
/// # Errors
///
/// The lock was not acquired or not kept, or a page panicked.
pub async fn rebuild_with_guard<P: FnOnce(u64) + Send + 'static>(
    builder: &IndexBuilder,
    name: &str,
    pages: impl Iterator<Item = P> + Send + 'static,
) -> Result<usize, RebuildError> {
    let lock = builder.locks.lock(format!("index:{name}")).max_hold(builder.limit);
    let guard = lock.acquire().await?;
    let token = guard.fencing_token().await?;
    let thread = spawn_blocking(move || {
        let count = pages.take_while(|_| guard.is_held()).map(|write| write(token)).count();
        (guard, count)
    });
    let (guard, count) = thread.await?;
    // An error if the lock was lost, because some pages are then missing.
    guard.release().await?;
    Ok(count)
}

/// Wrong, for comparison: the thread writes all pages, also those after the loss of the lock.
///
/// # Errors
///
/// The lock was not acquired or not kept, or a page panicked.
#[distributed_lock(
    key = "index:<name>", guard = lock, max_hold = builder.limit, client = builder.locks
)]
pub async fn rebuild_to_the_end<P: FnOnce(u64) + Send + 'static>(
    builder: &IndexBuilder,
    name: &str,
    pages: impl Iterator<Item = P> + Send + 'static,
) -> Result<usize, RebuildError> {
    let token = lock.fencing_token().await?;
    let thread = spawn_blocking(move || pages.map(|write| write(token)).count());
    Ok(thread.await?)
}
