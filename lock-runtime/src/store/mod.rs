//! Stores of locks. **Can change in each version until 1.0.**
//!
//! With the feature `store` (`lock-runtime = { features = ["store"], … }`), a program can keep its locks in a custom store: a
//! database that it already has, or a service without a client here. It implements what Redis, etcd, PostgreSQL, quorums and the
//! memory store implement, and everything else works as with them: the attribute, waiting calls that are handed the lock off
//! inside the process, renewals, deadlines, cancellation. [`conformance`](crate::conformance) tests the implementation.
//!
//! Most stores implement [`runner::AsyncClient`]: asynchronous functions that acquire, renew and release a key. The [`runner`]
//! makes the rest of them; `examples/sqlite` of the repository is such a store. Read-write locks, semaphores and their queues
//! are optional methods of the same trait. A store that takes several keys at once, records runs, passes announcements or
//! questions on, or does not wait for its answers, implements these traits itself:
//!
//! * [`OpenStore`] makes the store of each client.
//! * [`Backend`] is the store of a client: it connects, and has a [`LockStore`] for each [`Layout`] of locks that it has, such as
//!   that of semaphores.
//! * [`LockStore`] has the requests about locks in one layout. It has to acquire, renew, release and subscribe. Each [`Extension`]
//!   is optional: a store names those that it has in its [`Capabilities`]. A call that needs another one gets
//!   [`LockError::Config`](crate::LockError::Config), which names the option, before a request is sent.
//!
//! # What a store promises
//!
//! **Atomicity.** Each request is one atomic step: two requests for one key behave as if one came after the other, also if
//! they come from different processes.
//!
//! **Time.** A lease that was granted or extended ends when its term has passed *by the clock of the store*, at the earliest.
//! The client counts from before it has sent the request, so it never relies on a lease that the store has ended. The clocks
//! of the client and of the store need not agree, but they have to run at nearly the same speed: a client stops relying on
//! a lease 1 % of its term and 2 ms before its end.
//!
//! **Answers.** `Ok` is definite. [`StoreError::Refused`], [`Denied`](StoreError::Denied), [`Config`](StoreError::Config) and
//! [`WrongFormat`](StoreError::WrongFormat) say that the request has had no effect, and never will. Everything else is
//! [`StoreError::Unknown`]: above all, a connection that breaks after the request was sent, and an answer that does not come
//! in time. A client undoes what such a request may have done, so `Unknown` is always right, and only costs another request. An
//! error that says `Refused` although the request takes effect leaks a lock until its lease ends.
//!
//! **Order.** The requests of a client for a key may overlap. If an attempt to acquire it takes effect after the release of its
//! owner, its lease stays until it ends. [`runner`] prevents that, except for a request whose answer is unknown.
//!
//! **Threads.** The methods are called on threads of the client and of its callers, and must not block. The futures of an
//! [`Answer`] may be dropped at any time; one that is dropped before its first poll sends nothing, except that of
//! [`try_acquire`](LockStore::try_acquire), which sends as soon as it is called if it says so to the [`SendTrace`]. Each request ends by
//! itself within the response timeout of the client (a third of its lease, from 50 ms to 2 s); an attempt within its
//! [`RequestTimeout`]. A panic of a method is one of the caller. [`runner`] keeps all of this: the functions of a store may
//! be slow, and may panic.
//!
//! **Tokens.** Whoever knows an owner can release its lock, so it must not be logged.
//!
//! # Example
//!
//! Locks in a table in memory.
//!
//! ```
//! use std::collections::HashMap;
//! use std::sync::{Arc, Mutex};
//! use std::time::{Duration, Instant};
//!
//! use lock_runtime::store::{
//!     Acquired, Answer, Backend, Claim, Grant, Lane, Layout, Left, LockStore, OpenStore, OwnerId, Release, Released, Renewal,
//!     Renewed, RequestTimeout, Resource, SendTrace, Settings, StoreError, Subscription, Subscriptions,
//! };
//! use lock_runtime::{LockClient, LockError};
//!
//! #[derive(Clone)]
//! struct Table {
//!     rows: Arc<Mutex<HashMap<String, (OwnerId, Instant)>>>,
//!     // Of all clients, so that a release by one wakes the others.
//!     subscriptions: Arc<Subscriptions>,
//! }
//!
//! impl OpenStore for Table {
//!     fn name(&self) -> &str {
//!         "table"
//!     }
//!
//!     fn open(&self, _: &Settings) -> Result<Arc<dyn Backend>, LockError> {
//!         Ok(Arc::new(TableClient(Arc::new(self.clone()))))
//!     }
//! }
//!
//! struct TableClient(Arc<Table>);
//!
//! impl Backend for TableClient {
//!     fn handle(&self, layout: Layout) -> Result<Arc<dyn LockStore>, StoreError> {
//!         layout.plain_only("the store `table`")?;
//!         Ok(self.0.clone())
//!     }
//! }
//!
//! impl LockStore for Table {
//!     fn try_acquire<'a>(
//!         &'a self,
//!         claim: Claim<'a>,
//!         _: RequestTimeout,
//!         trace: &'a SendTrace,
//!     ) -> Answer<'a, Result<Acquired, StoreError>> {
//!         trace.sent(1);
//!         let (mut table, now) = (self.rows.lock().unwrap(), Instant::now());
//!         let mut end = now + claim.term;
//!         match table.get(claim.resource.key) {
//!             Some((owner, until)) if *owner == claim.owner => end = end.max(*until),
//!             Some((_, until)) if *until > now => {
//!                 return Answer::ready(Ok(Acquired::Busy(Left::Time(*until - now))));
//!             }
//!             _ => {}
//!         }
//!         table.insert(claim.resource.key.to_owned(), (claim.owner, end));
//!         Answer::ready(Ok(Acquired::Granted(Grant::of(claim.term))))
//!     }
//!
//!     fn renew<'a>(
//!         &'a self,
//!         batch: &'a [Renewal<'a>],
//!         _: Lane,
//!     ) -> Answer<'a, Vec<Result<Renewed, StoreError>>> {
//!         let (mut table, now) = (self.rows.lock().unwrap(), Instant::now());
//!         let mut renew = |one: &Renewal<'_>| match table.get_mut(one.resource.key) {
//!             Some((_, until)) if *until <= now => Renewed::Gone,
//!             Some((owner, until)) if *owner == one.owner => {
//!                 *until = (now + one.term).max(*until);
//!                 Renewed::Extended
//!             }
//!             Some(_) => Renewed::Taken,
//!             None => Renewed::Gone,
//!         };
//!         Answer::ready(batch.iter().map(|one| Ok(renew(one))).collect())
//!     }
//!
//!     fn release<'a>(
//!         &'a self,
//!         release: Release<'a>,
//!         _: Lane,
//!     ) -> Answer<'a, Result<Released, StoreError>> {
//!         let (mut table, key) = (self.rows.lock().unwrap(), release.resource.key);
//!         let is_live = |until: Instant| until > Instant::now();
//!         Answer::ready(Ok(match table.get(key) {
//!             Some((owner, until)) if is_live(*until) && *owner == release.owner => {
//!                 table.remove(key);
//!                 self.subscriptions.wake(key, true);
//!                 Released::Freed { woken: 0 }
//!             }
//!             Some((_, until)) if is_live(*until) => Released::Taken,
//!             _ => Released::Gone,
//!         }))
//!     }
//!
//!     fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
//!         self.subscriptions.listen(resource.key, resource.key, Layout::TOKEN, owner)
//!     }
//!
//!     fn layout(&self) -> &'static str {
//!         "row"
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), LockError> {
//! let client = LockClient::with_store(Table { rows: Arc::default(), subscriptions: Subscriptions::local() }).await?;
//! let guard = client.lock("report").acquire().await?;
//! assert!(client.lock("report").try_acquire().await?.is_none());
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```

mod open;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use lock_core::store::faulty;
#[allow(unused_imports, reason = "each store uses some of them")]
pub(crate) use lock_core::store::{
    announcements, asker, contract, hold_reports, joiner, key_holder, memory, owner, patience,
    periods, profile, quarantine_terms, queueing, scanning, settings, store_error, subscriptions,
    url_options,
};
#[cfg(any(feature = "redis", feature = "store"))]
#[allow(unused_imports, reason = "each store uses some of them")]
pub(crate) use lock_core::store::{home, per_runtime};

#[cfg(feature = "store")]
pub use lock_core::maybe_ready::MaybeReady as Answer;
#[cfg(feature = "store")]
pub use lock_core::questions::{
    Answerer, answer::AnswerPages, question::Question, question::QuestionKind,
    question::RevocationRequest,
};
#[cfg(feature = "store")]
pub use lock_core::replicas::RequiredReplicas;
#[cfg(feature = "store")]
pub use lock_core::store::announcements::{Announced, Announcement};
#[cfg(feature = "store")]
pub use lock_core::store::asker::SentQuestion;
#[cfg(feature = "store")]
pub use lock_core::store::contract::{
    Acquired, Asker, Backend, BackgroundRuntimes, Capabilities, Claim, Extension, Extensions,
    Fenced, Grant, KeyInspector, Lane, Layout, Left, LockStore, Mode, ModeChange, ModeChanged,
    OpenStore, Place, Queued, Queueing, Release, Released, ReleasedBatch, Renewal, Renewed,
    Resource, SendTrace, SetAcquired, SetClaim, Slot, StoreAnswer,
};
#[cfg(feature = "store")]
pub use lock_core::store::hold_reports::{ChangedKeys, HoldReport, HoldReports};
#[cfg(feature = "store")]
pub use lock_core::store::key_holder::KeyHolder;
#[cfg(feature = "store")]
pub use lock_core::store::owner::OwnerId;
#[cfg(feature = "store")]
pub use lock_core::store::periods::{
    RunEnd, RunEnded, RunLabel, RunRecord, RunStart, RunStarted, rest_of_period,
};
#[cfg(feature = "store")]
pub use lock_core::store::profile::StoreProfile;
#[cfg(feature = "store")]
pub use lock_core::store::queueing::{QueueTicket, transfer_term};
#[cfg(feature = "store")]
pub use lock_core::store::runner;
#[cfg(feature = "store")]
pub use lock_core::store::scanning::{ScanPage, ScanPosition};
#[cfg(feature = "store")]
pub use lock_core::store::subscriptions::{Subscription, Subscriptions};
#[cfg(feature = "store")]
pub use lock_core::timeout::RequestTimeout;
#[cfg(feature = "etcd")]
pub use lock_etcd::EtcdStore;
#[cfg(feature = "postgres")]
pub use lock_postgres::{LockTransaction, POSTGRES_SCHEMA, PostgresStore};
pub(crate) use open::{StoreAddress, open};
#[cfg(feature = "store")]
pub use settings::Settings;
#[cfg(not(feature = "store"))]
pub(crate) use settings::Settings;
#[cfg(feature = "store")]
pub use store_error::StoreError;
