//! Locks in a table of PostgreSQL.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![allow(
    missing_debug_implementations,
    clippy::must_use_candidate,
    reason = "only lock-runtime uses it"
)]

mod connector;
mod errors;
mod inspection;
mod joined;
mod listener;
mod pool;
mod primary;
mod process;
#[doc(hidden)]
pub mod seen;
mod session_name;
mod statements;
mod switches;
mod table;
#[cfg(feature = "tls")]
mod tls;
mod transactions;
mod url;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tokio_postgres::Row;

use self::connector::DatabaseConnector;
use self::joined::{JoinedRequests, KeyRequest, busy};
use self::listener::ReleaseListener;
use self::pool::{ConnectionPool, SqlValue};
pub use self::seen::LockTransaction;
use self::statements::LockStatement;
use lock_core::client_info::ClientInfo;
use lock_core::clock::BootInstant;
use lock_core::error::LockError;
use lock_core::store::custom::{
    FenceRequest, FencingOutcome, LeaseOutcome, LeasePage, LeaseRequest, LeaseScan, ReleaseOutcome,
    ReleaseRequest, RenewOutcome, Store, StoredLease, WakeUps,
};
use lock_core::store::per_runtime::PerRuntime;
use lock_core::store::store_error::StoreError;

/// The pause before a renewal of a row that others have locked, such as to mark it as wanted, and how often it is repeated.
const LOCKED_PAUSE: Duration = Duration::from_millis(20);
const LOCKED_REPEATS: usize = 10;

/// The SQL that creates the table `distributed_locks`, and what belongs to it. It can be run again.
pub const POSTGRES_SCHEMA: &str = table::SCHEMA;

/// Locks in the table `distributed_locks` of a PostgreSQL database, 12 or newer: what `postgres://` stands for.
///
/// The table is never created on its own: run `lockctl migrate`, [`migrate`](PostgresStore::migrate), or
/// [`POSTGRES_SCHEMA`] once. Its leases end by the clock of
/// the server.
///
/// | | costs |
/// |---|---|
/// | an acquire | 1 statement; 2 for the first call after a lease that has ended, or after a `min_hold` |
/// | a release | 1 statement; 2 if the lock was lost, or another transaction works on its row |
/// | holding | 1 statement for up to 100 locks, every third of the lease |
/// | a fencing token | 0 for the call that acquires the lock; 1 for a call to which it was handed off inside the process |
/// | waiting | 1 statement when the wait begins, and after each release; one a second in case a notification is lost |
/// | who has the lock, when a wait ends without it | 2 statements, which calls for the key share for a second |
/// | `verify_in` | 1 statement in the transaction of the program |
///
/// While eight acquires of a runtime are in flight, more of them wait for one of those to end, and then go together, up to 32 in one
/// statement. The same holds for releases.
///
/// A client opens one connection for renewals, one for notifications, and up to eight for requests, as many as it has
/// requests at one time. These belong to the first runtime that calls it; the requests of other runtimes and of the background
/// have up to eight of their own. Over connections to the server itself, each statement is prepared once. Behind a pooler, such as
/// PgBouncer, nothing is prepared, and the statements depend on no session, so they work in transaction mode as well.
/// Notifications do not arrive there: the client notices that, and waiting calls make an attempt four times a second. After a
/// connection was lost or a request had no answer, the next request opens another one.
///
/// Connections that acquire and renew locks are named, in `pg_stat_activity`, such as `lock-runtime kX3_8fRtq 4711@web-3 shop/1.4.2`:
/// the id of the client, with which the tokens of its owners begin, its process and host, and its service
/// (`identity`). That is how others see who holds a lock. Not behind a pooler, and not if the
/// URL has an `application_name`.
///
/// # Several hosts
///
/// `postgres://app@one,two,three/shop` names the servers of one database. The client uses the one that can be written to,
/// and follows when a standby is promoted. A host that hangs delays a connection by a quarter of a second.
///
/// **A failover can lose locks** that the promoted standby had not received. With `synchronous_commit = on` (the default)
/// and `synchronous_standby_names` it has received each lock that was acquired, so none is lost. A release does not wait for
/// it, nor for the disk: one that is lost in a failover or a crash leaves the lock taken until its lease ends, which is a
/// minute at most. Without synchronous standbys, or with `synchronous_commit = off` and a crash of the server, a lock can be
/// lost: another client gets it, and the first one learns that with its next renewal.
/// `verify_in` finds it in any case.
///
/// # TLS
///
/// | `sslmode` | |
/// |---|---|
/// | not given, `prefer`, `allow` | TLS if the server has it; the server is not authenticated |
/// | `disable` | no TLS |
/// | `require` | TLS; the server is not authenticated, except with `sslrootcert`, which makes it `verify-ca` |
/// | `verify-ca` | TLS; the certificate was issued by an authority of `sslrootcert`, or of the operating system |
/// | `verify-full` | the same, and for the host of the URL. Use this one over networks. |
///
/// `sslrootcert`, `sslcert` and `sslkey` name files in PEM format, without a passphrase; `tls_ca`, `tls_cert`, `tls_key` and
/// `tls_server_name` mean the same here as in URLs of Redis. With any of them, or with `TlsOptions`, the mode is `verify-full`
/// unless the URL names it. Without the feature `tls`, a URL that demands TLS is a [`LockError::Config`], and `prefer` does
/// not use it. Channel binding is not supported.
pub struct PostgresStore {
    connector: DatabaseConnector,
    /// For requests about one lock. One of them may have to wait for another transaction.
    requests: PerRuntime<Arc<JoinedRequests>>,
    /// Renewals, and what is not about one lock.
    renewals: Arc<ConnectionPool>,
    /// Whether notifications arrive.
    is_live: Arc<watch::Sender<bool>>,
    /// The only one: the listener ends when it is dropped.
    receiver: watch::Receiver<bool>,
}

