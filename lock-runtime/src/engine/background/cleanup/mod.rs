//! The cleanup queue: releases that no caller awaits. These are the releases of dropped guards,
//! releases that have failed, and the undos of requests without an answer.
//!
//! A cleanup is a compare-and-delete of one owner's key. It can be repeated freely, and cannot
//! affect the lock of a later owner. It is repeated until the store gives a definite answer, or
//! until the key must have expired. Soon after that, it is no longer sent.
//!
//! An undo must not overtake the request that it undoes. It is sent on two lanes at once: on the
//! lane of the original request, and on the lane of the background thread, which works even if the
//! runtime of the original request is blocked or has ended. If the same connection carried the
//! original request and the first undo, the undo was served later, and the cleanup is complete.
//! Otherwise the original request may still arrive, even if the undo has freed a key: another
//! attempt of the same acquisition may have taken that key. The undo is then sent once more after a
//! second. A request that arrives even later ends with its lease.
//!
//! Cleanups are sent in batches, with few batches in flight per lane, so that a burst of cleanups
//! neither overloads the store nor delays the renewals.
//!
//! Keeps the promises that nothing leaks, and that unknown effects are undone.

mod batch;
mod queue;
#[cfg(test)]
mod tests;

pub(crate) use self::queue::{Cleanup, CleanupReason, Cleanups, log_loss};
