//! Releases, and the end of the background threads.

use super::*;

#[tokio::test]
async fn a_dropped_release_continues_in_the_background() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_releases([Fault::Hang]);
    let cut = timeout(LEASE / 10, engine.release(&hold, true)).await;
    assert!(cut.is_err());
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_failed_release_returns_an_error_and_continues_in_the_background() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_releases([Fault::Refuse]);
    match engine.release(&hold, true).await.map_err(|error| *error) {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("continues"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

/// Renewals and background releases share a connection, so a burst must not delay renewals.
#[tokio::test]
async fn a_burst_of_background_releases_is_sent_in_parts() {
    let (store, engine) = engine();
    let mut holds = Vec::new();
    for n in 0..2000 {
        let key = Arc::from(format!("k{n}"));
        let request = Request { key, ..request(Some(LEASE * 100)) };
        holds.push(acquire(&engine, request).await.expect("free"));
    }
    store.next_releases(std::iter::repeat_n(Fault::Slow(LEASE / 10), 10_000));
    for hold in &holds {
        engine.release_in_background(hold, true);
    }
    assert_nothing_left(&engine).await;
    assert!(store.most_releases_at_once() <= 500, "{}", store.most_releases_at_once());
}

/// A hold may end by itself while it is revoked.
#[tokio::test]
async fn only_the_first_loss_of_a_hold_has_ended_it() {
    let (_, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    let lose = |reason| engine.background().lose(hold.lease(), reason);
    assert!(lose(LostReason::Gone), "it was held");
    assert!(!lose(LostReason::Revoked), "it was lost already");
    assert_eq!(engine.revoke("k"), 0);
    engine.release_in_background(&hold, true);
    assert_nothing_left(&engine).await;
}

/// Deletes the key `k`, as an operator would.
async fn delete(store: &FaultyStore, hold: &Hold) {
    let deleted = store.release(release(owner(hold)), Lane::Background).await;
    assert!(matches!(deleted, Ok(Released::Freed { .. })));
}

#[tokio::test]
async fn a_loss_that_only_the_release_notices_is_reported_and_counted() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    delete(&store, &hold).await;
    match engine.release(&hold, true).await.map_err(|error| *error) {
        Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Gone),
        other => panic!("{other:?}"),
    }
    assert_eq!(engine.stats().lost, 1);
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    delete(&store, &hold).await;
    engine.release_in_background(&hold, true);
    assert_nothing_left(&engine).await;
    assert_eq!(engine.stats().lost, 2, "the loss of a dropped guard counts as well");
}

/// The waiter may wait for any key: it makes the engine look for a waiter of this key.
#[tokio::test]
async fn the_loss_of_a_dropped_guard_is_counted_while_other_keys_are_waited_for() {
    let (store, engine) = engine();
    let busy = || Request { key: Arc::from("busy"), ..request(Some(LEASE * 100)) };
    let _holder = acquire(&engine, busy()).await.expect("free");
    let _waiting = queue(&engine, busy());
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    delete(&store, &hold).await;
    engine.release_in_background(&hold, true);
    assert!(wait_until(LEASE * 50, || engine.stats().lost == 1).await, "{:?}", engine.stats());
}

#[tokio::test]
async fn the_holder_of_a_lost_lock_does_not_wait_for_its_release() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE))).await.expect("free");
    hold.lost().await;
    // The release would take forever.
    store.next_releases([Fault::Hang]);
    let released = timeout(LEASE * 5, engine.release(&hold, true)).await.expect("at once");
    assert!(matches!(released.map_err(|error| *error), Err(LockError::Lost { .. })));
}

/// No holder may rely on renewals that are no longer sent.
#[tokio::test]
async fn a_panic_of_the_background_thread_is_reported_and_ends_all_holds() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 10))).await.expect("free");
    let other = Request { key: Arc::from("other"), ..request(None) };
    let other = acquire(&engine, other).await.expect("free");
    store.panic_once();
    engine.release_in_background(&hold, true);
    assert!(wait_until(LEASE * 10, || engine.check_background(None).is_err()).await);
    match acquire(&engine, request(None)).await {
        Err(LockError::Unavailable { cause, .. }) => assert!(cause.contains("has panicked")),
        other => panic!("{other:?}"),
    }
    assert!(timeout(RENEWED_LEASE * 3, other.lost()).await.is_ok(), "renewals have ended");
}

#[tokio::test]
async fn the_threads_of_a_client_end_when_it_is_dropped() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(None)).await.expect("free");
    engine.release(&hold, true).await.expect("held");
    drop((hold, engine));
    assert!(
        wait_until(LEASE * 10, || Arc::strong_count(&store) == 1).await,
        "the threads still have the store"
    );
}
