//! Several keys at once.

use std::collections::HashMap;

use super::fixture::{CheckedLocks, CheckedStore, LONG, new_key, owner};
use crate::store::contract::{Extension, Resource, SendTrace, SetAcquired, SetClaim};
use crate::timeout::RequestTimeout;

/// The number of keys that are taken together.
const KEYS: usize = 3;

/// New keys of one slot.
fn keys_of_one_slot(locks: &CheckedLocks) -> Vec<String> {
    let mut by_slot: HashMap<u16, Vec<String>> = HashMap::new();
    loop {
        let key = new_key();
        let keys = by_slot.entry(locks.locks.slot(&key).0).or_default();
        keys.push(key);
        if keys.len() == KEYS {
            return std::mem::take(keys);
        }
    }
}

/// Several keys are taken together, or none of them. Checks nothing if the store takes one key at a time.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn several_keys_are_taken_or_none(store: CheckedStore) {
    let locks = store.connect().await;
    if !locks.locks.has(Extension::SeveralKeys) {
        return;
    }
    let (keys, first, second) = (keys_of_one_slot(&locks), owner(), owner());
    let names: Vec<&str> = keys.iter().map(|key| &**key).collect();
    let claim = async || {
        let (trace, timeout) = (SendTrace::default(), RequestTimeout::of(LONG));
        let claim = SetClaim { keys: &names, owner: first, term: LONG };
        locks.locks.try_acquire_all(claim, timeout, &trace).await.expect("an answer")
    };
    let key = |index: usize| Resource::exclusive(names[index]);
    assert_eq!(claim().await, SetAcquired::Granted, "keys that are free");
    assert_eq!(claim().await, SetAcquired::Granted, "the second request of the owner");
    for index in 0..KEYS {
        assert!(!locks.takes(key(index), second).await, "the key {index} was not taken");
        locks.frees(key(index), first).await;
    }
    assert!(locks.takes(key(1), second).await, "a key that was released is not free");
    assert_eq!(claim().await, SetAcquired::Busy(1), "keys of which one is taken");
    for index in [0, 2] {
        let is_free = locks.takes(key(index), second).await;
        assert!(is_free, "a refused claim has taken the key {index}");
    }
    for index in 0..KEYS {
        locks.frees(key(index), second).await;
    }
}
