//! Distributed locks for async Rust services.
//!
//! The body of an annotated function runs only while it holds a lock. The lock excludes all other
//! tasks, processes and machines that use the same store and the same key. The URL of the client selects the
//! store: Redis or Valkey (one server, sentinels, a cluster or a quorum of servers), etcd, PostgreSQL, or the
//! memory of the process.
//!
//! ```
//! use lock_runtime::{LockClient, LockError, distributed_lock};
//!
//! #[distributed_lock(key = "order:<id>", wait = "10s")]
//! async fn pay(id: u64, cents: u64) -> Result<String, LockError> {
//!     // No other call pays this order at the same time.
//!     Ok(format!("order {id}: paid {cents} cents"))
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // "redis://127.0.0.1:6379" for more than one process
//!     LockClient::connect("memory:").await?.install()?;
//!     let paid = pay(42, 995).await;
//!     lock_runtime::global()?.shutdown().await?;
//!     println!("{}", paid?);
//!     Ok(())
//! }
//! ```
//!
//! While the body runs, a background thread renews its lease. By default, a lease lasts for 30 s
//! and is renewed every 10 s. With an option such as `lease = "5s"` it is fixed and not renewed.
//! [`macro@distributed_lock`] describes all options. [`LockClient`] and [`Lock`] do the same
//! without the attribute.
//!
//! # Guarantees
//!
//! * **A body never outlives its lock.** Each lock has a deadline, which follows from the store's
//!   last answer: the lease counts from just before the request was sent, less a margin of 1 % and
//!   2 ms. No poll of the body begins after the deadline. The clock of the deadline also runs while
//!   the machine is suspended. When the lock is lost, the body is dropped and the caller gets
//!   [`LockError::Lost`]. (A body that completes in the same poll in which its lock is lost returns
//!   its result.)
//! * **Nothing leaks.** If a call is cancelled, panics or fails, its key is free within one round
//!   trip. After a request without an answer, this may take about a second. If the store cannot be
//!   reached, it may take until the end of the lease.
//! * **Unknown is not held.** A request without an answer does not count as a grant, and its
//!   possible effect is undone.
//! * **A guard acts on its own hold only.** Each acquisition has its own owner id, with 80 bits from
//!   the operating system's random source.
//! * **Errors are specific.** Busy, unavailable, lost and misconfigured are different errors. No
//!   error replaces the body's own result, except with `on_lost = "report"`.
//! * **Waiting is cheap.** A thousand tasks of one process that wait for one key cost the server as
//!   much as one task. (Fair calls, and calls for permits, make one attempt each before they wait.)
//! * **Secrets are not shown.** No error, `Debug` output or log event shows a password.
//!
//! # Limits
//!
//! A lease cannot stop a write that is already in flight. A process that is paused in the middle of
//! a poll finishes that poll when it continues, even if the lock has another holder by then. A task
//! that the body has spawned continues as well. Where a late write would cause damage, the resource
//! has to reject it: send [`LockGuard::fencing_token`] with every write, and with every read that a
//! write depends on, and let the resource reject each token that is lower than the highest one that
//! it has received. With the feature `sqlx`, `fence::raise` does this in a database.
//!
//! A lock is only as safe as its store. A Redis server may lose keys when it fails over to a replica, or
//! when it restarts without persistence. It expires keys by its wall clock.
//! [`Lock::acknowledged_by`] makes it unlikely that a failover loses a lock.
//! [`LockClientBuilder::quarantine`] prevents a lost lock from having two holders, at the price of
//! waiting. A quorum of servers, etcd, and PostgreSQL with a synchronous standby lose no lock with one server.
//!
//! A body that never ends holds its lock for as long as the process runs, because another thread
//! renews the lease. [`Lock::max_hold`] limits this.
//!
//! # Costs
//!
//! | operation | round trips |
//! |---|---|
//! | an uncontended call | 2: one to acquire the lock, one to release it |
//! | an uncontended call on several keys | 2; in a cluster, 1 for each hash slot, and 1 to release all |
//! | a nested call on a key that an enclosing body holds | 0, or 1 if it extends that hold |
//! | a hand-off inside the process | usually 0, 1 to renew the lease, 2 to acquire the lock anew |
//! | waiting | 1 per wake-up, per key and process; 1 per second per hundred keys |
//! | holding renewed locks | 1 per third of a lease, for up to 100 locks |
//! | a single attempt on a busy lock | at most 2; if the call fails with an error, 2 more, to say who has the lock |
//! | a wait that ends while another client has the lock | 2, to say who that is; shared by calls for the same key within a second |
//! | a fencing token | 1 per hold, if it is requested |
//! | the acknowledgement of replicas, if it is required | 1 per acquisition, shared by those at the same time |
//!
//! # Requirements
//!
//! Redis 6.0 or newer, Valkey, etcd 3.4 or newer, or PostgreSQL 12 or newer, and a tokio runtime with timers and,
//! unless the locks are in memory, I/O. Elsewhere, calls return [`LockError::Config`]. A client can be used on any
//! number of runtimes; each has its own connection.
//!
//! Leases and renewals use the system's clock, also while tokio's time is paused (`start_paused`): there,
//! [`LockClient::connect`] returns [`LockError::Config`], and [`LockClient::memory`] logs a warning. Use
//! `LockClient::testing()` (feature `testing`) in such tests, whose leases follow tokio's clock.
//!
//! # Logging
//!
//! Events are emitted with `tracing`, under the target `lock_runtime`. Where a subscriber that
//! blocks or panics would interfere, the library emits them on a thread of its own. If the
//! subscriber is too slow, such events are dropped and [counted](ClientStats::dropped_events).
//!
//! * Errors: a background release that the store denies, a background thread that has ended, and
//!   lock errors of functions that return nothing.
//! * Warnings: a lost lock, a long wait or a long hold, the first failure of a renewal or a background
//!   release, a body whose release was not confirmed, a key in another wire format, missing permissions
//!   to publish or subscribe, a call that could not be put into the queue of its lock, users of a semaphore with
//!   different limits, a server that may evict locks, is a replica or has too few replicas, dropped
//!   log events.
//! * Info: renewals and releases that succeed again, a missing permission to say who the client is.
//! * Debug: connections that are made and lost, retries, skipped functions.
//!
//! With the level `DEBUG`, calls that wait and bodies have spans, `lock.wait` and `lock.hold`.
//!
//! # Measurements
//!
//! [`LockClient::snapshot`] returns what a client has measured since it was created: how long calls
//! waited and how they ended, how long locks were held, which were lost and why, renewals, and requests
//! to the store. The measurements are kept by the template of the key, and never by the key.
//!
//! # Features
//!
//! * `macros` (default): the attribute.
//! * `redis` (default): the Redis store.
//! * `admin`: [`LockAdmin`](admin::LockAdmin), which asks the clients of a store which locks they hold.
//! * `etcd`: locks in etcd, for `etcd://` and `etcds://`: see `store::EtcdStore`. Contains `store`.
//! * `metrics`: the export of measurements to the `metrics` facade.
//! * `opentelemetry`: the export of measurements to the global meter provider of OpenTelemetry.
//! * `postgres`: locks in a table of PostgreSQL (`postgres://`), and `LockGuard::verify_in`, which makes a transaction
//!   commit only if the lock is still held then: see `store::PostgresStore`. Contains `store`.
//! * `sqlx`: a fence in a table of PostgreSQL, MySQL or SQLite: see the module `fence`. `sqlx-postgres`, `sqlx-mysql`
//!   and `sqlx-sqlite` select one of them.
//! * `store`: custom stores: see the module `store`. Can change in each version until 1.0.
//! * `testing`: a client for tests, on tokio's clock: see the module `testing`.
//! * `tls`: TLS to Redis (`rediss://`), etcd (`etcds://`) and PostgreSQL (`sslmode`), with rustls and ring.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod acquiring;
#[cfg(feature = "admin")]
pub mod admin;
mod answers;
mod attribute;
mod body;
mod branches;
mod builder;
mod client;
#[cfg(feature = "store")]
pub mod conformance;
mod connected;
mod engine;
#[cfg(feature = "testing")]
mod fated_call;
#[cfg(any(feature = "sqlx-mysql", feature = "sqlx-postgres", feature = "sqlx-sqlite"))]
pub mod fence;
mod global;
mod guard;
mod holder_lookups;
mod leadership;
mod lock;
mod lock_order;
mod lock_set;
mod options;
mod periodic;
mod read_write_hold;
mod read_write_lock;
mod reentrancy;
mod semaphore;
mod stats;
#[cfg(not(feature = "store"))]
mod store;
#[cfg(feature = "store")]
pub mod store;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "postgres")]
mod verification;

