//! The requests about locks.

mod acknowledged;
mod announcements;
mod arguments;
mod claims;
mod fencing;
mod modes;
mod periods;
mod readiness;
mod releases;
pub(crate) mod store;
mod waiters;
