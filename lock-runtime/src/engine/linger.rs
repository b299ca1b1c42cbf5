//! Locks that are kept for a moment after their release, for the next call of this process.

use std::sync::Arc;
use std::time::Duration;

use super::core::Engine;
use super::handoff::{Handoff, Permit};
use crate::clock::BootInstant;

impl Engine {
    /// Keeps a lock that no call waits for, for this time. Returns the permit if the lock has to be
    /// freed instead.
    pub(super) fn linger(&self, handoff: Handoff, linger: Duration) -> Option<Permit> {
        let lease = Arc::clone(handoff.lease());
        // There is no round trip to save in the memory of this process.
        if linger.is_zero() || lease.store().is_immediate() {
            return handoff.into_permit();
        }
        match handoff.linger(BootInstant::now().after(linger)) {
            Ok(begins) => {
                if begins {
                    self.background().watch_waiters(&lease);
                }
                None
            }
            Err(handoff) => handoff.into_permit(),
        }
    }
}
