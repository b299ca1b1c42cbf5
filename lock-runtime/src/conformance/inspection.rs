//! What operators and other clients read.

use std::collections::HashMap;
use std::time::Duration;

use super::fixture::{CheckedStore, Fixture, LONG};
use crate::store::contract::{Extension, KeyInspector, Layout, Released, StoreError};
use crate::store::scanning::ScanPosition;
use lock_core::lock_state::{LockState, StoredLayout};

/// More parts than a scan of a few keys has.
const MOST_PARTS: usize = 1000;

/// Whether the store never tells this.
fn does_not_tell<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Config { .. }))
}

/// A store tells what it knows about a key, or never tells it.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_lease_can_be_inspected(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    locks.backend.check_readiness(Layout::TOKEN).await.expect("the store works");
    let Ok(inspector) = locks.backend.inspector() else { return };
    if does_not_tell(&inspector.read_lock(&fixture.key).await) {
        return;
    }
    let inspected = async || inspector.read_lock(&fixture.key).await.expect("an answer");
    assert!(inspected().await.is_none(), "nobody has the key");
    fixture.acquire(&locks, 0, LONG).await;
    is_lease_of(&fixture, &inspected().await.expect("the key is taken"));
    let holder = locks.backend.holder(&fixture.key).await.expect("an answer");
    assert!(holder.is_some_and(|holder| holder.is_own), "another owner is told");
    if locks.locks.has(Extension::KeptKeys) {
        let kept = fixture.release(&locks, 0, LONG).await;
        assert!(matches!(kept, Ok(Released::Freed { .. })), "{kept:?}");
        let kept = inspected().await.expect("the key stays taken").holders.remove(0);
        assert!(kept.is_released, "nobody has the key");
        assert!(kept.lease_left.is_some(), "it is kept for some time");
        return;
    }
    fixture.free(&locks, 0).await;
    assert!(inspected().await.is_none(), "the key was released");
}

/// A store finds all keys that are taken and begin with a prefix, or never tells them.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_scan_finds_all_keys_with_a_prefix(store: CheckedStore) {
    let (first, locks) = (Fixture::new(), store.connect().await);
    let Ok(inspector) = locks.backend.inspector() else { return };
    if does_not_tell(&inspector.scan(ScanPosition::Beginning, &first.key, 1).await) {
        return;
    }
    // The parts of a scan begin behind keys of any length and characters.
    let keys = ["", "\0", ":a", ":a:b", ":a\u{10ffff}", ":é", "z"];
    let (fixtures, other) = (keys.map(|end| first.behind(end)), Fixture::new());
    for fixture in fixtures.iter().chain([&other]) {
        fixture.acquire(&locks, 0, LONG).await;
    }
    for limit in [1, 2, 100] {
        let found = scanned(inspector, &first.key, limit).await;
        assert_eq!(found.len(), keys.len(), "each key is found, and no key without the prefix");
        for fixture in &fixtures {
            is_lease_of(fixture, found.get(&fixture.key).expect("each key is found"));
        }
    }
    for fixture in fixtures.iter().chain([&other]) {
        fixture.free(&locks, 0).await;
    }
    assert!(scanned(inspector, &first.key, 100).await.is_empty(), "the keys were released");
}

/// The locks whose keys begin with a prefix, by key.
async fn scanned(
    inspector: &dyn KeyInspector,
    prefix: &str,
    limit: u32,
) -> HashMap<String, LockState> {
    let (pattern, mut found) = (format!("{prefix}*"), HashMap::new());
    let (mut next, mut parts) = (Some(ScanPosition::Beginning), 0);
    while let Some(position) = next {
        parts += 1;
        assert!(parts < MOST_PARTS, "the scan does not end");
        let page = inspector.scan(position, &pattern, limit).await.expect("an answer");
        let is_possible = u32::try_from(page.locks.len()).is_ok_and(|locks| locks <= limit);
        assert!(is_possible, "{} locks instead of {limit}", page.locks.len());
        for lock in page.locks {
            assert!(found.insert(lock.key.clone(), lock).is_none(), "a key is found twice");
        }
        // A server without an index of its keys may find one twice.
        for key in page.keys {
            if let Some(lock) = inspector.read_lock(&key).await.expect("an answer") {
                found.insert(key, lock);
            }
        }
        next = page.next;
    }
    found
}

fn is_lease_of(fixture: &Fixture, lock: &LockState) {
    assert_eq!(lock.key, fixture.key);
    assert_eq!(lock.layout, StoredLayout::Token, "another owner is told");
    let holder = lock.holders.first().expect("a holder");
    assert!(holder.held_for.is_some_and(|time| time < LONG), "the owner began just now");
    let left = holder.lease_left.expect("the lease ends");
    assert!(left > Duration::ZERO && left <= LONG * 2, "{left:?} are left of {LONG:?}");
}
