//! The limit of renewals in flight, separately for each place of a store, and for each requirement
//! of acknowledgements.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::replicas::RequiredReplicas;
use crate::store::contract::{LockStore, Place, is_same};
use crate::sync::{Mutex, lock};

/// The largest number of renewal requests in flight per place. It keeps the renewals of a hundred
/// thousand locks that were acquired together from blocking all other requests.
const BATCHES_PER_PLACE: usize = 16;

/// The limits of all places.
#[derive(Default)]
pub(super) struct Renewals {
    /// There are few places.
    places: Mutex<Vec<PlaceLimit>>,
}

struct PlaceLimit {
    store: Arc<dyn LockStore>,
    place: Place,
    /// Renewals that wait for replicas delay no renewals that do not.
    acknowledged_by: RequiredReplicas,
    permits: Arc<Semaphore>,
}

impl Renewals {
    pub(super) fn limit(
        &self,
        store: &Arc<dyn LockStore>,
        place: Place,
        acknowledged_by: RequiredReplicas,
    ) -> Arc<Semaphore> {
        let mut places = lock(&self.places);
        let is_it = |limit: &&PlaceLimit| {
            (limit.place, limit.acknowledged_by) == (place, acknowledged_by)
                && is_same(&limit.store, store)
        };
        if let Some(limit) = places.iter().find(is_it) {
            return Arc::clone(&limit.permits);
        }
        // Places of which nothing is in flight, such as nodes that are no longer part of a cluster.
        places.retain(|limit| Arc::strong_count(&limit.permits) > 1);
        let permits = Arc::new(Semaphore::new(BATCHES_PER_PLACE));
        let store = Arc::clone(store);
        let kept = Arc::clone(&permits);
        places.push(PlaceLimit { store, place, acknowledged_by, permits: kept });
        permits
    }
}
