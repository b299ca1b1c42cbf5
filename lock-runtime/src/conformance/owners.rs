//! Who has a key.

use std::time::Duration;

use super::fixture::{CheckedStore, Fixture, LONG};
use crate::store::contract::{Acquired, Left, Released, Renewed};

/// A key has one owner, also for another client.
///
/// # Panics
///
/// If the store breaks its contract. So do the other checks.
pub async fn a_free_key_is_granted_to_one_owner(one: CheckedStore, two: CheckedStore) {
    let (fixture, one, two) = (Fixture::new(), one.connect().await, two.connect().await);
    fixture.acquire(&one, 0, LONG).await;
    for locks in [&one, &two] {
        match locks.acquire(&fixture.key, fixture.owners[1], LONG).await {
            Ok(Acquired::Busy(Left::Unknown)) => {}
            Ok(Acquired::Busy(Left::Time(left))) if left <= LONG => {}
            other => panic!("a key that is taken for {LONG:?}: {other:?}"),
        }
    }
    fixture.free(&one, 0).await;
    fixture.acquire(&two, 1, LONG).await;
    fixture.free(&two, 1).await;
}

/// An owner that has the key gets it again.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn the_owner_may_ask_again(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    fixture.acquire(&locks, 0, LONG).await;
    assert!(fixture.tries(&locks, 0, LONG).await, "the second request of the owner is not granted");
    assert!(!fixture.tries(&locks, 1, LONG).await);
    // One release undoes both.
    fixture.free(&locks, 0).await;
    assert!(fixture.tries(&locks, 1, LONG).await, "a key that was acquired twice is not free");
    fixture.free(&locks, 1).await;
}

/// A release frees the key.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_released_key_is_free(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    for owner in [0, 1, 0] {
        fixture.acquire(&locks, owner, LONG).await;
        fixture.free(&locks, owner).await;
        let again = fixture.release(&locks, owner, Duration::ZERO).await;
        assert_eq!(again, Ok(Released::Gone), "the second release");
    }
}

/// Nobody else frees a key.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn only_the_owner_releases(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    let released = fixture.release(&locks, 0, Duration::ZERO).await;
    assert_eq!(released, Ok(Released::Gone), "a key that nobody has");
    fixture.acquire(&locks, 0, LONG).await;
    let released = fixture.release(&locks, 1, Duration::ZERO).await;
    assert_eq!(released, Ok(Released::Taken), "a key that another owner has");
    assert!(!fixture.tries(&locks, 1, LONG).await, "a release by another owner has freed the key");
    fixture.free(&locks, 0).await;
}

/// Nobody else extends a lease, and a lease that has ended is not revived.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn only_the_owner_renews(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    let renewed = fixture.renew(&locks, 0, LONG).await;
    assert_eq!(renewed, Ok(Renewed::Gone), "a key that nobody has");
    fixture.acquire(&locks, 1, LONG).await;
    fixture.free(&locks, 1).await;
    let renewed = fixture.renew(&locks, 1, LONG).await;
    assert_eq!(renewed, Ok(Renewed::Gone), "a key that was released");
    fixture.acquire(&locks, 0, LONG).await;
    let renewed = fixture.renew(&locks, 1, LONG).await;
    assert_eq!(renewed, Ok(Renewed::Taken), "a key that another owner has");
    assert_eq!(fixture.renew(&locks, 0, LONG).await, Ok(Renewed::Extended));
    fixture.free(&locks, 0).await;
}

/// A batch of renewals has one answer for each, in their order.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_batch_is_answered_one_by_one(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    let keys: Vec<Fixture> = (0..100).map(|key| fixture.behind(&format!(":{key}"))).collect();
    // A third is that of the owner, a third that of another one, and a third nobody's.
    let is_taken = |key: &usize| key % 3 != 2;
    for key in (0..keys.len()).filter(is_taken) {
        keys[key].acquire(&locks, key % 3, LONG).await;
    }
    let batch: Vec<_> = keys.iter().map(|key| (&*key.key, key.owners[0])).collect();
    let expected = |key| match key % 3 {
        0 => Ok(Renewed::Extended),
        1 => Ok(Renewed::Taken),
        _ => Ok(Renewed::Gone),
    };
    let renewed = locks.renew(&batch, LONG).await;
    assert_eq!(renewed, (0..keys.len()).map(expected).collect::<Vec<_>>());
    for key in (0..keys.len()).filter(is_taken) {
        keys[key].free(&locks, key % 3).await;
    }
}
