//! Stores of locks. **Can change in each version until 1.0.**
//!
//! With the feature `store` (`lock-runtime = { features = ["store"], … }`), a program can keep its locks in a custom store: a
//! database that it already has, or a service without a client here. It implements [`Store`], and everything else works as with Redis: the attribute, waiting calls that are handed the lock
//! off inside the process, renewals, deadlines, cancellation. [`conformance`](crate::conformance) tests the implementation.
//!
//! | works | if the store has it | does not work |
//! |---|---|---|
//! | exclusive locks, re-entrant; fixed leases and renewed ones; several keys (one request for each); `max_hold`, `linger` | fencing tokens ([`Store::fence`]), `min_hold` ([`Store::keeps_after_release`]), wake-ups ([`Store::watch`]), who holds a lock ([`Store::inspect`]), and who holds which locks ([`Store::scan`]) | `fair`, read-write locks, semaphores, `every`, the announcements of leaders, other wire formats, questions of `LockAdmin` to clients: [`LockError::Config`](crate::LockError::Config) |
//!
//! # Example
//!
//! Locks in a table in memory. The table has no wake-ups, so waiting calls make an attempt every 100 ms.
//!
//! ```
//! use std::collections::HashMap;
//! use std::sync::Mutex;
//! use std::time::Instant;
//!
//! use lock_runtime::store::{
//!     LeaseOutcome, LeaseRequest, ReleaseOutcome, ReleaseRequest, RenewOutcome, Store, StoreError,
//! };
//! use lock_runtime::{LockClient, LockError};
//!
//! #[derive(Default)]
//! struct Table(Mutex<HashMap<String, (String, Instant)>>);
//!
//! impl Store for Table {
//!     fn name(&self) -> &str {
//!         "table"
//!     }
//!
//!     async fn acquire(&self, lease: LeaseRequest<'_>) -> Result<LeaseOutcome, StoreError> {
//!         let (mut table, now) = (self.0.lock().unwrap(), Instant::now());
//!         let mut end = now + lease.term;
//!         match table.get(lease.key) {
//!             Some((owner, until)) if owner == lease.owner => end = end.max(*until),
//!             Some((_, until)) if *until > now => {
//!                 return Ok(LeaseOutcome::Busy { left: Some(*until - now) });
//!             }
//!             _ => {}
//!         }
//!         table.insert(lease.key.to_owned(), (lease.owner.to_owned(), end));
//!         Ok(LeaseOutcome::Granted { fence: None })
//!     }
//!
//!     async fn renew(&self, leases: &[LeaseRequest<'_>]) -> Vec<Result<RenewOutcome, StoreError>> {
//!         let (mut table, now) = (self.0.lock().unwrap(), Instant::now());
//!         let mut renew = |lease: &LeaseRequest<'_>| match table.get_mut(lease.key) {
//!             Some((_, until)) if *until <= now => RenewOutcome::Gone,
//!             Some((owner, until)) if owner == lease.owner => {
//!                 *until = (now + lease.term).max(*until);
//!                 RenewOutcome::Extended
//!             }
//!             Some(_) => RenewOutcome::Taken,
//!             None => RenewOutcome::Gone,
//!         };
//!         leases.iter().map(|lease| Ok(renew(lease))).collect()
//!     }
//!
//!     async fn release(&self, release: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
//!         let mut table = self.0.lock().unwrap();
//!         let is_live = |until: Instant| until > Instant::now();
//!         match table.get(release.key) {
//!             Some((owner, until)) if is_live(*until) && owner == release.owner => {
//!                 table.remove(release.key);
//!                 Ok(ReleaseOutcome::Freed { waiting: None })
//!             }
//!             Some((_, until)) if is_live(*until) => Ok(ReleaseOutcome::Taken),
//!             _ => Ok(ReleaseOutcome::Gone),
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), LockError> {
//! let client = LockClient::with_store(Table::default()).await?;
//! let guard = client.lock("report").acquire().await?;
//! assert!(client.lock("report").try_acquire().await?.is_none());
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```

mod open;
#[cfg(test)]
mod tests;

#[cfg(feature = "store")]
use lock_core::store::custom;
#[cfg(test)]
pub(crate) use lock_core::store::faulty;
#[allow(unused_imports, reason = "each store uses some of them")]
pub(crate) use lock_core::store::{
    announcements, asker, contract, hold_reports, joiner, key_holder, limits, memory, owner,
    patience, periods, profile, quarantine_terms, queueing, scanning, settings, store_error,
    subscriptions, url_options,
};
#[cfg(any(feature = "redis", feature = "store"))]
#[allow(unused_imports, reason = "each store uses some of them")]
pub(crate) use lock_core::store::{home, per_runtime};

#[cfg(feature = "store")]
pub(crate) use custom::OpenStore;
#[cfg(feature = "store")]
pub use custom::{
    FenceRequest, FencingOutcome, LeaseOutcome, LeasePage, LeaseRequest, LeaseScan, ReleaseOutcome,
    ReleaseRequest, RenewOutcome, Store, StoredLease, WakeUps,
};
#[cfg(feature = "etcd")]
pub use lock_etcd::EtcdStore;
#[cfg(feature = "postgres")]
pub use lock_postgres::{LockTransaction, POSTGRES_SCHEMA, PostgresStore};
pub(crate) use open::{StoreAddress, open};
pub(crate) use settings::Settings;
#[cfg(feature = "store")]
pub use store_error::StoreError;
