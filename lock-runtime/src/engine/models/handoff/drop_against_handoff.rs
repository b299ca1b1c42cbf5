//! Races of dropped waiters with the hand-off of a lock to them.
//!
//! A holder releases the lock while several tasks wait for it with various terms. Some waiters give
//! up after a time, or are dropped at any point. One renewal may get no answer. The model asserts
//! that one task at a time is in the critical section, that each waiter that stays gets the lock,
//! and that nothing is left. In the control, a waiter gives up and keeps the lock that it is
//! offered.

use super::*;

const WAITERS: usize = 3;

/// Some waiters stay in the queue. Others give up after a time, or are dropped at any point.
async fn race(take: Take, new_request: fn() -> Request) {
    let fixture = HandoffFixture::new();
    let first = fixture.process.hold(new_request()).await;
    fixture.process.network.lose_renewal_answers(thread_rng().gen_range(0..2));
    let clock = spawn(time::run());
    let (mut staying, mut leaving) = (Vec::new(), Vec::new());
    for place in 0..WAITERS {
        // The last waiter stays, so that a lost lock causes a deadlock.
        let stays = place + 1 == WAITERS || thread_rng().r#gen();
        let mut request = new_request();
        if !stays {
            request.wait = Wait::For(TERM.mul_f64(thread_rng().r#gen()));
        }
        let waiter = spawn(fixture.clone().hold_once(take, request));
        if stays { &mut staying } else { &mut leaving }.push(waiter);
    }
    let release = {
        let fixture = fixture.clone();
        spawn(async move {
            let first = fixture.guard(first);
            fixture.stay_inside(&first).await;
            fixture.end_hold(first).await;
        })
    };
    for waiter in &leaving {
        pause().await;
        if thread_rng().r#gen() {
            waiter.abort();
        }
    }
    release.await.expect("not aborted");
    for waiter in staying {
        assert!(waiter.await.expect("not aborted"), "a waiter that stays gets the lock");
    }
    for waiter in leaving {
        drop(waiter.await);
    }
    clock.abort();
    fixture.process.assert_nothing_left().await;
}

#[test]
fn a_lock_in_a_hand_off_is_neither_lost_nor_duplicated_when_waiters_give_up() {
    explore_less(2, || race(take, random_request));
}

/// Gives up after a time, and keeps the offer.
async fn give_up_and_keep_offer(engine: TestEngine, request: Request) -> Option<Hold> {
    let Wait::For(wait) = request.wait else { return acquire(&engine, request).await.ok() };
    let end = time::Instant::now() + wait;
    let Entered::Queued(mut waiter) = engine.queues().enter(&request.key, false) else {
        return None;
    };
    let Ok(offer) = time::timeout_at(end, &mut waiter).await else {
        shuttle::thread::yield_now();
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        std::mem::forget(std::pin::pin!(&mut waiter).poll(&mut cx));
        return None;
    };
    let Offer::Handoff(handoff) = offer? else { return None };
    accept(&engine, handoff, &request).await.ok()
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_lock_in_a_hand_off_is_lost_if_a_waiter_gives_up_and_keeps_its_offer() {
    find_failure(|| {
        race(|engine, request| MaybeReady::pending(give_up_and_keep_offer(engine, request)), fixed)
    });
}
