//! The race of stale guards with the hold after their own.
//!
//! After a hand-off, a task releases or re-enters the previous hold again and again, while the next
//! holder is in the critical section. The model asserts that the next hold is not affected. In the
//! control, the hold itself is handed off, instead of a new one.

use super::*;
use crate::store::contract::Mode;

/// Ends a hold, and returns the hold of the next task.
type HandOff = fn(HandoffFixture, Hold) -> JoinHandle<Hold>;

/// The previous holder continues to use its hold.
async fn race(hand_off: HandOff) {
    let fixture = HandoffFixture::new();
    let first = fixture.process.hold(request()).await;
    let next = hand_off(fixture.clone(), first.clone());
    let stale = {
        let fixture = fixture.clone();
        spawn(async move {
            for _ in 0..2 {
                yield_randomly(6).await;
                match thread_rng().gen_range(0..3) {
                    0 => drop(fixture.engine().release(&first, true).await),
                    1 => fixture.engine().release_in_background(&first, true),
                    _ if first.join(Mode::Exclusive) => {
                        fixture.engine().release_in_background(&first, true);
                    }
                    _ => {}
                }
            }
        })
    };
    let second = fixture.guard(next.await.expect("not aborted"));
    fixture.stay_inside(&second).await;
    stale.await.expect("not aborted");
    fixture.stay_inside(&second).await;
    assert!(second.is_held(), "only its own guard ends a hold");
    second.release().await.expect("the lock is held");
    fixture.process.assert_nothing_left().await;
}

#[test]
fn a_stale_guard_does_not_affect_the_next_hold() {
    explore(|| {
        race(|fixture, first| {
            spawn(async move {
                let next = spawn(take(fixture.engine().clone(), request()));
                pause().await;
                drop(fixture.guard(first));
                next.await.expect("not aborted").expect("the waiter gets the lock")
            })
        })
    });
}

#[test]
#[should_panic(expected = "only its own guard ends a hold")]
fn a_stale_guard_ends_the_next_hold_if_the_hold_itself_is_handed_off() {
    find_failure(|| race(|_, first| spawn(async { first })));
}
