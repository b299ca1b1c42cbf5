//! A lock: a key, and the options for locking it.

mod call;
mod lock_options;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::call::{hold, share};
use crate::acquiring::Acquiring;
use crate::body::{self, BodyEnd, OnLost};
use crate::connected::Connected;
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::key::{self, LockKey};
use crate::lock_mode::LockMode;
use crate::options::LockOptions;
use crate::permits::Permits;
use crate::telemetry::SiteMetrics;

/// A key, and the options for locking it. Created by [`LockClient::lock`](crate::LockClient::lock).
///
/// A `Lock` is cheap to create, and can be used any number of times. Without a
/// [`lease`](Self::lease), the lock is renewed until it is released.
///
/// Nested use of a key does not deadlock inside a body: while [`run`](Self::run) or an annotated
/// function holds a key, an acquisition of the same key inside the body, through the same client,
/// shares that hold without a round trip. The inner lock has the lease of the outer lock. If both
/// leases are fixed and that of the inner lock would end later, the hold is extended, which costs
/// one round trip. A `min_hold` of the inner lock may cost one round trip as well, and so may its
/// `acknowledged_by`, which then applies to the rest of the hold. **Branches of one
/// body, such as those of `join!`, share the holds around them, and do not exclude each other on
/// those keys**, unless they are [`exclusive_within`](Self::exclusive_within) it. Spawned tasks share no holds. Guards from [`acquire`](Self::acquire) are not shared.
///
/// A key that is given as text is used without encoding. [`key!`](crate::key!) makes the same key
/// as an annotated function with the same template.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// let total = client
///     .lock("stock:7")
///     .wait(Duration::from_secs(2))
///     .run(async { 40 + 2 })
///     .await?;
/// assert_eq!(total, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    /// In an `Arc`, because each waiter has a clone.
    inner: Arc<LockInner>,
}

#[derive(Debug, Clone)]
struct LockInner {
    client: Arc<Connected>,
    /// The key without the namespace, or the error of an invalid key.
    key: Result<Arc<str>, LockError>,
    options: LockOptions,
    /// Where the lock is measured.
    site: &'static SiteMetrics,
}

impl Lock {
    pub(crate) fn new(client: Arc<Connected>, key: LockKey) -> Self {
        let key = key.into_string().map(Arc::from);
        let site = client.engine.metrics().without_template();
        let inner = LockInner { client, key, options: LockOptions::NONE, site };
        Self { inner: Arc::new(inner) }
    }

    /// Makes it a read-write lock in this mode.
    pub(crate) fn mode(mut self, mode: LockMode) -> Self {
        self.options().mode = Some(mode);
        self
    }

    /// Makes it a semaphore, of which the holder has these permits.
    pub(crate) fn permits(mut self, permits: Permits) -> Self {
        self.options().permits = Some(permits);
        self
    }

    fn options(&mut self) -> &mut LockOptions {
        &mut Arc::make_mut(&mut self.inner).options
    }

    /// Waits for the lock.
    ///
    /// A free lock costs one round trip. Waiting costs one request per wake-up for each key and
    /// process, and one request per second for each hundred keys that the process waits for.
    ///
    /// Cancel safe: if the future is dropped, the lock is free within one round trip. After a
    /// request without an answer, this may take about a second. If the store cannot be reached, it
    /// may take until the end of the lease. A future that is alive but not polled, such as a branch
    /// of a `select!` loop, keeps its place in the queue and does not block other calls of its
    /// process. If such a call has been granted the lock, and no other call of the process waits
    /// for the lock, other processes get the lock at the end of its lease.
    ///
    /// A task that holds a guard and waits for the same lock waits for itself. For example, the
    /// items of a buffered stream may hold the lock while the stream is polled for the next item.
    /// Such a call returns [`LockError::Busy`] with [`HolderKind::ThisTask`](crate::HolderKind::ThisTask)
    /// when its wait ends:
    ///
    /// ```
    /// use lock_runtime::{HolderKind, LockClient, LockError};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let lock = LockClient::memory().lock("stock:7").wait(Duration::from_millis(50));
    /// let item = lock.acquire().await?;
    /// match lock.acquire().await {
    ///     Err(LockError::Busy { holder, .. }) => assert_eq!(holder.kind, HolderKind::ThisTask),
    ///     other => panic!("{other:?}"),
    /// }
    /// // Release the lock before the next acquisition, or do the work of an item in `run`.
    /// item.release().await?;
    /// lock.acquire().await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`LockError::Busy`]: the wait ended while the lock had another holder.
    /// * [`LockError::Unavailable`]: the wait ended without an answer of the store, or the client's
    ///   background thread does not run.
    /// * [`LockError::Lost`]: the call was made in a body whose own lock on this key is lost.
    /// * [`LockError::InvalidKey`], [`LockError::WrongFormat`], [`LockError::Denied`],
    ///   [`LockError::Config`], [`LockError::ShutDown`]: returned immediately, without retries.
    pub fn acquire(&self) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        let lock = self.clone();
        async move { lock.hold().await.map_err(|error| *error) }
    }

    /// Makes one attempt, which takes at most about one response timeout (see [`Wait::For`](crate::Wait::For)).
    /// Returns `None` if the lock has another holder. A free lock costs one round trip. A busy lock
    /// costs at most two, and none if another task of this process holds it.
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire), without [`LockError::Busy`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let first = client.lock("report").try_acquire().await?;
    /// assert!(first.is_some());
    /// assert!(client.lock("report").try_acquire().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<LockGuard>, LockError>> + Send + use<> {
        let once = self.clone().wait(Duration::ZERO);
        async move {
            match once.hold().without_holder().await {
                Ok(guard) => Ok(Some(guard)),
                Err(error) if matches!(*error, LockError::Busy { .. }) => Ok(None),
                Err(error) => Err(*error),
            }
        }
    }

    /// Acquires the lock, runs `body`, and releases the lock.
    ///
    /// The body is polled only while the lock is provably held. If the lock is lost, the body is
    /// dropped immediately, but tasks that the body has spawned continue. The release is awaited,
    /// unless [`release_mode`](Self::release_mode) says otherwise, and the body's output is returned even if
    /// the release fails. Costs two round trips if the lock is free, or one if the release is not
    /// awaited, and usually none if an enclosing body holds it.
    ///
    /// Cancel safe: if the future is dropped, the body is dropped first, and the lock is then
    /// released in the background.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire), and [`LockError::Lost`] if the lock was lost before the
    /// body ended.
    pub fn run<F: Future>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<F::Output, LockError>> + use<F> {
        let lock = self.clone();
        async move {
            let body = pin!(Some(body));
            let release = lock.inner.options.release(&lock.inner.client.defaults);
            let end = BodyEnd { on_lost: OnLost::Abort, release };
            body::run(lock.hold(), end, None, body).await
        }
    }

    pub(crate) fn client(&self) -> &Connected {
        &self.inner.client
    }

    /// The checked key, including the namespace.
    pub(crate) fn full_key(&self) -> Result<Arc<str>, LockError> {
        let LockInner { client, key, .. } = &*self.inner;
        match key {
            Ok(key) => Ok(key::full(&client.namespace, key)?.into()),
            Err(error) => Err(error.clone()),
        }
    }

    fn hold(&self) -> Acquiring<LockGuard> {
        let LockInner { client, key, options, site } = &*self.inner;
        match key {
            Ok(key) => hold(client, key, Some(key), (options, site)),
            Err(error) => Acquiring::failed(site, error.clone()),
        }
    }
}
