//! Permit holders that wait for the store, or for a release by another process.

use std::sync::Arc;

/// A holder of a key's permit that waits, for example for an answer of the store.
///
/// The first three methods are called with the queues locked, and the other methods without.
pub(crate) trait PermitHolder: std::fmt::Debug + Send + Sync {
    /// Whether the future of the holder was woken and has not been polled since.
    fn is_ready(&self) -> bool;

    /// Whether the caller has had enough time to poll the future. In a `hurry`, less time is
    /// enough. Called at each check while the holder is ready.
    fn is_stalled(&self, hurry: bool) -> bool;

    /// Counts a patrol. Returns the number of patrols since the caller last polled the future or
    /// its runtime answered a ping.
    fn patrol(&self) -> u32;

    /// Spawns a task on the runtime of the caller. If the task runs, the runtime is alive.
    fn ping(self: Arc<Self>);

    /// Polls the future in place of the caller.
    fn help(self: Arc<Self>);

    /// Drops the future in place of the caller, which undoes its requests.
    fn revoke(self: Arc<Self>);
}
