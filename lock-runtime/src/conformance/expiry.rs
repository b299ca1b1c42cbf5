//! How long a lease lasts.

use std::time::{Duration, Instant};

use super::fixture::{CheckedStore, Fixture, LONG, PATIENCE, SHORT};
use crate::store::contract::{Extension, Released, Renewed};

/// A lease ends by itself, and its owner cannot extend or end that of the next one.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_lease_ends(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    fixture.acquire(&locks, 0, SHORT).await;
    fixture.gets(&locks, 1, LONG).await;
    let renewed = fixture.renew(&locks, 0, LONG).await;
    assert_eq!(renewed, Ok(Renewed::Taken), "the lease has ended");
    let released = fixture.release(&locks, 0, Duration::ZERO).await;
    assert_eq!(released, Ok(Released::Taken), "the lease has ended");
    assert!(!fixture.tries(&locks, 0, LONG).await);
    fixture.free(&locks, 1).await;
}

/// No lease ends before its term is over.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_lease_lasts_for_its_term(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    let began = Instant::now();
    fixture.acquire(&locks, 0, SHORT).await;
    fixture.gets(&locks, 1, LONG).await;
    // The clocks may run a little differently.
    assert_lasted(began.elapsed(), SHORT);
    fixture.free(&locks, 1).await;
}

/// A renewal extends a lease from the time of the renewal on.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_renewal_extends_a_lease(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        fixture.acquire(&locks, 0, SHORT).await;
        tokio::time::sleep(SHORT / 2).await;
        let renewal = Instant::now();
        // The machine may have been stalled until the lease has ended.
        if fixture.renew(&locks, 0, SHORT * 2).await == Ok(Renewed::Extended) {
            fixture.gets(&locks, 1, LONG).await;
            assert_lasted(renewal.elapsed(), SHORT * 2);
            return fixture.free(&locks, 1).await;
        }
    }
    panic!("a lease of {SHORT:?} was never renewed after {:?}", SHORT / 2);
}

/// A renewal with a shorter term shortens no lease.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_renewal_shortens_nothing(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    fixture.acquire(&locks, 0, LONG).await;
    assert_eq!(fixture.renew(&locks, 0, SHORT).await, Ok(Renewed::Extended));
    tokio::time::sleep(SHORT * 2).await;
    assert!(!fixture.tries(&locks, 1, LONG).await, "a renewal has shortened a lease");
    fixture.free(&locks, 0).await;
}

/// Of two renewals of a lease at the same time, the longer one counts.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn renewals_at_the_same_time_shorten_nothing(store: CheckedStore) {
    let mut renewed = Vec::new();
    let locks = store.connect().await;
    for _ in 0..20 {
        let fixture = Fixture::new();
        fixture.acquire(&locks, 0, SHORT * 2).await;
        let (long, short) =
            tokio::join!(fixture.renew(&locks, 0, LONG), fixture.renew(&locks, 0, SHORT * 4));
        // The machine may have been stalled until the lease has ended.
        if [long, short].iter().all(|answer| *answer == Ok(Renewed::Extended)) {
            renewed.push(fixture);
        }
    }
    assert!(!renewed.is_empty(), "a lease of {:?} was never renewed at once", SHORT * 2);
    tokio::time::sleep(SHORT * 8).await;
    for fixture in renewed {
        assert!(!fixture.tries(&locks, 1, LONG).await, "a renewal has shortened another one");
        fixture.free(&locks, 0).await;
    }
}

/// A late second request for a key shortens no lease that was extended since.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn the_second_request_shortens_nothing(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    fixture.acquire(&locks, 0, LONG).await;
    fixture.acquire(&locks, 0, SHORT).await;
    tokio::time::sleep(SHORT * 2).await;
    assert!(!fixture.tries(&locks, 1, LONG).await, "the second request has shortened a lease");
    fixture.free(&locks, 0).await;
}

/// A key that is kept after its release is taken for everybody, and free afterwards. Checks nothing if the store
/// keeps no keys.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_kept_key_is_free_afterwards(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    if !locks.locks.has(Extension::KeptKeys) {
        return;
    }
    fixture.acquire(&locks, 0, LONG).await;
    let began = Instant::now();
    let released = fixture.release(&locks, 0, SHORT).await;
    assert!(matches!(released, Ok(Released::Freed { .. })), "{released:?}");
    let again = fixture.release(&locks, 0, Duration::ZERO).await;
    let is_owner = matches!(again, Ok(Released::Freed { .. }));
    assert!(!is_owner, "the owner no longer has the key");
    fixture.gets(&locks, 0, LONG).await;
    assert_lasted(began.elapsed(), SHORT);
    fixture.free(&locks, 0).await;
}

#[track_caller]
fn assert_lasted(elapsed: Duration, term: Duration) {
    assert!(elapsed >= term * 99 / 100, "a lease of {term:?} was over after {elapsed:?}");
}
