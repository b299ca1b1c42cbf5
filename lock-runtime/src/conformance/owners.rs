//! Who has a key.

use super::fixture::{Fixture, LONG};
use crate::store::{
    LeaseOutcome, LeaseRequest, ReleaseOutcome, ReleaseRequest, RenewOutcome, Store,
};

/// A key has one owner, also for another client.
///
/// # Panics
///
/// If the store breaks its contract. So do the other checks.
pub async fn a_free_key_is_granted_to_one_owner<S: Store>(one: S, two: S) {
    let fixture = Fixture::new(&[&one, &two]).await;
    fixture.acquire(&one, 0, LONG).await;
    for store in [&one, &two] {
        match store.acquire(fixture.lease(1, LONG)).await {
            Ok(LeaseOutcome::Busy { left }) => {
                let is_possible = left.is_none_or(|left| left <= LONG);
                assert!(is_possible, "{left:?} is left of a lease of {LONG:?}");
            }
            other => panic!("a key that is taken: {other:?}"),
        }
    }
    fixture.free(&two, 0).await;
}

/// An owner that has the key gets it again.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn the_owner_may_ask_again<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    fixture.acquire(store, 0, LONG).await;
    assert!(fixture.tries(store, 0, LONG).await, "the second request of the owner is not granted");
    assert!(!fixture.tries(store, 1, LONG).await);
    // One release undoes both.
    fixture.free(store, 0).await;
    assert!(fixture.tries(store, 1, LONG).await, "a key that was acquired twice is not free");
    fixture.free(store, 1).await;
}

/// A release frees the key.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_released_key_is_free<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    for owner in [0, 1, 0] {
        fixture.acquire(store, owner, LONG).await;
        fixture.free(store, owner).await;
        let again = store.release(fixture.release(owner)).await;
        assert_eq!(again, Ok(ReleaseOutcome::Gone), "the second release");
    }
}

/// Nobody else frees a key.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn only_the_owner_releases<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    let released = store.release(fixture.release(0)).await;
    assert_eq!(released, Ok(ReleaseOutcome::Gone), "a key that nobody has");
    fixture.acquire(store, 0, LONG).await;
    let released = store.release(fixture.release(1)).await;
    assert_eq!(released, Ok(ReleaseOutcome::Taken), "a key that another owner has");
    assert!(!fixture.tries(store, 1, LONG).await, "a release by another owner has freed the key");
    fixture.free(store, 0).await;
}

/// Nobody else extends a lease, and a lease that has ended is not revived.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn only_the_owner_renews<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    let renewed = store.renew(&[fixture.lease(0, LONG)]).await;
    assert_eq!(renewed, [Ok(RenewOutcome::Gone)], "a key that nobody has");
    fixture.acquire(store, 1, LONG).await;
    fixture.free(store, 1).await;
    let renewed = store.renew(&[fixture.lease(1, LONG)]).await;
    assert_eq!(renewed, [Ok(RenewOutcome::Gone)], "a key that was released");
    fixture.acquire(store, 0, LONG).await;
    let renewed = store.renew(&[fixture.lease(1, LONG)]).await;
    assert_eq!(renewed, [Ok(RenewOutcome::Taken)], "a key that another owner has");
    assert_eq!(store.renew(&[fixture.lease(0, LONG)]).await, [Ok(RenewOutcome::Extended)]);
    fixture.free(store, 0).await;
}

/// A batch of renewals has one answer for each, in their order.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_batch_is_answered_one_by_one<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    let keys: Vec<String> = (0..100).map(|key| format!("{}:{key}", fixture.key)).collect();
    let lease =
        |key: usize, owner: usize| LeaseRequest::new(&keys[key], &fixture.owners[owner], LONG);
    // A third is that of the owner, a third that of another one, and a third nobody's.
    for key in (0..keys.len()).filter(|key| key % 3 != 2) {
        let acquired = store.acquire(lease(key, key % 3)).await;
        assert!(matches!(acquired, Ok(LeaseOutcome::Granted { .. })), "{acquired:?}");
    }
    let batch: Vec<_> = (0..keys.len()).map(|key| lease(key, 0)).collect();
    let expected = |key| match key % 3 {
        0 => Ok(RenewOutcome::Extended),
        1 => Ok(RenewOutcome::Taken),
        _ => Ok(RenewOutcome::Gone),
    };
    assert_eq!(store.renew(&batch).await, (0..keys.len()).map(expected).collect::<Vec<_>>());
    assert_eq!(store.renew(&[]).await, []);
    for key in (0..keys.len()).filter(|key| key % 3 != 2) {
        let owner = &fixture.owners[key % 3];
        let request = ReleaseRequest::new(&keys[key], owner);
        assert!(matches!(store.release(request).await, Ok(ReleaseOutcome::Freed { .. })));
    }
}
