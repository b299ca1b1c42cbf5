//! The requests about locks.

mod acknowledged;
mod announcements;
mod arguments;
mod claims;
mod fencing;
pub(crate) mod handle;
mod modes;
mod periods;
mod readiness;
mod releases;
mod waiters;
