//! A key and how it is to be locked.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::BootInstant;
use crate::engine::contender::{self, Request};
use crate::engine::lease::Terms;
use crate::engine::{Config, Engine};
use crate::error::LockError;
use crate::eventually::Eventually;
use crate::format::WireFormat;
use crate::guard::{Acquiring, LockGuard};
use crate::key;
use crate::scope::{self, OnLost};
use crate::wait::Wait;

/// The shortest lease, and the shortest of what is measured like one: below it the margin for clock
/// drift eats most of it.
const SHORTEST_LEASE: Duration = Duration::from_millis(10);
/// The longest.
const LONGEST_LEASE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A key and how it is to be locked; made by [`LockClient::lock`](crate::LockClient::lock).
///
/// Cheap to make, and to use as often as you like. Without a [`lease`](Self::lease) the lock is
/// renewed until it is released.
///
/// Nested use of one key does not deadlock inside a body: while [`run`](Self::run), or an annotated
/// function, holds a key, taking the same key again through the same client shares that hold, at
/// no round trip. The inner lock then has the outer one's lease; only a fixed lease that is to last
/// longer extends a fixed one. Branches of one body, such as those of `join!`, share what encloses
/// them and do not exclude each other on it. Spawned tasks start outside, and guards from
/// [`acquire`](Self::acquire) do not enclose.
///
/// The key is taken as it is. The attribute encodes the values in its templates, so a key made by
/// hand is the same as one made there only if its values need no encoding, as plain ids do.
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
    /// Behind one pointer, because each waiter has a copy.
    inner: Arc<Inner>,
}

#[derive(Debug, Clone)]
struct Inner {
    engine: Arc<Engine>,
    /// Without the namespace.
    key: Arc<str>,
    options: Options,
}

/// What was asked for, unchecked; what is `None` is the client's to say.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) format: Option<WireFormat>,
    pub(crate) wait: Option<Wait>,
    pub(crate) lease: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
}

impl Lock {
    pub(crate) fn new(engine: Arc<Engine>, key: String) -> Self {
        let inner = Inner { engine, key: key.into(), options: Options::default() };
        Self { inner: Arc::new(inner) }
    }

    fn options(&mut self) -> &mut Options {
        &mut Arc::make_mut(&mut self.inner).options
    }

    /// How the lock looks in Redis: whose locks on this key it is to exclude. By default the client's,
    /// [`WireFormat::Token`] unless configured.
    pub fn format(mut self, format: WireFormat) -> Self {
        self.options().format = Some(format);
        self
    }

