//! Races of a hand-off with a renewal, and with the end of the previous hold.
//!
//! In the first model, a renewal is due, in flight or answered while the lock is handed off to a
//! waiter with other terms. It asserts that the key lasts as long as the new hold is valid. In its
//! control, a renewal for the old terms counts for the new ones. In the second model, the deadline
//! of the previous hold passes during the hand-off. It asserts that the background thread does not
//! end the new hold. In its control, the deadline is checked only before the hold is ended.

use super::*;

/// Renews the lease with its old terms.
type Renew = fn(TestEngine, Hold);

/// A renewal is due or in flight while the lock is handed off to a waiter with the terms `after`.
async fn race(before: Request, after: fn() -> Request, renewal: Renew) {
    let fixture = HandoffFixture::new();
    let first = fixture.process.hold(before).await;
    let waiter = spawn(take(fixture.engine().clone(), after()));
    fixture.wait_for_queued(1).await;
    time::advance((TERM / 3).saturating_sub(Duration::from_secs(2)));
    let clock = spawn(async {
        for _ in 0..3 {
            yield_randomly(8).await;
            time::advance(Duration::from_secs(1));
        }
    });
    renewal(fixture.engine().clone(), first.clone());
    yield_randomly(12).await;
    fixture.engine().release(&first, true).await.expect("the store is up");
    let second = waiter.await.expect("not aborted").expect("the waiter gets the lock");
    let second = fixture.guard(second);
    fixture.stay_inside(&second).await;
    clock.await.expect("not aborted");
    let clock = spawn(time::run());
    while fixture.process.network.is_busy() || model::running() > THREADS {
        yield_now().await;
    }
    clock.abort();
    // To the last instant at which the hold is valid.
    let left = second.hold().deadline().since(BootInstant::now());
    time::advance(left.saturating_sub(Duration::from_nanos(1)));
    fixture.process.network.assert_owns_key_in_store(second.hold());
    drop(second);
    fixture.process.assert_nothing_left().await;
}

#[test]
fn after_a_hand_off_with_any_terms_the_hold_is_valid_for_no_longer_than_its_key() {
    explore(|| race(request(), random_request, |_, _| {}));
}

#[test]
#[should_panic(expected = "a valid hold has its key")]
fn a_hold_is_valid_for_longer_than_its_key_if_an_earlier_renewal_counts_for_the_new_terms() {
    find_failure(|| {
        race(
            fixed(),
            || longer(fixed()),
            |engine, hold| {
                model::spawn_task(async move {
                    yield_randomly(12).await;
                    let sent = BootInstant::now();
                    let renewal = [hold.lease().renewal(TERM)];
                    if engine.store().renew(&renewal, Lane::Background).await
                        == [Ok(Renewed::Extended)]
                    {
                        let term = hold.lease().term();
                        hold.lease().extended(sent, Some(term));
                    }
                });
            },
        )
    });
}

/// The deadline of the first hold passes while the lock is handed off.
async fn race_with_end(before: Request, after: Request, watch: fn(TestEngine, Hold)) {
    let fixture = HandoffFixture::new();
    let first = fixture.process.hold(before).await;
    watch(fixture.engine().clone(), first.clone());
    let waiter = spawn(take(fixture.engine().clone(), after));
    fixture.wait_for_queued(1).await;
    let clock = {
        let left = first.deadline().since(BootInstant::now());
        spawn(async move {
            yield_randomly(12).await;
            time::advance(left);
        })
    };
    yield_randomly(12).await;
    fixture.engine().release_in_background(&first, true);
    clock.await.expect("not aborted");
    let second = waiter.await.expect("not aborted").expect("the waiter gets the lock");
    yield_randomly(12).await;
    fixture.engine().release(&second, true).await.expect("the next hold is not lost");
    fixture.process.assert_nothing_left().await;
}

/// A request for a renewed lease with a `max_hold` that ends within the model.
fn bounded() -> Request {
    let request = request();
    Request { terms: Terms { max_hold: Some(SHORT_TERM), ..request.terms }, ..request }
}

#[test]
fn the_max_hold_of_one_hold_does_not_end_the_next_hold() {
    explore(|| race_with_end(bounded(), request(), |_, _| {}));
}

#[test]
fn the_end_of_a_fixed_lease_does_not_end_the_next_hold_for_which_it_was_renewed() {
    explore(|| race_with_end(short(fixed()), fixed(), |_, _| {}));
}

#[test]
#[should_panic(expected = "the next hold is not lost")]
fn the_next_hold_is_ended_if_the_deadline_is_checked_only_before_the_hold_is_ended() {
    find_failure(|| {
        race_with_end(bounded(), request(), |engine, hold| {
            model::spawn_task(async move {
                let end = time::Instant::now() + SHORT_TERM;
                while time::Instant::now() < end {
                    yield_now().await;
                }
                if !hold.is_valid(BootInstant::now()) {
                    engine.background().lose(hold.lease(), LostReason::MaxHold);
                }
            });
        })
    });
}
