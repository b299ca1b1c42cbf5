//! How long a lease lasts.

use std::time::{Duration, Instant};

use super::fixture::{Fixture, LONG, PATIENCE, SHORT};
use crate::store::{ReleaseOutcome, RenewOutcome, Store};

/// A lease ends by itself, and its owner cannot extend or end that of the next one.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_lease_ends<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    fixture.acquire(store, 0, SHORT).await;
    fixture.gets(store, 1, LONG).await;
    let renewed = store.renew(&[fixture.lease(0, LONG)]).await;
    assert_eq!(renewed, [Ok(RenewOutcome::Taken)], "the lease has ended");
    let released = store.release(fixture.release(0)).await;
    assert_eq!(released, Ok(ReleaseOutcome::Taken), "the lease has ended");
    assert!(!fixture.tries(store, 0, LONG).await);
    fixture.free(store, 1).await;
}

/// No lease ends before its term is over.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_lease_lasts_for_its_term<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    let began = Instant::now();
    fixture.acquire(store, 0, SHORT).await;
    fixture.gets(store, 1, LONG).await;
    // The clocks may run a little differently.
    assert_lasted(began.elapsed(), SHORT);
    fixture.free(store, 1).await;
}

/// A renewal extends a lease from the time of the renewal on.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_renewal_extends_a_lease<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        fixture.acquire(store, 0, SHORT).await;
        tokio::time::sleep(SHORT / 2).await;
        let renewal = Instant::now();
        // The machine may have been stalled until the lease has ended.
        if store.renew(&[fixture.lease(0, SHORT * 2)]).await == [Ok(RenewOutcome::Extended)] {
            fixture.gets(store, 1, LONG).await;
            assert_lasted(renewal.elapsed(), SHORT * 2);
            return fixture.free(store, 1).await;
        }
    }
    panic!("a lease of {SHORT:?} was never renewed after {:?}", SHORT / 2);
}

/// A renewal with a shorter term shortens no lease.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_renewal_shortens_nothing<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    fixture.acquire(store, 0, LONG).await;
    assert_eq!(store.renew(&[fixture.lease(0, SHORT)]).await, [Ok(RenewOutcome::Extended)]);
    tokio::time::sleep(SHORT * 2).await;
    assert!(!fixture.tries(store, 1, LONG).await, "a renewal has shortened a lease");
    fixture.free(store, 0).await;
}

/// Of two renewals of a lease at the same time, the longer one counts.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn renewals_at_the_same_time_shorten_nothing<S: Store>(store: &S) {
    let mut renewed = Vec::new();
    let first = Fixture::new(&[store]).await;
    for _ in 0..20 {
        let fixture = first.with_another_key();
        fixture.acquire(store, 0, SHORT * 2).await;
        let (long, short) = ([fixture.lease(0, LONG)], [fixture.lease(0, SHORT * 4)]);
        let (long, short) = tokio::join!(store.renew(&long), store.renew(&short));
        // The machine may have been stalled until the lease has ended.
        if [long, short].iter().all(|answer| *answer == [Ok(RenewOutcome::Extended)]) {
            renewed.push(fixture);
        }
    }
    assert!(!renewed.is_empty(), "a lease of {:?} was never renewed at once", SHORT * 2);
    tokio::time::sleep(SHORT * 8).await;
    for fixture in renewed {
        assert!(!fixture.tries(store, 1, LONG).await, "a renewal has shortened another one");
        fixture.free(store, 0).await;
    }
}

/// A late second request for a key shortens no lease that was extended since.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn the_second_request_shortens_nothing<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    fixture.acquire(store, 0, LONG).await;
    fixture.acquire(store, 0, SHORT).await;
    tokio::time::sleep(SHORT * 2).await;
    assert!(!fixture.tries(store, 1, LONG).await, "the second request has shortened a lease");
    fixture.free(store, 0).await;
}

/// A key that is kept after its release is taken for everybody, and free afterwards. Checks nothing if the store
/// [keeps no keys](Store::keeps_after_release).
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_kept_key_is_free_afterwards<S: Store>(store: &S) {
    if !store.keeps_after_release() {
        return;
    }
    let fixture = Fixture::new(&[store]).await;
    fixture.acquire(store, 0, LONG).await;
    let began = Instant::now();
    let released = store.release(fixture.release(0).keep(SHORT)).await;
    assert!(matches!(released, Ok(ReleaseOutcome::Freed { .. })), "{released:?}");
    let again = store.release(fixture.release(0)).await;
    let is_owner = matches!(again, Ok(ReleaseOutcome::Freed { .. }));
    assert!(!is_owner, "the owner no longer has the key");
    fixture.gets(store, 0, LONG).await;
    assert_lasted(began.elapsed(), SHORT);
    fixture.free(store, 0).await;
}

#[track_caller]
fn assert_lasted(elapsed: Duration, term: Duration) {
    assert!(elapsed >= term * 99 / 100, "a lease of {term:?} was over after {elapsed:?}");
}