impl PostgresStore {
    /// A store in the database of this URL, with the parameters of
    /// [libpq](https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING) that
    /// [`tokio_postgres`](https://docs.rs/tokio-postgres/0.7/tokio_postgres/config/struct.Config.html) knows, such as
    /// `postgres://user:password@host1,host2/shop?connect_timeout=2`, and those about TLS. Does not connect.
    ///
    /// # Errors
    ///
    /// [`LockError::Config`]: the URL is invalid. The error does not show it.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::store::PostgresStore;
    ///
    /// # fn main() -> Result<(), lock_runtime::LockError> {
    /// let store = PostgresStore::new("postgres://app@db1,db2/shop")?;
    /// // The same as `LockClient::connect` with this URL.
    /// let client = lock_runtime::LockClient::with_store(store);
    /// # drop(client);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(url: &str) -> Result<Self, LockError> {
        Ok(Self::of(DatabaseConnector::new(url)?))
    }

    /// The same, with TLS options that are not in the URL.
    ///
    /// # Errors
    ///
    /// [`LockError::Config`]: the URL or the options are invalid, or contradict each other.
    #[cfg(feature = "tls")]
    pub fn with_tls(url: &str, options: lock_core::tls::TlsOptions) -> Result<Self, LockError> {
        Ok(Self::of(DatabaseConnector::with_options(url, options)?))
    }

    /// The next token, if the owner has the key.
    async fn issue(&self, request: &FenceRequest<'_>) -> Result<FencingOutcome, StoreError> {
        let key = key(request.key);
        let row = self.requests().pool.row(LockStatement::Fence, &[&key, &request.owner]).await?;
        let token: Option<i64> = row.get(0);
        Ok(match (token.and_then(|token| u64::try_from(token).ok()), row.get(1)) {
            (Some(token), _) => FencingOutcome::Token(token),
            (None, true) => FencingOutcome::Taken,
            (None, false) => FencingOutcome::Gone,
        })
    }

    /// The outcomes of renewals, in their order; `None` if another transaction has locked the row.
    async fn renew_unlocked(
        &self,
        leases: &[LeaseRequest<'_>],
    ) -> Vec<Result<Option<RenewOutcome>, StoreError>> {
        let keys: Vec<_> = leases.iter().map(|lease| key(lease.key)).collect();
        let owners: Vec<_> = leases.iter().map(|lease| lease.owner).collect();
        let terms: Vec<_> = leases.iter().map(|lease| lease.term.as_secs_f64()).collect();
        let values: [SqlValue<'_>; 3] = [&keys, &owners, &terms];
        match self.renewals.repeat(LockStatement::Renew, &values).await {
            Ok(rows) if rows.len() == leases.len() => {
                let outcome = |row: &Row| match (row.get(0), row.get(1), row.get(2)) {
                    (true, _, _) => Some(RenewOutcome::Extended),
                    (false, true, _) => Some(RenewOutcome::Taken),
                    (false, false, true) => None,
                    (false, false, false) => Some(RenewOutcome::Gone),
                };
                rows.iter().map(|row| Ok(outcome(row))).collect()
            }
            Ok(_) => vec![Err(StoreError::Unknown("no answer".to_owned())); leases.len()],
            Err(error) => vec![Err(error); leases.len()],
        }
    }

    fn of(connector: DatabaseConnector) -> Self {
        let (is_live, receiver) = watch::channel(false);
        let renewals = Arc::new(ConnectionPool::new(connector.clone(), 1));
        let (requests, is_live) = (PerRuntime::default(), Arc::new(is_live));
        Self { connector, requests, renewals, is_live, receiver }
    }

    /// The requests of the current runtime.
    fn requests(&self) -> Arc<JoinedRequests> {
        self.requests.here(|| Arc::new(JoinedRequests::new(self.connector.clone())))
    }

    /// Creates the table, or does what a new version of this library needs. It can be run again, also while locks are held:
    /// it then only makes fencing tokens higher than all that a database from a backup may have lost. This is what
    /// `lockctl migrate` does, as the owner of the table; no client does it on its own. Returns whether the table was
    /// created.
    ///
    /// Runs [`POSTGRES_SCHEMA`], which other tools can run as well. Cancel safe: it is one transaction.
    ///
    /// # Errors
    ///
    /// * [`LockError::Config`]: the server cannot be used, or there is a table with this name that is not that of this library, or
    ///   that of a newer version. It stays as it is.
    /// * [`LockError::Denied`]: the user may not log in or may not create tables.
    /// * [`LockError::Unavailable`]: the server cannot be reached, or has failed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_runtime::LockError> {
    /// use lock_runtime::store::PostgresStore;
    ///
    /// PostgresStore::new("postgres://owner@localhost/shop")?.migrate().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn migrate(&self) -> Result<bool, LockError> {
        let began = BootInstant::now();
        let migrated = table::migrate(&self.connector).await;
        migrated.map_err(|error| error.without_key(BootInstant::now().since(began)))
    }
}

