//! A lock that somebody else holds.

// A test need not look at the results.
#![allow(clippy::must_use_candidate)]

use std::sync::Arc;
use std::time::Duration;

use super::store::TestBackend;
use crate::store::owner::OwnerId;

/// A lock that somebody else holds. When this is dropped, the lock stays until its lease ends.
#[derive(Debug)]
pub struct OtherHolder {
    backend: Arc<TestBackend>,
    key: String,
    owner: OwnerId,
}

impl OtherHolder {
    pub(super) fn new(backend: Arc<TestBackend>, key: String) -> Self {
        match OwnerId::new() {
            Ok(owner) => Self { backend, key, owner },
            Err(error) => panic!("the operating system returned no random numbers: {error}"),
        }
    }

    pub(super) fn acquire(&self, lease: Duration) -> bool {
        self.backend.acquire((&self.key, self.owner), lease)
    }

    /// Extends the lease to this long from now; never shortens it. Returns whether the lock is still held.
    pub fn renew(&self, lease: Duration) -> bool {
        self.backend.renew((&self.key, self.owner), lease)
    }

    /// Releases the lock, which goes to the next call that waits. Returns whether it was still held.
    pub fn release(self) -> bool {
        self.backend.release((&self.key, self.owner))
    }
}
