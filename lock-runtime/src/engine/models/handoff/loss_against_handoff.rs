//! Races of a loss with a hand-off.
//!
//! One task releases the lock to a waiter, while another one declares the lease lost, as the
//! background thread does. The first model asserts that the waiter gets the lock nevertheless, and
//! that no task is in the critical section without the key. In its control, the waiter checks for a
//! loss only before it takes the lease. In the second model, the waiter is dropped as well. It
//! asserts that the key is free when the engine counts no open locks. That model has no control.

use super::*;

/// A lease is lost during its hand-off.
async fn race(take: Take) {
    let fixture = HandoffFixture::new();
    let first = fixture.process.hold(request()).await;
    let wanted = [request, || longer(fixed())][thread_rng().gen_range(0..2)]();
    let waiter = spawn(fixture.clone().hold_once(take, wanted));
    fixture.wait_for_queued(1).await;
    let declare_lost = {
        let (fixture, lease) = (fixture.clone(), Arc::clone(first.lease()));
        let is_gone = thread_rng().r#gen();
        spawn(async move {
            yield_randomly(8).await;
            let reason = if is_gone { LostReason::Gone } else { LostReason::RenewalFailed };
            fixture.engine().background().lose(&lease, reason);
            if is_gone {
                fixture.process.network.delete_key(&lease);
            }
        })
    };
    yield_randomly(8).await;
    fixture.end_hold(fixture.guard(first)).await;
    declare_lost.await.expect("not aborted");
    let clock = spawn(time::run());
    waiter.await.expect("not aborted");
    clock.abort();
    fixture.process.assert_nothing_left().await;
}

#[test]
fn a_lock_whose_lease_is_lost_during_a_hand_off_is_acquired_anew() {
    explore(|| race(take));
}

/// A lease is lost during its hand-off to a waiter that is dropped. A shutdown is complete as soon
/// as no lock is open.
async fn race_with_count_of_open_locks() {
    let fixture = HandoffFixture::new();
    let first = fixture.process.hold(request()).await;
    let waiter = spawn(take(fixture.engine().clone(), request()));
    fixture.wait_for_queued(1).await;
    let lease = Arc::clone(first.lease());
    fixture.engine().release_in_background(&first, true);
    waiter.abort();
    let declare_lost = {
        let engine = fixture.engine().clone();
        spawn(async move { engine.background().lose(&lease, LostReason::RenewalFailed) })
    };
    if let Ok(Some(hold)) = waiter.await {
        fixture.engine().release_in_background(&hold, true);
    }
    let clock = spawn(time::run());
    while fixture.engine().open() > 0 {
        yield_now().await;
    }
    fixture.process.network.assert_free();
    clock.abort();
    declare_lost.await.expect("not aborted");
}

#[test]
fn a_lock_that_is_lost_during_a_hand_off_counts_as_open_until_it_is_released() {
    explore(race_with_count_of_open_locks);
}

/// Checks whether the lease is valid, and then takes it.
async fn check_and_then_take(engine: TestEngine, request: Request) -> Option<Hold> {
    let lease = engine.background().held().pop();
    let offer = offer(&engine, &request.key).await;
    let (Some(lease), Some(Offer::Handoff(handoff))) = (lease, offer) else { return None };
    let sent = BootInstant::now();
    if !lease.is_valid(sent) {
        return None;
    }
    let grant = Grant::of(request.terms.in_store());
    let locked = lease.locked().clone();
    let hold = Hold::new(locked, &request.terms, (grant, (sent, sent)), None, false);
    let own = hold.clone();
    model::spawn_task(async move {
        while own.is_valid(sent) {
            yield_now().await;
        }
        drop(handoff);
    });
    Some(hold)
}

#[test]
#[should_panic(expected = "a valid hold has its key")]
fn a_lost_lease_is_taken_if_the_waiter_checks_for_a_loss_only_before_it_takes_the_lease() {
    find_failure(|| {
        race(|engine, request| MaybeReady::pending(check_and_then_take(engine, request)))
    });
}
