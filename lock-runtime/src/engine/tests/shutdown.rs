//! Shutting down.

use super::*;

#[tokio::test]
async fn a_shutdown_ends_holds_that_are_not_released_in_time() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    let holder = async {
        assert_eq!(hold.lost().await, LostReason::ShutDown);
        assert!(!hold.is_valid(BootInstant::now()));
        // A body may be in the middle of a poll, so the key stays taken until the holder releases
        // it.
        assert!(!is_free(&store).await);
        engine.release_in_background(&hold, true);
    };
    let (open, ()) = tokio::join!(engine.shut_down(LEASE / 10), holder);
    assert_eq!(open, 0);
    assert!(is_free(&store).await);
    assert!(matches!(acquire(&engine, request(None)).await, Err(LockError::ShutDown)));
}

#[tokio::test]
async fn a_shutdown_counts_a_lock_whose_holder_does_not_release_it() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(None)).await.expect("free");
    assert_eq!(engine.shut_down(LEASE / 10).await, 1, "the lock is still open");
    let outcome = engine.release(&hold, true).await.map_err(|error| *error);
    assert!(matches!(outcome, Err(LockError::Lost { .. })));
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_release_after_a_shutdown_does_not_wait_for_a_store_that_hangs() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    // The releases would take forever.
    store.next_releases([Fault::Hang; 10]);
    engine.shut_down(LEASE / 10).await;
    let outcome = timeout(LEASE * 5, engine.release(&hold, true)).await.expect("at once");
    match outcome.map_err(|error| *error) {
        Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::ShutDown),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_shutdown_ends_an_acquisition_that_sleeps() {
    let (store, engine) = engine();
    // Another owner has the key, so the acquisition sleeps.
    let other = new_owner();
    take(&*store, other, LEASE * 100).await;
    let asleep = acquire(&engine, request(None));
    let shutdown = async {
        sleep(LEASE / 10).await;
        engine.shut_down(LEASE * 10).await
    };
    let start = BootInstant::now();
    let (outcome, open) = tokio::join!(asleep, shutdown);
    assert!(matches!(outcome, Err(LockError::ShutDown)), "{outcome:?}");
    assert_eq!(open, 0);
    assert!(BootInstant::now().since(start) < LEASE * 5, "the shutdown ends the sleep immediately");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_a_release_that_a_caller_awaits() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_releases([Fault::Hang]);
    let releasing = timeout(LEASE / 2, engine.release(&hold, true));
    let shutdown = async {
        tokio::task::yield_now().await;
        engine.shut_down(LEASE * 10).await
    };
    let (released, open) = tokio::join!(releasing, shutdown);
    assert!(released.is_err(), "cut off, so the release continues in the background");
    assert_eq!(open, 0);
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_shutdown_counts_a_lock_that_it_could_not_release() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    // The first request is sent immediately, in case the store answers without delay.
    store.next_releases([Fault::Hang; 2]);
    engine.release_in_background(&hold, true);
    assert_eq!(engine.shut_down(LEASE).await, 1);
}

/// Nothing has run under the lock, so there is no reason to keep the key.
#[tokio::test]
async fn a_lock_that_is_granted_during_a_shutdown_is_not_kept_for_its_min_hold() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Slow(LEASE / 3)]);
    let mut request = request(None);
    request.terms.min_hold = LEASE * 1000;
    let shutdown = async {
        sleep(LEASE / 10).await;
        engine.shut_down(LEASE * 10).await
    };
    let (refused, open) = tokio::join!(acquire(&engine, request), shutdown);
    assert_eq!(refused.map(drop), Err(LockError::ShutDown));
    assert_eq!(open, 0);
    assert!(is_free(&store).await);
}
