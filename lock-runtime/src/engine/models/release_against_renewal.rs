//! Races of a release with a renewal.
//!
//! A renewal is due, in flight or answered while the holder releases the lock. The tasks are the
//! holder, the background thread and the store. The models assert that the key is free after the
//! release, or at the end of its `min_hold`, and that a release that gets no answer is repeated for
//! as long as the key can last. In the controls, a renewal acquires the key anew, or is recorded
//! only when it is answered.

use super::*;

/// A renewal is due while the holder releases the lock.
async fn race(request: Request, renewal: Option<fn(TestEngine, Hold)>) {
    let process = Process::start();
    let hold = process.hold(request).await;
    let clock = spawn(time::run());
    time::advance(TERM / 3);
    if let Some(renewal) = renewal {
        renewal(process.engine.clone(), hold.clone());
    }
    for _ in 0..thread_rng().gen_range(0..4) {
        process.network.assert_owns_key(&hold);
        yield_now().await;
    }
    clock.abort();
    if thread_rng().r#gen() {
        process.engine.release_in_background(&hold, true);
    } else if let Err(error) = process.engine.release(&hold, true).await {
        assert!(matches!(*error, LockError::Lost { .. }), "{error:?}");
    }
    process.assert_nothing_left().await;
}

#[test]
fn a_renewal_does_not_recreate_a_released_key() {
    explore(|| race(request(), None));
}

#[test]
#[should_panic(expected = "the key is still taken")]
fn a_renewal_that_acquires_the_key_anew_recreates_a_released_key() {
    find_failure(|| {
        race(
            fixed(),
            Some(|engine, hold| {
                model::spawn_task(async move {
                    let claim = Claim { fresh: false, ..claim(owner(&hold), TERM) };
                    let trace = SendTrace::default();
                    let _ = engine.store().try_acquire(claim, NO_TIMEOUT, &trace).await;
                });
            }),
        )
    });
}

/// A renewal is due while the holder releases a lock whose key stays for its `min_hold`.
async fn race_with_min_hold(request: Request, renewal: fn(TestEngine, Hold)) {
    let terms = Terms { min_hold: TERM / 2, ..request.terms };
    let process = Process::start();
    let hold = process.hold(Request { terms, ..request }).await;
    time::advance(TERM / 3);
    renewal(process.engine.clone(), hold.clone());
    pause().await;
    process.engine.release(&hold, true).await.expect("the store is up");
    process.wait_until_settled(0).await;
    time::advance(hold.lease().kept_until().since(BootInstant::now()));
    process.assert_nothing_left().await;
}

#[test]
fn a_renewal_does_not_extend_a_key_beyond_its_minimum_hold() {
    explore(|| race_with_min_hold(request(), |_, _| {}));
}

/// No control: the store itself prevents this, even if the engine sends the renewal late.
#[test]
fn the_store_does_not_let_a_late_renewal_extend_a_key_beyond_its_minimum_hold() {
    explore(|| {
        race_with_min_hold(fixed(), |engine, hold| {
            model::spawn_task(async move {
                let Some(term) = hold.about_to_extend(BootInstant::now(), None, Duration::ZERO)
                else {
                    return;
                };
                let renewal = [hold.lease().renewal(term)];
                engine.store().renew(&renewal, Lane::Background).await;
                hold.lease().extended(BootInstant::now(), None);
            });
        })
    });
}

/// A renewal is due while the holder releases the lock, and the store refuses all releases.
async fn race_without_releases(request: Request, renewal: fn(TestEngine, Hold)) {
    let process = Process::start();
    let hold = process.hold(short(request)).await;
    process.network.refuse_releases();
    time::advance(SHORT_TERM / 3);
    renewal(process.engine.clone(), hold.clone());
    pause().await;
    process.engine.release_in_background(&hold, true);
    // The clock does not advance until only the release is in progress.
    process.wait_until_settled(1).await;
    process.assert_nothing_left().await;
}

#[test]
fn a_release_is_repeated_for_as_long_as_a_renewal_may_have_extended_the_key() {
    explore(|| race_without_releases(request(), |_, _| {}));
}

#[test]
#[should_panic(expected = "the key is still taken")]
fn a_release_is_given_up_too_early_if_renewals_are_recorded_only_when_answered() {
    find_failure(|| {
        race_without_releases(fixed(), |engine, hold| {
            model::spawn_task(async move {
                let sent = BootInstant::now();
                if !hold.is_valid(sent) {
                    return;
                }
                let renewal = [hold.lease().renewal(SHORT_TERM)];
                engine.store().renew(&renewal, Lane::Background).await;
                hold.about_to_extend(sent, None, Duration::ZERO);
                hold.lease().extended(sent, None);
            });
        })
    });
}
