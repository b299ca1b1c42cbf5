//! The contract between operators and a store whose keys they can see.

use super::scanning::{ScanPage, ScanPosition};
use super::store_error::StoreError;
use crate::lock_state::{Deletion, LockState};
use crate::maybe_ready::MaybeReady;

/// A store whose keys operators can see.
pub trait KeyInspector: Send + Sync {
    /// What the key of a lock holds, in any layout; `None` if there is nothing that can be a lock. It does not tell who
    /// the clients are.
    fn read_lock<'a>(
        &'a self,
        key: &'a str,
    ) -> MaybeReady<'a, Result<Option<LockState>, StoreError>>;

    /// Adds who the clients of the holders of these locks are.
    fn name_holders<'a>(
        &'a self,
        locks: &'a mut [LockState],
    ) -> MaybeReady<'a, Result<(), StoreError>>;

    /// Ends the hold of the owner with this token, if it still has the lock.
    fn delete<'a>(
        &'a self,
        key: &'a str,
        token: &'a str,
    ) -> MaybeReady<'a, Result<Deletion, StoreError>>;

    /// The next keys whose names match a pattern: about `limit`, or no more than that in a store with an index of keys.
    fn scan<'a>(
        &'a self,
        position: ScanPosition,
        pattern: &'a str,
        limit: u32,
    ) -> MaybeReady<'a, Result<ScanPage, StoreError>>;
}
