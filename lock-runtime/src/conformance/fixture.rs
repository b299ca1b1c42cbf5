//! What the checks of stores share.

use std::time::{Duration, Instant};

use crate::store::owner::{ClientTag, OwnerId};
use crate::store::subscriptions::Subscriptions;
use crate::store::{
    FenceRequest, LeaseOutcome, LeaseRequest, ReleaseOutcome, ReleaseRequest, Store, WakeUps,
};

/// A lease that does not end during a check.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// A lease whose end a check waits for.
pub(super) const SHORT: Duration = Duration::from_millis(400);

/// How long something may take that has to happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A key and owners of a check.
pub(super) struct Fixture {
    pub(super) key: String,
    pub(super) owners: [String; 2],
}

impl Fixture {
    /// Connects the stores. Their wake-ups are for nobody.
    pub(super) async fn new<S: Store>(stores: &[&S]) -> Self {
        for store in stores {
            let nobody = Subscriptions::local();
            store.connect(WakeUps::new(&nobody, None)).await.expect("the store connects");
        }
        Self { key: format!("conformance:{}", owner()), owners: [owner(), owner()] }
    }

    /// The same owners, for another key.
    pub(super) fn with_another_key(&self) -> Self {
        Self { key: format!("conformance:{}", owner()), owners: self.owners.clone() }
    }

    /// The same owners, for a key that begins with this one.
    pub(super) fn behind(&self, end: &str) -> Self {
        Self { key: format!("{}{end}", self.key), owners: self.owners.clone() }
    }

    pub(super) fn lease(&self, owner: usize, term: Duration) -> LeaseRequest<'_> {
        LeaseRequest::new(&self.key, &self.owners[owner], term)
    }

    pub(super) fn release(&self, owner: usize) -> ReleaseRequest<'_> {
        ReleaseRequest::new(&self.key, &self.owners[owner])
    }

    pub(super) fn fence(&self, owner: usize) -> FenceRequest<'_> {
        FenceRequest::new(&self.key, &self.owners[owner])
    }

    /// One owner gets the key.
    pub(super) async fn acquire<S: Store>(
        &self,
        store: &S,
        owner: usize,
        term: Duration,
    ) -> Option<u64> {
        match store.acquire(self.lease(owner, term)).await {
            Ok(LeaseOutcome::Granted { fence }) => fence,
            other => panic!("a free key was not granted: {other:?}"),
        }
    }

    /// The owner loses the key.
    pub(super) async fn free<S: Store>(&self, store: &S, owner: usize) {
        let released = store.release(self.release(owner)).await;
        assert!(
            matches!(released, Ok(ReleaseOutcome::Freed { .. })),
            "a release by the owner: {released:?}"
        );
    }

    /// Whether the owner gets the key, if it is free now.
    pub(super) async fn tries<S: Store>(&self, store: &S, owner: usize, term: Duration) -> bool {
        match store.acquire(self.lease(owner, term)).await {
            Ok(LeaseOutcome::Granted { .. }) => true,
            Ok(LeaseOutcome::Busy { .. }) => false,
            Err(error) => panic!("an attempt failed: {error:?}"),
        }
    }

    /// The owner gets the key as soon as it is free.
    pub(super) async fn gets<S: Store>(&self, store: &S, owner: usize, term: Duration) {
        let began = Instant::now();
        while !self.tries(store, owner, term).await {
            assert!(
                began.elapsed() < PATIENCE,
                "the key of a lease of {SHORT:?} is not free after {PATIENCE:?}"
            );
            tokio::time::sleep(SHORT / 20).await;
        }
    }
}

/// The token of a new owner.
pub(super) fn owner() -> String {
    let id = OwnerId::new().expect("randomness");
    ClientTag::random().expect("randomness").owner_name(id)
}
