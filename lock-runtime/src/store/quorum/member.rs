//! One of the stores of a quorum.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::timeout;

use super::electorate::Electorate;
use super::leftovers::Leftovers;
use super::round::VoteRequest;
use crate::store::contract::{Backend, LockStore, StoreError};

/// One of the stores of a quorum.
pub(super) struct QuorumMember {
    number: usize,
    pub(super) backend: Arc<dyn Backend>,
    /// Its handle for votes.
    pub(super) store: Arc<dyn LockStore>,
    pub(super) leftovers: Arc<Leftovers>,
    electorate: Arc<Electorate>,
    /// Whether it may vote, as soon as that is known.
    admission: OnceLock<Result<(), StoreError>>,
}

impl QuorumMember {
    pub(super) fn new(
        number: usize,
        (backend, store): (Arc<dyn Backend>, Arc<dyn LockStore>),
        electorate: Arc<Electorate>,
    ) -> Arc<Self> {
        let (leftovers, admission) = (Arc::default(), OnceLock::new());
        Arc::new(Self { number, backend, store, leftovers, electorate, admission })
    }

    /// The address of the store.
    pub(super) fn name(&self) -> &str {
        &self.electorate.names()[self.number]
    }

    /// Fails if the store may not vote. Costs a request until that is known.
    pub(super) async fn admitted(&self) -> Result<(), StoreError> {
        if let Some(admission) = self.admission.get() {
            return admission.clone();
        }
        let profile = self.backend.profile().await?;
        let admitted = self.electorate.admit(self.number, profile);
        self.admission.get_or_init(|| admitted).clone()
    }
}

/// A request to a store that has so much time for an answer.
pub(super) fn within<T: Send + Unpin + 'static>(
    limit: Duration,
    request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> VoteRequest<Result<T, StoreError>> {
    // The store has a limit of its own, and discards a connection that has gone silent.
    let limit = limit + limit / 4;
    Box::pin(async move {
        timeout(limit, request).await.unwrap_or_else(|_| {
            Err(StoreError::Unknown(format!("no answer within {} ms", limit.as_millis())))
        })
    })
}
