//! The race of a shutdown with a hand-off.
//!
//! While a shutdown begins, a holder releases the lock to two waiters, which never release it by
//! themselves. The model asserts that each waiter loses the lock or does not get it, and that
//! nothing is left. This model has no control of its own. The control of `shutdown_against_grant`
//! covers it, because a shutdown ends a lease in the same way during a hand-off.

use super::*;

/// A shutdown begins while the lock is handed off.
async fn race() {
    let fixture = HandoffFixture::new();
    let first = fixture.guard(fixture.process.hold(request()).await);
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let fixture = fixture.clone();
            spawn(async move {
                let hold = take(fixture.engine().clone(), request()).await;
                let Some(guard) = hold.map(|hold| fixture.guard(hold)) else { return };
                fixture.stay_inside(&guard).await;
                guard.lost().await;
            })
        })
        .collect();
    fixture.wait_for_queued(2).await;
    let release = {
        let fixture = fixture.clone();
        spawn(async move {
            fixture.end_hold(first).await;
        })
    };
    yield_randomly(6).await;
    let clock = spawn(time::run());
    fixture.engine().shut_down(Duration::ZERO).await;
    release.await.expect("not aborted");
    for caller in callers {
        caller.await.expect("not aborted");
    }
    clock.abort();
    fixture.process.assert_nothing_left().await;
}

#[test]
fn a_shutdown_ends_every_hold_even_one_handed_off_during_the_shutdown() {
    explore(race);
}
