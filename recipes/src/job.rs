//! A job that the scheduler of each replica starts, and that one of them runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lock_runtime::{LockClient, LockError, distributed_lock};

/// One of several replicas of a service.
#[derive(Debug)]
pub struct ServiceReplica {
    locks: LockClient,
    /// What all replicas have sent: the service that delivers it.
    sent: Arc<AtomicU32>,
}

impl ServiceReplica {
    /// A replica with a client of its own.
    #[must_use]
    pub fn new(locks: LockClient, sent: Arc<AtomicU32>) -> Self {
        Self { locks, sent }
    }

    fn send(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends the invoices of the hour, unless a replica has done so. Returns whether this call has sent them. The scheduler
/// of each replica calls it at five past every hour.
///
/// If the future is dropped, the run counts as one that has failed: nothing sends the invoices of this hour.
///
/// # Errors
///
/// The store fails, or the lock was lost.
#[distributed_lock(
    key = "invoices", every = "1h", wait = "0s", on_busy = Ok(false), client = replica.locks
)]
pub async fn send_invoices(replica: &ServiceReplica) -> Result<bool, LockError> {
    replica.send();
    Ok(true)
}

/// Wrong, for comparison: the runs do not overlap, but each replica makes one.
///
/// # Errors
///
/// The lock was not acquired, or not kept.
#[distributed_lock(key = "invoices-again", wait = "1m", client = replica.locks)]
pub async fn send_invoices_again(replica: &ServiceReplica) -> Result<bool, LockError> {
    replica.send();
    Ok(true)
}
