//! The engine of one client, independent of the store.
//!
//! A call enters the [`local_queue`] of its key and then [acquires](acquire) the lock from the
//! store, which grants a [`lease`]. When the hold [ends](release), the lock may be
//! [handed off](handoff) to the next waiter of this process, within the limits of [`fairness`]. The
//! [`background`] thread renews all leases, and carries out the releases that no caller awaits. The
//! notifier thread wakes waiters, and [drives](driven) the futures that their callers do not poll.

pub(crate) mod acquire;
mod awaited_release;
pub(crate) mod background;
mod batching;
mod core;
mod driven;
pub(crate) mod extend;
pub(crate) mod fairness;
mod fencing;
pub(crate) mod handoff;
pub(crate) mod inspection;
pub(crate) mod lease;
mod linger;
mod local_queue;
#[cfg(all(test, lock_shuttle))]
mod models;
mod modes;
mod outages;
mod period;
mod queue_place;
mod receivers;
mod release;
mod release_set;
mod settle;
mod shared_reads;
mod shutdown;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod waiter_count;

pub(crate) use self::core::{Config, Engine};
pub(crate) use self::local_queue::{KeyStatus, PermitHolder};
pub(crate) use self::period::MayRun;
pub(crate) use self::release::Releasing;
pub(crate) use self::release_set::both;
