//! The limit of renewals in flight, separately for each place of a store.

use std::sync::Arc;

use tokio::sync::Semaphore;

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
    permits: Arc<Semaphore>,
}

impl Renewals {
    pub(super) fn limit(&self, store: &Arc<dyn LockStore>, place: Place) -> Arc<Semaphore> {
        let mut places = lock(&self.places);
        let is_it = |limit: &&PlaceLimit| limit.place == place && is_same(&limit.store, store);
        if let Some(limit) = places.iter().find(is_it) {
            return Arc::clone(&limit.permits);
        }
        let permits = Arc::new(Semaphore::new(BATCHES_PER_PLACE));
        let store = Arc::clone(store);
        places.push(PlaceLimit { store, place, permits: Arc::clone(&permits) });
        permits
    }
}
