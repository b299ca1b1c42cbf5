//! The number of other processes that wait for the key of a hold.

use std::sync::Arc;

use super::handoff::{Hold, Lease, LocalQueues};
use super::local_queue::HandedOff;
use crate::error::LockError;
use crate::maybe_ready::MaybeReady;
use crate::store::contract::{Lane, StoreError};

/// A request for the number of waiting processes. Dropping it without an answer abandons the count.
pub(super) struct WaiterCount {
    pub(super) lease: Arc<Lease>,
    pub(super) queues: Arc<LocalQueues>,
    /// The number of claims of this process that wait in the store.
    pub(super) own: usize,
}

impl WaiterCount {
    /// Requests the number of other processes that wait for the key of `hold`.
    pub(super) fn ask(self, hold: &Hold) -> MaybeReady<'_, Result<(), Box<LockError>>> {
        let store = hold.lease().store();
        if !store.capabilities().counts_waiters {
            self.answered(None);
            return MaybeReady::ready(Ok(()));
        }
        match store.count_waiters(hold.lease().locked().resource(), Lane::Caller) {
            MaybeReady::Ready(answer) => {
                self.answered(answer);
                MaybeReady::ready(Ok(()))
            }
            answer => MaybeReady::pending(async move {
                self.answered(Some(answer.await));
                Ok(())
            }),
        }
    }

    fn answered(self, count: Option<Result<usize, StoreError>>) {
        let count = count.and_then(Result::ok).map(|count| count.saturating_sub(self.own));
        self.lease.waiters_counted(count);
        if count.is_some_and(|count| count > 0)
            && let Some(lock) = self.queues.wanted(self.lease.key())
        {
            lock.decline();
        }
    }
}

impl Drop for WaiterCount {
    fn drop(&mut self) {
        self.lease.count_abandoned();
    }
}
