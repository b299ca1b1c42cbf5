//! Two locks. The example `transfer` locks both at once; these tests show what that avoids.

use std::time::Duration;

use lock_runtime::{LockClient, LockError};
use tokio::sync::Barrier;
use tokio::time::timeout;

use crate::PATIENCE;

/// Acquires two locks one after the other. All callers have their first lock before they want the second one.
async fn one_by_one(
    locks: &LockClient,
    [first, second]: [&str; 2],
    have_first: &Barrier,
) -> Result<(), LockError> {
    let body = async {
        have_first.wait().await;
        locks.lock(second).wait(Duration::from_millis(200)).run(async {}).await
    };
    locks.lock(first).run(body).await?
}

#[tokio::test]
async fn nested_locks_in_both_orders_wait_for_each_other() {
    let (locks, have_first) = (LockClient::memory(), Barrier::new(2));
    let (one, other) = tokio::join!(
        one_by_one(&locks, ["left", "right"], &have_first),
        one_by_one(&locks, ["right", "left"], &have_first),
    );
    let is_busy = |outcome| matches!(outcome, Err(LockError::Busy { .. }));
    // The end of the first wait may let the other call continue.
    assert!(is_busy(one) | is_busy(other), "nobody had to give up");
}

#[tokio::test]
async fn locks_that_are_taken_together_do_not_wait_for_each_other() {
    let locks = LockClient::memory();
    let calls = async {
        for _ in 0..100 {
            let (one, other) = tokio::join!(
                locks.lock_all(["left", "right"]).run(tokio::task::yield_now()),
                locks.lock_all(["right", "left"]).run(tokio::task::yield_now()),
            );
            one.and(other).expect("no deadlock");
        }
    };
    timeout(PATIENCE, calls).await.expect("no deadlock");
}
