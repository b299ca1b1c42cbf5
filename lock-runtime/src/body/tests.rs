//! Unit tests of polling a body under a lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::*;
use crate::clock::{self, BootInstant};
use crate::engine::fairness::limit::HandoffLimit;
use crate::engine::handoff::Hold;
use crate::engine::lease::Terms;
use crate::engine::testing::{self, UNREAD};
use crate::error::LostReason;
use crate::replicas::RequiredReplicas;
use crate::store::faulty::OneStore;
use crate::store::memory::MemoryStore;
use crate::telemetry::AcquiredBy;

const LEASE: Duration = Duration::from_millis(50);

/// An end whose release is awaited.
fn end(on_lost: OnLost) -> BodyEnd {
    BodyEnd { on_lost, release: ReleaseMode::Awaited }
}

/// A hold whose lease the background thread does not have, so that nothing reports its loss.
fn unwatched(lease: Duration) -> (LockGuard, Hold) {
    let store = MemoryStore::new();
    let engine = testing::start(&OneStore(Arc::clone(&store) as _), HandoffLimit::default());
    let terms = Terms {
        term: lease,
        renewed: false,
        max_hold: None,
        min_hold: Duration::ZERO,
        acknowledged_by: RequiredReplicas::NONE,
        linger: Duration::ZERO,
        site: &UNREAD,
    };
    let hold = testing::hold_in(store, "k", &terms, BootInstant::now());
    (LockGuard::new(engine, hold.clone(), AcquiredBy::Store), hold)
}

/// A body that is always ready and never completes. Counts its polls after the deadline.
async fn poll_forever(hold: Hold, late: &AtomicU32) {
    poll_fn(|cx| {
        let valid = hold.is_valid(BootInstant::now());
        late.fetch_add(u32::from(!valid), Ordering::Relaxed);
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    })
    .await;
}

/// Runs such a body. Returns the result, if there is one, and the number of late polls.
async fn run_forever(on_lost: OnLost) -> (Option<Result<(), LockError>>, u32) {
    let (guard, hold) = unwatched(LEASE);
    let late = AtomicU32::new(0);
    let mut body = pin!(Some(poll_forever(hold, &late)));
    let acquired = Acquiring::known(Ok(guard));
    let outcome = run(acquired, end(on_lost), None, body.as_mut());
    let outcome = tokio::time::timeout(LEASE * 10, outcome).await.ok();
    (outcome, late.load(Ordering::Relaxed))
}

/// The background thread does not have the lease, and the body waits forever.
#[tokio::test]
async fn a_body_that_waits_is_stopped_at_the_deadline_without_the_background_thread() {
    for on_lost in [OnLost::Abort, OnLost::Report] {
        let (guard, _hold) = unwatched(LEASE);
        let mut body = pin!(Some(std::future::pending::<()>()));
        let outcome = run(Acquiring::known(Ok(guard)), end(on_lost), None, body.as_mut());
        let outcome = tokio::time::timeout(LEASE * 10, outcome).await;
        let outcome = outcome.expect("at its deadline");
        assert!(matches!(outcome, Err(LockError::Lost { .. })), "{outcome:?}");
    }
}

/// The control of the test above.
#[tokio::test]
async fn without_the_check_nothing_stops_a_body_that_waits() {
    let (guard, _hold) = unwatched(LEASE);
    let mut body = pin!(Some(std::future::pending::<()>()));
    let outcome = run(Acquiring::known(Ok(guard)), end(OnLost::Continue), None, body.as_mut());
    assert!(tokio::time::timeout(LEASE * 10, outcome).await.is_err());
}

#[tokio::test]
async fn a_body_that_is_always_ready_is_stopped_at_the_deadline_without_the_background_thread() {
    let (outcome, late) = run_forever(OnLost::Abort).await;
    match outcome {
        Some(Err(LockError::Lost { reason, .. })) => assert_eq!(reason, LostReason::LeaseOver),
        other => panic!("{other:?}"),
    }
    assert!(late <= 1, "the deadline may pass between the two checks of one poll: {late}");
}

/// A lease ends while the machine sleeps, and the body is polled before any timer fires. Returns
/// the number of polls.
async fn sleep_in_a_body(on_lost: OnLost) -> (Option<Result<(), LockError>>, u32) {
    let long = LEASE * 1000;
    let (guard, _hold) = unwatched(long);
    let polls = AtomicU32::new(0);
    let body = poll_fn(|cx| {
        if polls.fetch_add(1, Ordering::Relaxed) == 0 {
            clock::sleep_through(long * 2);
        }
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    });
    let mut body = pin!(Some(body));
    let outcome = run(Acquiring::known(Ok(guard)), end(on_lost), None, body.as_mut());
    let outcome = tokio::time::timeout(LEASE * 2, outcome).await.ok();
    (outcome, polls.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_body_is_not_polled_again_after_the_machine_slept_past_the_deadline() {
    let (outcome, polls) = sleep_in_a_body(OnLost::Abort).await;
    assert!(matches!(outcome, Some(Err(LockError::Lost { .. }))), "{outcome:?}");
    assert_eq!(polls, 1, "only the poll during which the machine slept");
}

/// The control of the test above.
#[tokio::test]
async fn without_the_check_a_body_is_polled_again_after_the_machine_slept_past_the_deadline() {
    let (outcome, polls) = sleep_in_a_body(OnLost::Continue).await;
    assert_eq!(outcome, None);
    assert!(polls > 1, "{polls}");
}

/// The control of the test of a body that is always ready.
#[tokio::test]
async fn without_the_check_nothing_stops_a_body_that_is_always_ready() {
    let (outcome, late) = run_forever(OnLost::Continue).await;
    assert_eq!(outcome, None);
    assert!(late > 10, "{late}");
}
