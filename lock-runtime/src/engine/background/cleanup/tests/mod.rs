//! Unit tests of the cleanups, on a store that injects faults.

mod batches;
mod sending;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;

use super::batch::Batch;
use super::queue::{BATCHES_PER_LANE, PAUSES};
use super::{Cleanup, CleanupReason, Cleanups};
use crate::clock::BootInstant;
use crate::engine::background::notifier::Notifier;
use crate::engine::batching::BATCH;
use crate::engine::handoff::LocalQueues;
use crate::engine::lease::Locked;
use crate::engine::testing::{self, claim, new_owner};
use crate::store::contract::{
    Acquired, Lane, LockStore, Mode, Origin, Place, SendTrace, StoreError,
};
use crate::store::faulty::{Fault, FaultyStore};
use crate::store::memory::MemoryStore;
use crate::store::owner::OwnerId;
use crate::sync::time;
use crate::timeout::RequestTimeout;

const LEASE: Duration = Duration::from_secs(10);

fn cleanups() -> Cleanups {
    Cleanups::new(Notifier::new(Arc::default()), (Arc::default(), Arc::default()))
}

fn store() -> (Arc<FaultyStore>, OwnerId) {
    (Arc::new(FaultyStore::new(MemoryStore::new())), new_owner())
}

/// The cleanup of the key `k`.
fn cleanup(store: &Arc<FaultyStore>, owner: OwnerId, reason: CleanupReason) -> Cleanup {
    let (gone_by, past) = (BootInstant::now().after(LEASE), BootInstant::PAST);
    let store = Arc::clone(store) as Arc<dyn LockStore>;
    let locked = Locked {
        key: Arc::from("k"),
        mode: Mode::Exclusive,
        owner,
        store,
        doubt: None,
        term: LEASE,
        queued: true,
    };
    let (kept_until, valid_until, confirmed) = (past, past, past);
    let (leaves_gap, permit) = (false, None);
    let site = None;
    Cleanup {
        locked,
        gone_by,
        kept_until,
        valid_until,
        leaves_gap,
        confirmed,
        reason,
        site,
        permit,
    }
}

/// The cleanup after a release.
fn released(store: &Arc<FaultyStore>, owner: OwnerId) -> Cleanup {
    cleanup(store, owner, CleanupReason::Released)
}

/// The undo of a request that was sent from `origin`.
fn undo(store: &Arc<FaultyStore>, owner: OwnerId, origin: Option<Origin>) -> Cleanup {
    let cleanup = cleanup(store, owner, CleanupReason::Unanswered);
    Cleanup { locked: Locked { doubt: origin, ..cleanup.locked.clone() }, ..cleanup }
}

async fn acquire(store: &FaultyStore, owner: OwnerId) -> Result<Acquired, StoreError> {
    let timeout = RequestTimeout::of(LEASE);
    store.try_acquire(claim(owner, LEASE), timeout, &SendTrace::default()).await
}

/// Whether the key `k` is free. Takes it if so.
async fn is_free(store: &FaultyStore) -> bool {
    matches!(acquire(store, new_owner()).await, Ok(Acquired::Granted(_)))
}

/// Sends all cleanups, as the background thread does.
async fn send_all(cleanups: &Cleanups) {
    while cleanups.open() > 0 {
        while let Some(batch) = cleanups.next(BootInstant::now()) {
            batch.send(cleanups).await;
        }
        if let Some(at) = cleanups.next_later() {
            time::sleep(at.since(BootInstant::now())).await;
        }
    }
}

/// The origin of a request that was sent over this connection.
fn sent_over(connection: u64) -> Origin {
    let runtime = runtime::Handle::current().id();
    Origin { runtime, connection: NonZeroU64::new(connection) }
}
