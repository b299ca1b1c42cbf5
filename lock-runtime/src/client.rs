//! The client, which programs connect and install.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::connected::Connected;
use crate::error::LockError;
use crate::key::LockKey;
use crate::leadership::Leadership;
use crate::lock::Lock;
use crate::lock_set::LockSet;
use crate::periodic::{self, LastRun, Periodic};
use crate::read_write_lock::ReadWriteLock;
use crate::runtime;
use crate::semaphore::Semaphore;
use crate::stats::ClientStats;
use crate::telemetry::Snapshot;

/// The longest time for which [`LockClient::shutdown`] waits for bodies to finish.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// A connection to a lock store, with the background threads that keep its locks alive.
///
/// Create one per process, and [install](Self::install) it or pass it around. Clones are cheap and
/// share everything. Each client has two background threads, and a third one if the program
/// [supplies credentials](crate::LockClientBuilder::credentials). With Redis, it has one connection
/// for renewals and background releases, one for wake-ups, and one for each runtime whose tasks use
/// locks: three in a program with one runtime.
///
/// After the last clone, [`Lock`] and guard are dropped, the pending releases continue in the
/// background for up to 5 s. [`shutdown`](Self::shutdown) waits for them.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// # let url = "memory:";
/// let client = LockClient::connect(url).await?; // such as "redis://127.0.0.1:6379"
/// client.lock("report").run(async { /* … */ }).await?;
/// client.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LockClient {
    connected: Arc<Connected>,
}

impl LockClient {
    pub(crate) fn new(connected: Arc<Connected>) -> Self {
        Self { connected }
    }

    /// Returns the lock on `key`, which is any text or a [`key!`](crate::key!). Costs no round
    /// trip. An invalid key is reported when the lock is acquired.
    pub fn lock(&self, key: impl Into<LockKey>) -> Lock {
        Lock::new(Arc::clone(&self.connected), key.into())
    }

