//! What operators and other clients read.

use std::time::Duration;

use super::fixture::{Fixture, LONG};
use crate::store::{LeaseScan, ReleaseOutcome, Store, StoreError, StoredLease};

/// More parts than a scan of a few keys has.
const MOST_PARTS: usize = 1000;

/// A store tells what it knows about a key, or never tells it.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_lease_can_be_inspected<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    let inspected = async || match store.inspect(&fixture.key).await {
        Err(error) if does_not_tell(&error) => None,
        found => Some(found.expect("an answer")),
    };
    store.check().await.expect("the store works");
    let Some(found) = inspected().await else { return };
    assert_eq!(found, None, "nobody has the key");
    fixture.acquire(store, 0, LONG).await;
    let lease = inspected().await.flatten().expect("the key is taken");
    is_lease_of(&fixture, &lease);
    if store.keeps_after_release() {
        let kept = store.release(fixture.release(0).keep(LONG)).await;
        assert!(matches!(kept, Ok(ReleaseOutcome::Freed { .. })), "{kept:?}");
        let kept = inspected().await.flatten().expect("the key stays taken");
        assert!(kept.owner.is_none(), "nobody has the key");
        assert!(kept.left.is_some(), "it is kept for some time");
        return;
    }
    fixture.free(store, 0).await;
    assert_eq!(inspected().await.flatten(), None, "the key was released");
}

/// A store finds all keys that are taken and begin with a prefix, or never tells them.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_scan_finds_all_keys_with_a_prefix<S: Store>(store: &S) {
    let first = Fixture::new(&[store]).await;
    if store.scan(LeaseScan::new(&first.key, 1)).await.is_err_and(|error| does_not_tell(&error)) {
        return;
    }
    // The parts of a scan begin behind keys of any length and characters.
    let keys = ["", "\0", ":a", ":a:b", ":a\u{10ffff}", ":é", "z"];
    let fixtures = keys.map(|end| first.behind(end));
    for fixture in &fixtures {
        fixture.acquire(store, 0, LONG).await;
    }
    let other = Fixture::new(&[store]).await;
    other.acquire(store, 0, LONG).await;
    for limit in [1, 2, 100] {
        let (mut found, mut from, mut parts) = (Vec::new(), None, 0);
        loop {
            parts += 1;
            assert!(parts < MOST_PARTS, "the scan does not end");
            let mut scan = LeaseScan::new(&first.key, limit);
            scan.from = from.as_deref();
            let page = store.scan(scan).await.expect("an answer");
            assert!(page.leases.len() <= limit, "{} leases instead of {limit}", page.leases.len());
            found.extend(page.leases);
            assert!(found.len() <= keys.len(), "a key is found twice, or one without the prefix");
            let Some(next) = page.next else { break };
            from = Some(next);
        }
        for fixture in &fixtures {
            let mut leases = found.iter().filter(|lease| lease.key == fixture.key);
            let lease = leases.next().expect("each key is found");
            is_lease_of(fixture, lease);
            assert!(leases.next().is_none(), "a key is found twice");
        }
    }
    for fixture in fixtures.iter().chain([&other]) {
        fixture.free(store, 0).await;
    }
    let rest = store.scan(LeaseScan::new(&first.key, 100)).await.expect("an answer");
    assert!(rest.leases.is_empty(), "the keys were released");
}

/// Whether the store does not have the method.
fn does_not_tell(error: &StoreError) -> bool {
    matches!(error, StoreError::Config { option: "store", .. })
}

fn is_lease_of(fixture: &Fixture, lease: &StoredLease) {
    assert_eq!(lease.key, fixture.key);
    assert!(lease.owner.as_ref() == Some(&fixture.owners[0]), "another owner is told");
    let left = lease.left.expect("the lease ends");
    assert!(left > Duration::ZERO && left <= LONG * 2, "{left:?} are left of {LONG:?}");
}