#[cfg(feature = "admin")]
pub(crate) use lock_core::lock_state;
#[cfg(feature = "tls")]
pub(crate) use lock_core::tls;
pub(crate) use lock_core::{
    address_map, backoff, capacity, client_info, clock, credentials, error, events, holder,
    identity, join, key, lock_mode, maybe_ready, permits, questions, release_mode, replicas,
    runtime, safeguard, sync, timeout, user_code, wire_format,
};

pub use builder::LockClientBuilder;
pub use client::LockClient;
pub use client_info::ClientInfo;
pub use credentials::Credentials;
pub use error::{LockError, LostReason};
pub use global::{global, with_client};
pub use guard::LockGuard;
pub use holder::{Holder, HolderKind};
pub use identity::Identity;
pub use key::LockKey;
pub use leadership::{Leader, LeaderInfo, LeaderObserver, Leadership};
pub use lock::Lock;
pub use lock_mode::LockMode;
pub use lock_set::{LockSet, LockSetGuard};
pub use periodic::{LastRun, Periodic, RunOutcome};
pub use permits::Permits;
pub use read_write_hold::ReadWriteHold;
pub use read_write_lock::ReadWriteLock;
pub use reentrancy::held_keys;
pub use release_mode::ReleaseMode;
pub use replicas::Replicas;
pub use semaphore::Semaphore;
pub use stats::ClientStats;
pub use timeout::Wait;
#[cfg(feature = "tls")]
pub use tls::TlsOptions;
pub use wire_format::WireFormat;

