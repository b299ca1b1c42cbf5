//! Requests about several keys of one store: one for the keys of each place.

use crate::store::contract::LockStore;

/// The largest number of keys in one request: enough to keep the number of requests low, and few
/// enough that no request occupies the store for long.
pub(super) const BATCH: usize = 100;

/// Takes the first item, and others in the same place, for one request.
pub(super) fn take_batch<T>(
    rest: &mut Vec<T>,
    store: &dyn LockStore,
    key: impl Fn(&T) -> &str,
) -> Vec<T> {
    let Some(place) = rest.first().map(|first| store.place(key(first))) else {
        return Vec::new();
    };
    let (mut batch, elsewhere): (Vec<_>, Vec<_>) =
        std::mem::take(rest).into_iter().partition(|item| store.place(key(item)) == place);
    *rest = elsewhere;
    rest.extend(batch.drain(BATCH.min(batch.len())..));
    batch
}