    /// How long to wait for the lock: the whole budget of a call, with the store's hiccups inside
    /// it. A [`Duration`] of up to 7 days, zero for one try, or [`Wait::Forever`]. By default the
    /// client's, 30 s unless configured.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.options().wait = Some(wait.into());
        self
    }

    /// A fixed lease, from 10 ms to 7 days: the lock is not renewed, and is lost when it is over.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options().lease = Some(lease);
        self
    }

    /// Gives the lock up this long after the grant, from 10 ms to 7 days, although it could be
    /// renewed: it is then lost. Not together with a fixed [`lease`](Self::lease), which says the
    /// same. By default the client's, none unless configured.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options().max_hold = Some(max_hold);
        self
    }

    /// Keeps the key taken until this long after the grant, up to 7 days, even if the lock is
    /// released before, and even if this process is gone by then. For work that must not be done
    /// twice by machines whose clocks differ a little, such as a job that all of them start at noon.
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
    /// let noon = client.lock("job:noon").min_hold(Duration::from_secs(60));
    /// noon.run(async { /* a moment's work */ }).await?;
    /// assert!(noon.try_acquire().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.options().min_hold = Some(min_hold);
        self
    }

    /// Waits for the lock.
    ///
    /// Uncontended: one round trip. Waiting: one request at each wake-up for the whole process, and
    /// one a second for each hundred keys that it waits for.
    ///
    /// Cancel safe: dropped at any point, the lock is free within one round trip, or at the end of
    /// its lease if the store cannot be reached. A call that is alive but not polled, such as a branch
    /// of a `select!` loop, keeps its place in the queue and keeps the lock from no other call of its
    /// process. If it has asked the store by then, and no other call of the process asks, what it was
    /// granted is free for other processes at the end of its lease.
    ///
    /// A task that holds a guard and waits for the same lock waits for itself. That is easily written
    /// with a buffered stream whose items hold the lock while the stream is asked for the next one.
    /// The call then ends in [`LockError::Busy`] with [`Holder::ThisTask`](crate::Holder::ThisTask):
    ///
    /// ```
    /// use lock_runtime::{Holder, LockClient, LockError};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let lock = LockClient::memory().lock("stock:7").wait(Duration::from_millis(50));
    /// let item = lock.acquire().await?;
    /// match lock.acquire().await {
    ///     Err(LockError::Busy { holder, .. }) => assert_eq!(holder, Holder::ThisTask),
    ///     other => panic!("{other:?}"),
    /// }
    /// // Release first, then ask for the next, or do the work of an item in `run`.
    /// item.release().await?;
    /// lock.acquire().await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LockError::Busy`] when the wait ran out, [`LockError::Unavailable`] when it ran out and
    /// the store had not answered, [`LockError::InvalidKey`], [`LockError::WrongFormat`],
    /// [`LockError::Denied`], [`LockError::Config`] and [`LockError::ShutDown`] at once, and
    /// [`LockError::Lost`] in a body whose own lock on this key is lost.
    pub fn acquire(&self) -> impl Future<Output = Result<LockGuard, LockError>> + Send + use<> {
        let lock = self.clone();
        async move { lock.hold().await.map_err(|error| *error) }
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
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<LockGuard>, LockError>> + Send + use<> {
        let once = self.clone().wait(Duration::ZERO);
        async move {
            match once.hold().await {
                Ok(guard) => Ok(Some(guard)),
                Err(error) if matches!(*error, LockError::Busy { .. }) => Ok(None),
                Err(error) => Err(*error),
            }
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
    pub fn run<F: Future>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<F::Output, LockError>> + use<F> {
        let lock = self.clone();
        async move {
            let body = pin!(Some(body));
            scope::run(lock.hold(), OnLost::Abort, None, body).await
        }
    }

    fn hold(&self) -> Acquiring {
        let Inner { engine, key, options } = &*self.inner;
        hold(engine, key, Some(key), options)
    }
}

/// [`Lock::acquire`], and what annotated functions call.
///
/// Sharing an enclosing hold is done when this returns, and allocates nothing. `kept` is the same key, if
/// somebody keeps it.
pub(crate) fn hold(
    engine: &Arc<Engine>,
    key: &str,
    kept: Option<&Arc<str>>,
    options: &Options,
) -> Acquiring {
    let checked = || {
        let wait = options.wait.map_or(Ok(engine.config().wait), Wait::check)?;
        let terms = options.terms(engine.config())?;
        let key = key::full(&engine.config().namespace, key)?;
        let format = options.format.unwrap_or(engine.config().format);
        let shared = scope::enclosing(engine, &key, format)?;
        Ok((key, format, wait, terms, shared))
    };
    let (key, format, wait, terms, shared) = match checked() {
        Ok(checked) => checked,
        Err(error) => return Eventually::ready(Err(Box::new(error))),
    };
    if let Some(guard) = shared {
        return share(guard, &terms, wait);
    }
    let key = match (key, kept) {
        (Cow::Borrowed(_), Some(kept)) => Arc::clone(kept),
        (key, _) => Arc::from(key),
    };
    let request = Request { key, format, wait, terms };
    contender::acquire(Arc::clone(engine), request, |engine, hold| {
        LockGuard::new(engine, hold, false)
    })
}

/// Makes an enclosing hold last for the inner body too, and its key stay for as long as it asks.
fn share(guard: LockGuard, terms: &Terms, wait: Wait) -> Acquiring {
    let is_fixed = !terms.renewed && !guard.hold().is_renewed();
    let longer = Some(terms.term).filter(|term| is_fixed && *term > guard.remaining());
    let min_hold = terms.min_hold;
    if longer.is_none() && min_hold <= guard.remaining() {
        if !min_hold.is_zero() {
            guard.hold().keep_for(BootInstant::now(), min_hold);
        }
        return Eventually::ready(Ok(guard));
    }
    Eventually::pending(async move {
        let extend = guard.engine().extend(guard.hold(), longer, min_hold);
        let extended = match wait.bound().filter(|bound| !bound.is_zero()) {
            None => extend.await,
            Some(bound) => tokio::time::timeout(bound, extend).await.unwrap_or_else(|_| {
                let cause = "the store has not answered yet".into();
                let key = Some(guard.key().to_owned());
                Err(LockError::Unavailable { key, waited: bound, cause })
            }),
        };
        extended.map(|()| guard).map_err(Box::new)
    })
}

impl Options {
    /// Checks them, and fills in what is the client's to say.
    fn terms(&self, config: &Config) -> Result<Terms, LockError> {
        let min_hold = self.min_hold.unwrap_or_default();
        let min_span = Some(min_hold).filter(|min_hold| !min_hold.is_zero());
        for (option, span) in
            [("lease", self.lease), ("max_hold", self.max_hold), ("min_hold", min_span)]
        {
            span.map_or(Ok(()), |span| check_span(option, span))?;
        }
        if self.lease.is_some() && self.max_hold.is_some() {
            let problem = "a fixed lease ends by itself; give `lease` or `max_hold`, not both";
            return Err(LockError::Config { option: "max_hold", problem: problem.into() });
        }
        let max_hold = if self.lease.is_some() { None } else { self.max_hold.or(config.max_hold) };
        if max_hold.is_some_and(|max_hold| min_hold > max_hold) {
            let problem = "it is longer than `max_hold`".into();
            return Err(LockError::Config { option: "min_hold", problem });
        }
        Ok(Terms {
            term: self.lease.unwrap_or(config.watchdog),
            renewed: self.lease.is_none(),
            max_hold,
            min_hold,
        })
    }
}

/// Checks what is measured like a lease.
pub(crate) fn check_span(option: &'static str, span: Duration) -> Result<(), LockError> {
    if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&span) {
        return Ok(());
    }
    let problem = format!("{span:?} is not from {SHORTEST_LEASE:?} to {LONGEST_LEASE:?}");
    Err(LockError::Config { option, problem })
}
