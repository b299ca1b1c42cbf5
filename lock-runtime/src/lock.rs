//! A key and how it is to be locked.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::contender::{self, Request};
use crate::error::LockError;
use crate::eventually::Eventually;
use crate::guard::LockGuard;
use crate::key;
use crate::scope;
use crate::wait::Wait;

/// The shortest lease: below it the margin for clock drift eats most of it.
const SHORTEST_LEASE: Duration = Duration::from_millis(10);
/// The longest lease.
const LONGEST_LEASE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A key and how it is to be locked; made by [`LockClient::lock`](crate::LockClient::lock).
///
/// Cheap to make, and to use as often as you like. Without a [`lease`](Self::lease) the lock is
/// renewed until it is released.
///
/// Nested use of one key does not deadlock inside a body: while [`run`](Self::run), or an annotated
/// function, holds a key, taking the same key again through the same client shares that hold, at
/// no round trip. Spawned tasks, and guards from [`acquire`](Self::acquire), do not enclose.
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
    engine: Arc<Engine>,
    /// Without the namespace.
    key: String,
    wait: Option<Wait>,
    lease: Option<Duration>,
}

impl Lock {
    pub(crate) fn new(engine: Arc<Engine>, key: String) -> Self {
        Self { engine, key, wait: None, lease: None }
    }

    /// How long to wait for the lock: the whole budget of a call, with the store's hiccups inside
    /// it. A [`Duration`] of up to 7 days, zero for one try, or [`Wait::Forever`]. By default the
    /// client's, 30 s unless configured.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.wait = Some(wait.into());
        self
    }

    /// A fixed lease, from 10 ms to 7 days: the lock is not renewed, and is lost when it is over.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Waits for the lock.
    ///
    /// Uncontended: one round trip. Waiting: one request a second for the whole process, and one
    /// at each wake-up.
    ///
    /// Cancel safe: dropped at any point, the lock is free within one round trip, or at the end of
    /// its lease if the store cannot be reached.
    ///
    /// # Errors
    ///
    /// [`LockError::Busy`] when the wait ran out, [`LockError::Unavailable`] when it ran out and
    /// the store had not answered, [`LockError::InvalidKey`], [`LockError::WrongFormat`],
    /// [`LockError::Denied`], [`LockError::Config`] and [`LockError::ShutDown`] at once, and
    /// [`LockError::Lost`] in a body whose own lock on this key is lost.
    pub async fn acquire(&self) -> Result<LockGuard, LockError> {
        hold(&self.engine, &self.key, self.wait, self.lease).await
    }

    /// Tries once. `None` if somebody else has the lock. One round trip; two if it is busy.
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
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>, LockError> {
        let once = Some(Wait::For(Duration::ZERO));
        match hold(&self.engine, &self.key, once, self.lease).await {
            Ok(guard) => Ok(Some(guard)),
            Err(LockError::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Runs `body` while the lock is held, and releases it.
    ///
    /// The body is polled only while the lock is provably held; if it is lost, the body is dropped
    /// at once. What the body has spawned is not stopped. The body's output is returned whatever
    /// becomes of the release, which is awaited.
    ///
    /// Cancel safe: dropped at any point, the body is dropped first, then the lock is released in
    /// the background.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire), and [`LockError::Lost`] when the lock was lost before the
    /// body was done.
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output, LockError> {
        let body = pin!(Some(body));
        scope::run(hold(&self.engine, &self.key, self.wait, self.lease), body).await
    }
}

/// [`Lock::acquire`], and what annotated functions call.
///
/// Sharing an enclosing hold is done when this returns, and allocates nothing.
pub(crate) fn hold(
    engine: &Arc<Engine>,
    key: &str,
    wait: Option<Wait>,
    lease: Option<Duration>,
) -> Eventually<'static, Result<LockGuard, LockError>> {
    let checked = || {
        let wait = wait.map_or(Ok(engine.config().wait), Wait::check)?;
        let lease = lease.map(check_lease).transpose()?;
        let key = key::full(&engine.config().namespace, key)?;
        let shared = scope::enclosing(engine, &key)?;
        Ok((key, wait, lease, shared))
    };
    let (key, wait, lease, shared) = match checked() {
        Ok(checked) => checked,
        Err(error) => return Eventually::ready(Err(error)),
    };
    let engine = Arc::clone(engine);
    match (shared, lease) {
        // A fixed lease that is shared has to last for the inner body too.
        (Some(guard), Some(longer))
            if longer > guard.remaining() && !guard.lease().is_renewed() =>
        {
            Eventually::pending(async move {
                engine.extend(guard.lease(), longer).await?;
                Ok(guard)
            })
        }
        (Some(guard), _) => Eventually::ready(Ok(guard)),
        (None, _) => {
            let request = Request { key: Arc::from(key), wait, lease };
            Eventually::pending(async move {
                let lease = contender::acquire(&engine, request).await?;
                Ok(LockGuard::new(engine, lease, false))
            })
        }
    }
}

fn check_lease(lease: Duration) -> Result<Duration, LockError> {
    if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease) {
        return Ok(lease);
    }
    Err(LockError::Config {
        option: "lease",
        problem: format!("{lease:?} is not from {SHORTEST_LEASE:?} to {LONGEST_LEASE:?}"),
    })
}
