//! Races of a lock that lingers with the calls of its process, with another process, and with reports
//! that others wait.
//!
//! Two tasks of a process take the lock twice each, and leave it lingering. Meanwhile, the store
//! reports that others wait, or that all keys may have changed, and a task of another process takes
//! the lock. The model asserts that one task at a time is in the critical section, that each task gets
//! the lock, and that nothing is left. In the control, a lock that lingers is withdrawn and kept.

use super::*;
use crate::engine::local_queue::HandedOff;

/// What is done with a lock that must not linger any more.
type Decline = fn(Handoff);

/// A request for a lock that lingers.
fn lingering() -> Request {
    let request = request();
    Request { terms: Terms { linger: TERM / 1000, ..request.terms }, ..request }
}

async fn race(decline: Decline) {
    let fixture = HandoffFixture::new();
    let process = Process::with(Arc::clone(&fixture.process.network), HandoffLimit::default());
    let other = HandoffFixture { process, section: Arc::clone(&fixture.section) };
    let clock = spawn(time::run());
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let fixture = fixture.clone();
            spawn(async move {
                for _ in 0..2 {
                    assert!(fixture.clone().hold_once(take, lingering()).await, "it gets the lock");
                    yield_randomly(4).await;
                }
            })
        })
        .collect();
    let other = spawn(other.hold_once(take, request()));
    let reports = {
        let (fixture, key) = (fixture.clone(), request().key);
        spawn(async move {
            for _ in 0..3 {
                pause().await;
                let queues = fixture.engine().queues();
                let withdrawn = match thread_rng().gen_range(0..3) {
                    0 => queues.end_all_lingering(),
                    1 => queues.end_lingering(std::slice::from_ref(&key)),
                    _ => queues.wanted(&key).into_iter().collect(),
                };
                withdrawn.into_iter().for_each(decline);
            }
        })
    };
    for caller in callers {
        caller.await.expect("not aborted");
    }
    assert!(other.await.expect("not aborted"), "the other process gets the lock");
    reports.await.expect("not aborted");
    // A lock that was lost in a queue would be missed here.
    assert!(fixture.clone().hold_once(take, request()).await, "the lock is free in the end");
    clock.abort();
    fixture.process.assert_nothing_left().await;
    assert_eq!(fixture.engine().queues().lingering(), 0);
}

#[test]
fn a_lock_that_lingers_is_neither_lost_nor_duplicated() {
    explore_less(4, || race(HandedOff::decline));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_lock_that_lingers_is_lost_if_it_is_withdrawn_and_kept() {
    find_failure(|| race(std::mem::forget));
}
