//! Several keys at once.

use super::fixture::{CheckedStore, Fixture, LONG, owner};
use crate::store::contract::{Extension, Resource, SendTrace, SetAcquired, SetClaim};
use crate::timeout::RequestTimeout;

/// Several keys are taken together, or none of them. Checks nothing if the store takes one key at a time.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn several_keys_are_taken_or_none(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    if !locks.locks.has(Extension::SeveralKeys) {
        return;
    }
    let keys = [":a", ":b", ":c"].map(|end| fixture.behind(end).key);
    let names: Vec<&str> = keys.iter().map(|key| &**key).collect();
    let slots: Vec<_> = names.iter().map(|key| locks.locks.slot(key)).collect();
    assert!(slots[0].is_some() && slots.iter().all(|slot| *slot == slots[0]), "{slots:?}");
    let [first, second] = fixture.owners;
    let claim = async |owner| {
        let (trace, timeout) = (SendTrace::default(), RequestTimeout::of(LONG));
        let claim = SetClaim { keys: &names, owner, term: LONG };
        locks.locks.try_acquire_all(claim, timeout, &trace).await.expect("an answer")
    };
    let key = |index: usize| Resource::exclusive(names[index]);
    assert_eq!(claim(first).await, SetAcquired::Granted, "keys that are free");
    assert_eq!(claim(first).await, SetAcquired::Granted, "the second request of the owner");
    for index in 0..names.len() {
        assert!(!locks.takes(key(index), second).await, "the key {index} was not taken");
        locks.frees(key(index), first).await;
    }
    assert!(locks.takes(key(1), second).await, "a key that was released is not free");
    assert_eq!(claim(first).await, SetAcquired::Busy(1), "keys of which one is taken");
    for index in [0, 2] {
        assert!(
            locks.takes(key(index), owner()).await,
            "a refused claim has taken the key {index}"
        );
    }
}
