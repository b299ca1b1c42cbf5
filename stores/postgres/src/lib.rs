//! Locks in a table of PostgreSQL.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![allow(
    missing_debug_implementations,
    clippy::must_use_candidate,
    reason = "only lock-runtime uses it"
)]

mod answers;
mod claims;
mod client;
mod connector;
mod errors;
mod inspection;
mod joined;
mod listener;
mod pool;
mod primary;
mod process;
mod records;
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

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use self::client::PostgresClient;
use self::connector::DatabaseConnector;
pub use self::seen::LockTransaction;
use lock_core::client_info::ClientInfo;
use lock_core::clock::BootInstant;
use lock_core::error::LockError;
use lock_core::store::contract::{Backend, OpenStore};
use lock_core::store::runner::{AsyncBackend, RunsOn};
use lock_core::store::settings::Settings;
use lock_core::sync::{Mutex, lock};

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
/// | a release | 1 statement; 2 if others wait, the lock was lost, or another transaction works on its row |
/// | holding | 1 statement for up to 100 locks, every third of the lease |
/// | a fencing token | 0 for the call that acquires the lock; 1 for a call to which it was handed off inside the process |
/// | waiting | 2 statements when the wait begins, and one a second; who waits is served in the order of arrival |
/// | who has the lock, when a wait ends without it | 2 statements, which calls for the key share for a second |
/// | `verify_in` | 1 statement in the transaction of the program |
/// | a read-write lock or a semaphore | 1 statement, which runs a function in the database, for an acquire, a release or a change of the mode |
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
/// and `synchronous_standby_names` it has received each lock that was acquired, so none is lost. A release that gives the
/// lock to nobody does not wait for it, nor for the disk: one that is lost in a failover or a crash leaves the lock taken
/// until its lease ends, which is a
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
    /// Whether notifications arrive at the last client.
    last: Mutex<Weak<AtomicBool>>,
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

    fn of(connector: DatabaseConnector) -> Self {
        Self { connector, last: Mutex::default() }
    }

    /// Whether notifications reach the client that was made last. If not, as behind a pooler, its waiting calls make an attempt
    /// four times a second. False when that client has ended.
    #[must_use]
    pub fn hears_notifications(&self) -> bool {
        lock(&self.last).upgrade().is_some_and(|last| last.load(Relaxed))
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

impl OpenStore for PostgresStore {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn open(&self, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
        let client = |told: Option<ClientInfo>| {
            let client = PostgresClient::new(self.connector.of_client(told.as_ref()));
            *lock(&self.last) = Arc::downgrade(client.is_live());
            Arc::new(client)
        };
        Ok(AsyncBackend::open(self.name(), settings, RunsOn::Callers, client)?)
    }
}