/// Without the password.
impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("PostgresStore");
        shown.field("connector", &self.connector).finish_non_exhaustive()
    }
}

fn key(key: &str) -> Vec<u8> {
    key.as_bytes().to_vec()
}

impl Store for PostgresStore {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    async fn connect(&self, wake_ups: WakeUps) -> Result<(), StoreError> {
        table::check(&self.renewals).await?;
        let listener = ReleaseListener {
            connector: self.connector.clone(),
            pool: Arc::clone(&self.renewals),
            wake_ups,
            is_live: Arc::clone(&self.is_live),
        };
        tokio::spawn(listener.run());
        Ok(())
    }

    async fn acquire(&self, lease: LeaseRequest<'_>) -> Result<LeaseOutcome, StoreError> {
        let (requests, term) = (self.requests(), lease.term.as_secs_f64());
        if lease.fresh
            && let Some(outcome) =
                requests.acquire_free(KeyRequest::new(lease.key, lease.owner, term)).await?
        {
            return Ok(outcome);
        }
        let key = key(lease.key);
        let values: [SqlValue<'_>; 3] = [&key, &lease.owner, &term];
        let row = requests.pool.row(LockStatement::Acquire, &values).await?;
        Ok(if row.get(0) {
            LeaseOutcome::Granted { fence: u64::try_from(row.get::<_, i64>(1)).ok() }
        } else {
            busy(row.get(2))
        })
    }

    async fn renew(&self, leases: &[LeaseRequest<'_>]) -> Vec<Result<RenewOutcome, StoreError>> {
        let mut outcomes = self.renew_unlocked(leases).await;
        for _ in 0..LOCKED_REPEATS {
            let locked: Vec<usize> =
                (0..leases.len()).filter(|&lease| matches!(outcomes[lease], Ok(None))).collect();
            if locked.is_empty() {
                break;
            }
            sleep(LOCKED_PAUSE).await;
            let again: Vec<_> = locked.iter().map(|&lease| leases[lease]).collect();
            for (lease, outcome) in locked.into_iter().zip(self.renew_unlocked(&again).await) {
                outcomes[lease] = outcome;
            }
        }
        let is_locked =
            || Err(StoreError::Refused("another transaction has locked its row".into()));
        outcomes.into_iter().map(|outcome| outcome?.map_or_else(is_locked, Ok)).collect()
    }

    async fn release(&self, release: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        let (requests, keep) = (self.requests(), release.keep.as_secs_f64());
        if release.keep.is_zero()
            && let Some(outcome) =
                requests.release_idle(KeyRequest::new(release.key, release.owner, keep)).await?
        {
            return Ok(outcome);
        }
        let statement =
            if release.keep.is_zero() { LockStatement::Release } else { LockStatement::Keep };
        let key = key(release.key);
        let values: [SqlValue<'_>; 3] = [&key, &release.owner, &keep];
        let row = requests.pool.row(statement, &values).await?;
        let told: i64 = row.get(3);
        match (row.get(0), row.get(1), row.get(2)) {
            (true, _, _) => Ok(ReleaseOutcome::Freed { waiting: usize::try_from(told).ok() }),
            (false, _, true) => Err(StoreError::Refused(
                "a transaction is open that has verified the lock, or has not acquired it yet"
                    .to_owned(),
            )),
            (false, true, false) => Ok(ReleaseOutcome::Taken),
            (false, false, false) => Ok(ReleaseOutcome::Gone),
        }
    }

    async fn fence(&self, request: FenceRequest<'_>) -> Result<FencingOutcome, StoreError> {
        let issued = self.issue(&request).await?;
        match issued {
            FencingOutcome::Token(token) if token < request.at_least => {}
            issued => return Ok(issued),
        }
        // All tokens come from one sequence, which is behind one of its own only if it has been set back in the meantime.
        let at_least = i64::try_from(request.at_least).unwrap_or(i64::MAX);
        self.requests().pool.execute(&statements::raise_fences(at_least)).await?;
        match self.issue(&request).await? {
            FencingOutcome::Token(token) if token < request.at_least => Err(StoreError::Refused(
                "the sequence `distributed_lock_fences` was set back; run `lockctl migrate`"
                    .to_owned(),
            )),
            issued => Ok(issued),
        }
    }

    async fn inspect(&self, key: &str) -> Result<Option<StoredLease>, StoreError> {
        inspection::inspect(&self.requests().pool, key).await
    }

    async fn scan(&self, scan: LeaseScan<'_>) -> Result<LeasePage, StoreError> {
        inspection::scan(&self.requests().pool, scan).await
    }

    fn introduce(&self, client: Option<&ClientInfo>, _: &str) {
        self.connector.introduce(client);
    }

    async fn clients(&self, ids: &[String]) -> Result<Vec<ClientInfo>, StoreError> {
        inspection::clients(&self.requests().pool, ids).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        table::check(&self.renewals).await
    }

    async fn watch(&self, _: &str) -> Result<(), StoreError> {
        if *self.receiver.borrow() {
            return Ok(());
        }
        Err(StoreError::Refused("notifications do not arrive now".to_owned()))
    }

    fn poll_interval(&self) -> Duration {
        if *self.receiver.borrow() { Duration::from_secs(1) } else { Duration::from_millis(250) }
    }

    /// Each request has any of several connections.
    fn orders_requests(&self) -> bool {
        false
    }

    fn runs_on_callers(&self) -> bool {
        true
    }

    fn is_postgres(&self) -> bool {
        true
    }

    fn keeps_after_release(&self) -> bool {
        true
    }
}
