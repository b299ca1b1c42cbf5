//! The race of a shutdown with a grant.
//!
//! Callers that never release their locks by themselves acquire one key, while a shutdown begins
//! before, during or after the grant. The tasks are the callers, the background thread, the store
//! and the shutdown. The model asserts that each granted lock is lost, that each waiting caller
//! returns, and that nothing is left. In the control, a grant checks for the shutdown before the
//! background thread has the lease.

use super::*;

/// Multiplies the orders under PCT, because all steps of a shutdown must overtake one grant.
const DEPTH_FACTOR: usize = 4;

/// A shutdown begins while callers acquire the lock.
async fn race(acquire: Acquire, callers: usize) {
    let process = Process::start();
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let (engine, network) = (process.engine.clone(), Arc::clone(&process.network));
            spawn(async move {
                let Some(hold) = acquire(engine.clone()).await else { return };
                network.assert_owns_key(&hold);
                hold.lost().await;
                engine.release_in_background(&hold, true);
            })
        })
        .collect();
    if thread_rng().r#gen() {
        // Afterwards the answer is in flight, or has arrived.
        while !process.network.is_taken() {
            yield_now().await;
        }
    } else {
        pause().await;
    }
    yield_randomly(6).await;
    let clock = spawn(time::run());
    process.engine.shut_down(Duration::ZERO).await;
    assert_eq!(process.engine.admit("k"), Err(LockError::ShutDown));
    for caller in callers {
        caller.await.expect("not aborted");
    }
    clock.abort();
    process.assert_nothing_left().await;
}

#[test]
fn a_shutdown_ends_every_hold_even_one_granted_during_the_shutdown() {
    explore_deeper(DEPTH_FACTOR, || race(regular_acquire, 1));
}

#[test]
#[should_panic(expected = "exceeded max_steps")]
fn a_hold_survives_a_shutdown_if_its_grant_checks_for_the_shutdown_too_early() {
    find_failure(|| race(|engine| MaybeReady::pending(acquire_without_safeguards(engine)), 1));
}

#[test]
fn a_shutdown_ends_the_calls_of_queued_waiters() {
    explore(|| race(regular_acquire, 3));
}