    /// Returns a set of locks, one for each key, which are acquired together. A key is any text or a
    /// [`key!`](crate::key!). Costs no round trip. An invalid key is reported when the locks are
    /// acquired.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let moved = client.lock_all(["account:7", "account:3"]).run(async { 20 }).await?;
    /// assert_eq!(moved, 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_all<K: Into<LockKey>>(&self, keys: impl IntoIterator<Item = K>) -> LockSet {
        LockSet::new(Arc::clone(&self.connected), keys.into_iter().map(Into::into))
    }

    /// Returns a read-write lock, which has any number of readers or one writer. A key is any text or a
    /// [`key!`](crate::key!). Costs no round trip. An invalid key is reported when the lock is acquired.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let found = LockClient::memory().read_write("catalog").read().run(async { 7 }).await?;
    /// assert_eq!(found, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_write(&self, key: impl Into<LockKey>) -> ReadWriteLock {
        ReadWriteLock::new(self.lock(key))
    }

    /// Returns a semaphore: its holders together have at most `limit` permits at a time. A key is any text
    /// or a [`key!`](crate::key!). Costs no round trip. An invalid key and a limit of 0 are reported when
    /// permits are acquired.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let permit = LockClient::memory().semaphore("exports", 10).acquire().await?;
    /// permit.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, key: impl Into<LockKey>, limit: u32) -> Semaphore {
        Semaphore::new(self.lock(key), limit)
    }

    /// Returns the leadership of `key`, which is any text or a [`key!`](crate::key!). One of several
    /// candidates holds it for a long time. Costs no round trip.
    pub fn leadership(&self, key: impl Into<LockKey>) -> Leadership {
        Leadership::new(Arc::clone(&self.connected), key.into())
    }

    /// Returns work that runs at most once per period over all processes that use the same key, which is
    /// any text or a [`key!`](crate::key!). The period is from 1 s to 7 days. Costs no round trip.
    pub fn periodic(&self, key: impl Into<LockKey>, every: Duration) -> Periodic {
        Periodic::new(Arc::clone(&self.connected), key.into(), every)
    }

    /// The last run of [periodic](Self::periodic) work with this key; `None` if there was none in the last
    /// ten periods, and in the last day. Costs one round trip.
    ///
    /// # Errors
    ///
    /// * [`LockError::Unavailable`]: the store has not answered.
    /// * [`LockError::WrongFormat`]: the key of the record holds a value of another type.
    /// * [`LockError::Denied`], [`LockError::InvalidKey`], [`LockError::ShutDown`].
    /// * [`LockError::Config`]: there is no tokio runtime with timers here.
    pub async fn last_run(&self, key: impl Into<LockKey>) -> Result<Option<LastRun>, LockError> {
        periodic::last_run(&self.connected, key.into()).await
    }

    /// Returns when the store can grant and renew locks, or the reason why it cannot. For readiness probes.
    ///
    /// Costs one round trip to the server, or to all masters of a cluster at once, over each of two
    /// connections: that of this runtime, and that of the renewals. If a connection is closed, it is opened
    /// first. The servers execute a write that has no effect, so a replica, a server that is out of memory
    /// and one in quarantine are not ready. With another [wire format](crate::WireFormat) than `Token`, a
    /// user without permission for the keys of queues gets no error. The memory store is always ready.
    ///
    /// Takes at most 5/12 of the client's lease, and at most 2.5 s. Locks that are held, and calls that wait,
    /// are not affected by the result: while the store is not ready, held locks continue until their
    /// deadlines, and calls try again until their waits are over.
    ///
    /// Cancel safe: the check has no effect.
    ///
    /// # Errors
    ///
    /// * [`LockError::Unavailable`]: a server cannot be reached, does not answer, or grants no locks.
    /// * [`LockError::Denied`]: a server rejects the credentials, or the user lacks a permission.
    /// * [`LockError::Config`]: a server cannot be used with this URL, or there is no tokio runtime with
    ///   timers here.
    /// * [`LockError::ShutDown`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let client = lock_runtime::LockClient::memory();
    /// let status = if client.ready().await.is_ok() { 200 } else { 503 };
    /// assert_eq!(status, 200);
    /// # }
    /// ```
    pub async fn ready(&self) -> Result<(), LockError> {
        self.connected.ready().await
    }

    /// Shuts the client down.
    ///
    /// From now on, every call that waits for a lock or tries to acquire one returns
    /// [`LockError::ShutDown`]. Running bodies and held guards have 10 s to end by themselves. Then
    /// the remaining locks are lost with the reason [`ShutDown`](crate::LostReason::ShutDown), and
    /// the shutdown waits up to 5 s for the last releases; with a quorum, also for those that some of its
    /// servers have not answered yet. Finally, it waits up to 0.5 s for the log.
    ///
    /// Do not call this method inside a locked body: it would wait for that body.
    ///
    /// Cancel safe: if the future is dropped, the client stays shut down and the releases continue.
    /// The locks of running bodies are then not ended.
    ///
    /// # Errors
    ///
    /// * [`LockError::Unavailable`]: a guard is still kept, a body has not ended, or the store has not confirmed all releases in
    ///   time. These releases continue; without them, the locks end with their leases.
    /// * [`LockError::Config`]: there is no tokio runtime with timers here.
    pub async fn shutdown(&self) -> Result<(), LockError> {
        runtime::checked()?;
        let started = tokio::time::Instant::now();
        match self.connected.shut_down(SHUTDOWN_GRACE).await {
            (0, _) => Ok(()),
            (open, held) => Err(LockError::unavailable(
                None,
                started.elapsed(),
                match held {
                    Some(key) => format!(
                        "{open} locks were not released in time for the shutdown, such as {key:?}, which was still held after the grace: \
                         drop all guards, and let bodies end, before the shutdown; the locks end with their leases at \
                         the latest"
                    ),
                    None => format!(
                        "{open} locks were not released in time for the shutdown; they end with their \
                         leases at the latest"
                    ),
                },
            )),
        }
    }

    /// Returns the client's current state, for gauges. Costs no round trip.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let guard = client.lock("report").acquire().await?;
    /// assert_eq!(client.stats().held, 1);
    /// guard.release().await?;
    /// assert!(client.stats().is_idle());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        self.connected.engine.stats()
    }

    /// Returns what the client has measured: how long calls waited and how they ended, how long locks were
    /// held, which were lost, and how the store answers, by the templates of keys. Costs no round trip, and
    /// takes time in proportion to the number of templates and of held locks.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::telemetry::AcquisitionOutcome;
    /// use lock_runtime::{LockClient, LockError, distributed_lock};
    ///
    /// #[distributed_lock(key = "order:<id>")]
    /// async fn pay(id: u64) -> Result<(), LockError> { Ok(()) }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// lock_runtime::with_client(client.clone(), pay(7)).await?;
    /// let orders = client.snapshot().site("order:<id>").expect("the function was called");
    /// assert_eq!(orders.acquisitions(AcquisitionOutcome::Granted), 1);
    /// assert_eq!((orders.held, orders.waiting, orders.hold.count()), (0, 0, 1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.connected.engine.snapshot()
    }

    pub(crate) fn connected(&self) -> &Arc<Connected> {
        &self.connected
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connected.fmt(f)
    }
}
