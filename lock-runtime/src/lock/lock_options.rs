//! The options of a lock.

use std::sync::Arc;
use std::time::Duration;

use super::Lock;
use crate::release_mode::ReleaseMode;
use crate::replicas::Replicas;
use crate::timeout::Wait;
use crate::wire_format::WireFormat;

impl Lock {
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
    /// and the call returns [`LockError::Unavailable`](crate::LockError::Unavailable), which says what was missing. A renewal that
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
    /// [`release`](crate::LockGuard::release), which waits, or by being dropped, which does not.
    ///
    /// With [`ReleaseMode::Background`], the lock may still be taken for a moment when the call
    /// returns. Use it for calls whose duration matters, if nothing after the call relies on the
    /// lock being free: a `try_acquire`, also one of the same client, may find it busy. Calls on one
    /// key, one directly after the other, do not become faster, because each waits for the release
    /// before it.
    pub fn release_mode(mut self, mode: ReleaseMode) -> Self {
        self.options().release = Some(mode);
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
    /// A wire format other than [`WireFormat::Token`] is a [`LockError::Config`](crate::LockError::Config) of the call.
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

    /// Excludes the other branches of an enclosing body that do the same.
    ///
    /// Branches of one body, such as the futures of `join!` or `FuturesUnordered`, share the holds around them, so without this
    /// option, two branches that lock a key of the enclosing body run beside each other. With it, they take turns, in the
    /// order in which they came. Inside a branch, nested calls share the hold as usual. Without an enclosing body that holds the
    /// key, this option has no effect. Costs no round trip.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let step = async || client.lock("order:7").exclusive_within().run(async { /* alone */ }).await;
    /// client.lock("order:7").run(async { tokio::join!(step(), step()) }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn exclusive_within(mut self) -> Self {
        self.options().exclusive_within = true;
        self
    }
}