#[cfg(feature = "macros")]
#[doc = include_str!("attribute.md")]
pub use lock_macros::distributed_lock;

/// Makes the same key as [`distributed_lock`](macro@crate::distributed_lock) with the same
/// template. The template is checked at compile time.
///
/// A placeholder is a variable in scope, or a field, a tuple index or a method call without
/// arguments of such a variable. Other expressions get a name after the template. Values are
/// percent-encoded, so that different values never make the same key; `format!` would not encode
/// them.
///
/// The macro evaluates to a [`LockKey`].
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError, distributed_lock, key};
///
/// #[distributed_lock(key = "order:<id>:<part>")]
/// async fn pack(id: u64, part: &str) -> Result<(), LockError> {
///     Ok(())
/// }
///
/// /// A method call with arguments, an index and a constant need names.
/// #[distributed_lock(key = key!("report:<day>:<region>", day = days[0], region = REGION))]
/// async fn report(days: &[u32]) -> Result<(), LockError> {
///     Ok(())
/// }
/// const REGION: &str = "eu";
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// let (id, part) = (42, "a:b");
/// // The lock of `pack(42, "a:b")`.
/// let guard = client.lock(key!("order:<id>:<part>")).acquire().await?;
/// assert_eq!(guard.key(), "order:42:a%3Ab");
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "macros")]
#[macro_export]
macro_rules! key {
    ($($template:tt)*) => {
        $crate::__private::make_key!($crate; $($template)*)
    };
}

/// Panics unless the running code is inside a body that holds the lock with this key, without the namespace of its
/// client, or any lock if no key is given. Costs no round trip.
///
/// It looks at bodies of annotated functions and of `run`, not at guards, and at those of the same task: a spawned
/// task is outside.
///
/// # Panics
///
/// If the lock is not held.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError, assert_locked, distributed_lock, with_client};
///
/// /// The caller has to hold the lock of the order.
/// fn ship(order: u32) {
///     assert_locked!(&format!("order:{order}"));
/// }
///
/// #[distributed_lock(key = "order:<id>")]
/// async fn pay(id: u32) -> Result<(), LockError> {
///     ship(id);
///     assert_locked!();
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// with_client(LockClient::memory(), pay(7)).await
/// # }
/// ```
#[macro_export]
macro_rules! assert_locked {
    () => {
        $crate::__private::assert_held(::core::option::Option::None)
    };
    ($key:expr $(,)?) => {
        $crate::__private::assert_held(::core::option::Option::Some(
            ::core::convert::AsRef::<str>::as_ref($key),
        ))
    };
}

/// The items that the expansions of the macros use. Not part of the API.
#[doc(hidden)]
pub mod __private {
    pub use crate::attribute::{
        Call, CarriesLockError, FromLockError, GuardSlot, KeyPart, KeyWriter, LockOptions,
        LockSite, NamesClient, OnLost, PeriodicCall, RunProbe, SetKeys, SiteCache, Succeeds,
        client, or_else, run, run_all, run_all_when, run_every, run_when, swallow,
    };
    pub use crate::reentrancy::assert_held;
    #[cfg(feature = "macros")]
    pub use lock_macros::key as make_key;
}

/// Compiles the README's examples as doc tests.
#[cfg(all(doctest, feature = "macros", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
