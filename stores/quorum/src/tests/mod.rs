//! Tests of the rules of quorums, over stores in memory that meet planned faults.

mod claiming;
#[cfg(lock_controls)]
mod controls;
mod holding;
mod joining;
mod residual;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::{QuorumBackend, server_timeout};
use lock_core::replicas::RequiredReplicas;
use lock_core::store::contract::{
    Acquired, Backend, BackgroundRuntimes, Fenced, Lane, Layout, LockStore, Release, Released,
    Renewal, Renewed, Resource, SendTrace, StoreError,
};
use lock_core::store::faulty::{self, Fault, FaultyStore, OneStore};
use lock_core::store::hold_reports::HoldReports;
use lock_core::store::memory::backend::MemoryBackend;
use lock_core::store::owner::OwnerId;
use lock_core::timeout::RequestTimeout;

const LEASE: Duration = Duration::from_secs(3);

fn plain_locks(quorum: &QuorumBackend) -> Arc<dyn LockStore> {
    quorum.handle(Layout::TOKEN).expect("a quorum has plain locks")
}

/// Stores in memory, whose requests meet planned faults, and a quorum of them.
struct FaultyQuorum {
    /// The stores as another client sees them, without faults.
    memory: Vec<Arc<dyn LockStore>>,
    faulty: Vec<Arc<FaultyStore>>,
    backend: QuorumBackend,
}

impl FaultyQuorum {
    fn of(stores: usize) -> Self {
        let votes = |_| MemoryBackend::new().locks(Layout::Vote) as Arc<dyn LockStore>;
        let memory: Vec<_> = (0..stores).map(votes).collect();
        let faulty: Vec<_> =
            memory.iter().map(|store| Arc::new(FaultyStore::new(Arc::clone(store)))).collect();
        let named = |(number, store): (usize, &Arc<FaultyStore>)| {
            let store = Arc::clone(store) as Arc<dyn LockStore>;
            (Arc::new(OneStore(store)) as Arc<dyn Backend>, format!("store {number}"))
        };
        let members = faulty.iter().enumerate().map(named).collect();
        let backend = QuorumBackend::new(members, server_timeout(LEASE)).expect("they have votes");
        let (renewals, wake_ups) = (Handle::current(), Handle::current());
        backend.adopt(&BackgroundRuntimes { renewals, wake_ups }, HoldReports::new(|_| {}));
        Self { memory, faulty, backend }
    }

    fn locks(&self) -> Arc<dyn LockStore> {
        plain_locks(&self.backend)
    }

    async fn claim(&self, owner: OwnerId) -> Result<Acquired, StoreError> {
        self.claim_for(owner, LEASE).await
    }

    async fn claim_for(&self, owner: OwnerId, term: Duration) -> Result<Acquired, StoreError> {
        claim(&*self.locks(), owner, term).await
    }

    async fn renew(&self, owner: OwnerId) -> Result<Renewed, StoreError> {
        let (resource, acknowledged_by) = (Resource::exclusive("k"), RequiredReplicas::NONE);
        let renewal = [Renewal { resource, owner, term: LEASE, acknowledged_by }];
        self.locks().renew(&renewal, Lane::Caller).await.pop().expect("one answer")
    }

    async fn release(&self, owner: OwnerId) -> Result<Released, StoreError> {
        self.locks().release(release(owner), Lane::Caller).await
    }

    async fn token(&self, owner: OwnerId) -> u64 {
        match self.locks().fence(Resource::exclusive("k"), owner, 0).await {
            Ok(Fenced::With(token)) => token,
            other => panic!("{other:?}"),
        }
    }

    /// Whether an owner has the key at each store.
    async fn held_by(&self, owner: OwnerId) -> Vec<bool> {
        let mut held = Vec::new();
        for store in &self.memory {
            let (resource, acknowledged_by) = (Resource::exclusive("k"), RequiredReplicas::NONE);
            let renewal = [Renewal { resource, owner, term: Duration::ZERO, acknowledged_by }];
            let renewed = store.renew(&renewal, Lane::Caller).await.pop();
            held.push(renewed == Some(Ok(Renewed::Extended)));
        }
        held
    }

    /// Renews a lock until its owner has it at all stores.
    async fn assert_restored(&self, owner: OwnerId) {
        let end = Instant::now() + LEASE / 2;
        while self.held_by(owner).await != vec![true; self.memory.len()] {
            assert!(Instant::now() < end, "a vote is not restored");
            assert_eq!(self.renew(owner).await, Ok(Renewed::Extended));
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until nobody has the key at any store.
    async fn assert_freed(&self, owner: OwnerId) {
        // Before the lease ends.
        let end = Instant::now() + LEASE / 2;
        while self.held_by(owner).await.contains(&true) {
            assert!(
                Instant::now() < end,
                "a store still has the key: {:?}",
                self.held_by(owner).await
            );
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Lets these stores answer the next claims with this fault.
    fn next_claims(&self, stores: &[usize], fault: Fault) {
        for store in stores {
            self.faulty[*store].next_acquires([fault]);
        }
    }
}

fn owner() -> OwnerId {
    OwnerId::new().expect("randomness")
}

async fn claim(
    store: &dyn LockStore,
    owner: OwnerId,
    term: Duration,
) -> Result<Acquired, StoreError> {
    let claim = faulty::claim(owner, term);
    store.try_acquire(claim, RequestTimeout::of(LEASE), &SendTrace::default()).await
}

fn release(owner: OwnerId) -> Release<'static> {
    let (resource, keep) = (Resource::exclusive("k"), Duration::ZERO);
    Release { resource, owner, keep, queued: None, leaves_gap: false }
}

fn is_granted(answer: &Result<Acquired, StoreError>) -> bool {
    matches!(answer, Ok(Acquired::Granted(_)))
}
