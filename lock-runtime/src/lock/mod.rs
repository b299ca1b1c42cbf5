//! A lock: a key, and the options for locking it.

mod call;

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
use crate::release_mode::ReleaseMode;
use crate::replicas::Replicas;
use crate::telemetry::SiteMetrics;
use crate::timeout::Wait;
use crate::wire_format::WireFormat;

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
/// `acknowledged_by`, which then applies to the rest of the hold. Branches of one
/// body, such as those of `join!`, share the holds around them, and do not exclude each other on
/// those keys. Spawned tasks share no holds. Guards from [`acquire`](Self::acquire) are not shared.
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

    /// Sets the template of the key, such as `order:<id>`, under which the lock is
    /// [measured](crate::LockClient::snapshot). It must not contain a key: each template has its own
    /// measurements for as long as the client exists. `(none)` by default. (Annotated functions have the
    /// template of their attribute.)
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::telemetry::AcquisitionOutcome;
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let id = 7;
    /// client.lock(format!("order:{id}")).template("order:<id>").run(async {}).await?;
    /// let orders = client.snapshot().site("order:<id>").expect("it was used");
    /// assert_eq!(orders.acquisitions(AcquisitionOutcome::Granted), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn template(mut self, template: &'static str) -> Self {
        let inner = Arc::make_mut(&mut self.inner);
        inner.site = inner.client.engine.metrics().of_template(template);
        self
    }

    /// Sets the layout of the lock in Redis, which determines the clients that can share the lock.
    /// The client's layout by default, which is [`WireFormat::Token`] unless configured.
    pub fn wire_format(mut self, wire_format: WireFormat) -> Self {
        self.options().wire_format = Some(wire_format);
        self
    }

    /// Sets the timeout of an acquisition: a [`Duration`] of up to 7 days, where zero makes one
    /// attempt, or [`Wait::Forever`]. The timeout covers the whole call, including retries after
    /// store errors. The client's timeout by default, which is 30 s unless configured.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.options().wait = Some(wait.into());
        self
    }

    /// Sets a fixed lease, from 10 ms to 7 days, or from 100 ms with a quorum. The lock is not renewed, and is lost when
    /// the lease ends. The lease counts from just before the request was sent that acquired the lock,
    /// and its holder loses the lock 1 % of the lease and 2 ms before the key expires.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options().lease = Some(lease);
        self
    }

    /// Sets the longest hold, from 10 ms to 7 days. The lock is then lost, although it could be
    /// renewed. The time counts from just before the request was sent that acquired the lock, or
    /// from the hand-off. Cannot be combined with a fixed [`lease`](Self::lease), which has the
    /// same effect. The client's `max_hold` by default, which is none unless configured.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options().max_hold = Some(max_hold);
        self
    }

    /// Keeps the key taken for at least this time, even if the lock is released earlier or this
    /// process ends: from 10 ms to 7 days, and no longer than `max_hold`. Zero, the default, frees
    /// the key at the release. The time counts from just before the request was sent that acquired
    /// the lock.
    ///
    /// This is for work that must not be done twice by machines whose clocks differ slightly, such
    /// as a job that all of them start at noon.
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

    /// Requires that replicas of the server acknowledge each grant and each renewal: at least this
    /// number of replicas, or [`Replicas::All`]. Zero requires none. The client's requirement by
    /// default, which is none unless configured.
    ///
    /// A grant that is not acknowledged within half a response timeout does not count, and the call
    /// tries again. Meanwhile, the key is taken. When the call's wait is over, the grant is undone,
    /// and the call returns [`LockError::Unavailable`], which says what was missing. A renewal that
    /// is not acknowledged counts as failed, and is retried until the deadline of the lock. Costs a
    /// round trip to the slowest of these replicas, which all locks that are acquired or renewed at
    /// the same time share. Releases are not acknowledged.
    ///
    /// A server that is out of memory acknowledges nothing, so held locks with this option are lost
    /// at their deadlines.
    ///
    /// This makes it unlikely that a failover loses the lock, but not impossible: the replica that
    /// is promoted may be another one than the replicas that have acknowledged the lock. The
    /// memory store has no replicas that could lose a lock, and ignores this option.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// client.lock("payment:42").acknowledged_by(1).run(async { /* … */ }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acknowledged_by(mut self, replicas: impl Into<Replicas>) -> Self {
        self.options().acknowledged_by = Some(replicas.into());
        self
    }

    /// Sets whether [`run`](Self::run) waits for the release of the lock, which takes one of its two
    /// round trips. The client's mode by default, which is [`ReleaseMode::Awaited`] unless
    /// configured. A guard from [`acquire`](Self::acquire) is released by its own
    /// [`release`](LockGuard::release), which waits, or by being dropped, which does not.
    ///
    /// With [`ReleaseMode::Background`], the lock may still be taken for a moment when the call
    /// returns. Use it for calls whose duration matters, if nothing after the call relies on the
    /// lock being free: a `try_acquire`, also one of the same client, may find it busy. Calls on one
    /// key, one directly after the other, do not become faster, because each waits for the release
    /// before it.
    pub fn release(mut self, release: ReleaseMode) -> Self {
        self.options().release = Some(release);
        self
    }

    /// Keeps the lock for up to this time after its release, for the next call of the client on the
    /// same key, which then needs no round trip. From 10 ms to 1 s, and at most a third of the lease;
    /// zero frees the lock at its release. The client's `linger` by default, which is zero unless
    /// configured. Cannot be combined with a fixed [`lease`](Self::lease) or a
    /// [`min_hold`](Self::min_hold).
    ///
    /// For keys that one process uses again and again, such as those of a partitioned consumer or of
    /// a sticky session. The release returns at once, without asking whether the lock was lost, and
    /// the lock is freed in the background up to 10 ms before the time is over. Another process that
    /// begins to wait for the lock gets it at once if the server reports changes
    /// ([`tracking`](crate::LockClientBuilder::tracking), format [`WireFormat::Token`]), and
    /// otherwise when the time is over. That is also true of clients in other languages. A process
    /// keeps a lock in this way for one second at most, and frees it then.
    ///
    /// Consecutive holds of a lock that lingers are limited by their time only, and not by the number
    /// in [`handoff_limit`](crate::LockClientBuilder::handoff_limit). A lock that lingers is not
    /// renewed. If the process ends without [`shutdown`](crate::LockClient::shutdown), the lock is
    /// free at the end of its lease. Each lock that lingers is visited every 10 ms, so this is not for
    /// tens of thousands of locks at a time. The memory store ignores this option, and so does a
    /// client whose `handoff_limit` is zero.
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
    /// let session = client.lock("session:7").linger(Duration::from_millis(20));
    /// session.run(async { /* … */ }).await?;
    /// // Without a round trip, if it comes within 10 ms, and usually within 20 ms.
    /// session.run(async { /* … */ }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn linger(mut self, linger: Duration) -> Self {
        self.options().linger = Some(linger);
        self
    }

    /// Grants the lock in the order in which calls ask for it, over all processes.
    ///
    /// Otherwise, a process counts as one: its calls have an order of their own, and pass the lock on
    /// among themselves for a moment while other processes wait; see
    /// [`handoff_limit`](crate::LockClientBuilder::handoff_limit). A fair call has a place of its own
    /// in the queue on the server. Use it for all calls of a key: a call that is not fair waits behind
    /// those of its process.
    ///
    /// The order is that in which the calls reach the server. A call that gives up, or whose process
    /// ends, leaves the queue. So does a call that is not polled for a quarter of a second when it is
    /// its turn: it waits again, behind the others. Each call of a process that is suspended delays
    /// the ones behind it by up to 3 s. Clients in other languages do not know the queue: one that finds
    /// the lock free takes it, before the calls that wait. If the queue cannot be used, because the server
    /// is out of memory or the user may not write to it, calls poll, without an order.
    ///
    /// Each call that waits costs two requests, one for its place and one for its release, because
    /// nothing is handed over inside a process, and one check a second for each hundred calls. The
    /// lock does not [linger](Self::linger).
    ///
    /// A wire format other than [`WireFormat::Token`] is a [`LockError::Config`] of the call.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_runtime::LockError> {
    /// let client = lock_runtime::LockClient::memory();
    /// client.lock("tickets").fair().run(async { /* first come, first served */ }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn fair(mut self) -> Self {
        self.options().fair = Some(true);
        self
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

    /// Makes one attempt, which takes at most about one response timeout (see [`Wait::For`]).
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
            match once.hold().await {
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
    /// unless [`release`](Self::release) says otherwise, and the body's output is returned even if
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
