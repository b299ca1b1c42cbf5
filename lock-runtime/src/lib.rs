//! Distributed locks for async Rust services.
//!
//! Annotate a function, and its body runs only while a lock is held: across all tasks, processes
//! and machines that share a Redis server.
//!
//! ```
//! use lock_runtime::{LockClient, LockError, distributed_lock};
//!
//! #[distributed_lock(key = "order:<id>", wait = "10s")]
//! async fn pay(id: u64, cents: u64) -> Result<String, LockError> {
//!     // Nobody else pays this order now.
//!     Ok(format!("order {id}: paid {cents} cents"))
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // "redis://127.0.0.1:6379" for more than one process
//!     LockClient::connect("memory:").await?.install()?;
//!     println!("{}", pay(42, 995).await?);
//!     lock_runtime::global()?.shutdown().await?;
//!     Ok(())
//! }
//! ```
//!
//! While the body runs, a background thread renews the lock: a lease of 30 s, every 10 s. With
//! `lease = "5s"` it is fixed instead. [`macro@distributed_lock`] has all options; [`LockClient`]
//! and [`Lock`] do the same without the attribute.
//!
//! # What is promised
//!
//! * **A body never outlives its lock.** No poll of it begins after the deadline that follows from
//!   the store's last answer, by a clock that also runs while the machine sleeps. When the lock is
//!   lost, the body is dropped and the caller gets [`LockError::Lost`], unless it was done in that
//!   very poll.
//! * **Nothing leaks.** Whatever is dropped, panics or fails, the key is free within one round trip,
//!   about a second after a request that got no answer, or at the end of its lease if the store
//!   cannot be reached.
//! * **Unknown is not held.** A request that got no answer gives no permission, and what it may have
//!   done is undone.
//! * **A guard touches its own hold only.** Every acquisition has an owner token of its own, from
//!   the operating system's random source.
//! * **Errors say which.** Busy, unavailable, lost and misconfigured are different errors, and none
//!   hides the body's own result, unless `on_lost = "report"` asks for that.
//! * **Waiting is cheap.** A thousand tasks of one process that wait for one key cost the server
//!   what one does.
//! * **Secrets stay in.** No error, `Debug` or log line shows a password.
//!
//! # What is not
//!
//! A lease cannot stop what is already on its way. A process that is paused in the middle of a poll
//! finishes that poll when it goes on, even if somebody else has the lock by then; so does a task
//! that the body has spawned. Where a late write does real damage, the resource has to refuse it:
//! send [`LockGuard::fencing_token`] along with every write, and every read that a write depends on, and let the resource turn away a token
//! that is lower than one which it has seen. And a lock is as safe as its server: Redis may forget
//! keys when it fails over to a replica or restarts without persistence, and its expiry follows its
//! wall clock. A body that never ends holds its lock for as long as the process lives, because
//! renewals come from another thread: [`Lock::max_hold`] is against that.
//!
//! # What it costs
//!
//! | operation | round trips |
//! |---|---|
//! | an uncontended call | 2: one to take the lock, one to release it |
//! | a nested call on a key that is held around it | 0 |
//! | waiting | one request per wake-up, per key and process, and one a second per hundred keys |
//! | holding | one request per 100 locks, each third of a lease |
//! | a try that finds the lock busy | 2 |
//! | a fencing token | 1, once per hold, for those who ask |
//!
//! # Requirements
//!
//! A tokio runtime with its timers and I/O enabled; one without timers is an error at the call. Callers may use any number of runtimes; each
//! gets a connection of its own. Redis 6.0 or newer.
//!
//! Tests with paused time (`start_paused`) work on the memory store: a dropped guard frees its key at
//! once there. Leases and renewals run on the system's clock all the same.
//!
//! # Logging
//!
//! With `tracing`, under the target `lock_runtime`, from a thread of the library's own wherever a
//! subscriber that blocks or panics would be in the way; events that it is too slow for are dropped
//! and [counted](ClientStats::dropped_events). Errors: permissions that are missing. Warnings: a
//! lost lock, a renewal or a background release that fails for the first time, a body whose release
//! was not confirmed, a server that may evict locks or is a replica. Info: renewals and releases that
//! work again. Debug: connections that come and go, further tries, skipped functions.
//!
//! # Features
//!
//! * `macros` (default): the attribute.
//! * `redis` (default): the Redis store. Without it there is the memory store alone.

mod client;
mod clock;
mod engine;
mod error;
mod events;
mod eventually;
mod foreign;
mod format;
mod global;
mod guard;
mod key;
mod lock;
mod protection;
mod room;
mod runtime;
mod scope;
mod site;
mod stats;
mod store;
mod sync;
mod wait;

pub use client::{LockClient, LockClientBuilder};
pub use error::{Holder, LockError, LostReason};
pub use format::WireFormat;
pub use global::{global, with_client};
pub use guard::LockGuard;
pub use lock::Lock;
pub use stats::ClientStats;
pub use wait::Wait;

#[cfg(feature = "macros")]
#[doc = include_str!("attribute.md")]
pub use lock_macros::distributed_lock;

/// What annotated functions expand into; no part of the API.
#[doc(hidden)]
pub mod __private {
    pub use crate::site::{
        Call, CarriesLockError, FromLockError, GuardSlot, KeyPart, KeyWriter, LockSite,
        NamesClient, OnLost, client, or_else, run, run_when, swallow,
    };
}

/// Keeps the README's examples compiling.
#[cfg(all(doctest, feature = "macros", feature = "redis"))]
#[doc = include_str!("../../README.md")]
struct ReadmeExamples;
