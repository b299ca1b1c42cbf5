//! Hand-offs between waiters with the same terms.

use super::*;

/// The lock that a waiter was offered. It needs no request to the store.
fn take_offer(waiting: &mut PendingAcquisition) -> Hold {
    poll(waiting).expect("without a round trip").expect("granted")
}

#[tokio::test]
async fn a_lock_is_handed_off_without_a_request_to_the_store() {
    let (store, engine) = engine();
    let first = acquire(&engine, request(None)).await.expect("free");
    let (mut second, mut third) = (queue(&engine, request(None)), queue(&engine, request(None)));
    // The first release that reaches the store fails.
    store.next_releases([Fault::Refuse]);
    engine.release(&first, true).await.expect("handed off");
    let second = take_offer(&mut second);
    assert!(poll(&mut third).is_none(), "one waiter at a time");
    engine.release_in_background(&second, true);
    let third = take_offer(&mut third);
    assert_eq!(owner(&third), owner(&first), "the same lease");
    assert_eq!(engine.stats().held, 1);
    engine.release(&third, true).await.expect_err("this release reaches the store");
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_lock_that_is_handed_off_repeatedly_is_still_renewed() {
    let (store, engine) = engine();
    // A renewal is due before the longest sequence of hand-offs ends, after a second.
    let mut asking = request(None);
    asking.terms.term = LEASE * 6;
    let mut hold = acquire(&engine, asking.clone()).await.expect("free");
    let (mut renewals, end) = (0, BootInstant::now().after(LEASE * 100));
    while renewals < 3 {
        assert!(BootInstant::now() < end, "renewed {renewals} times");
        let (first, deadline) = (owner(&hold), hold.deadline());
        sleep(LEASE / 10).await;
        let mut next = queue(&engine, asking.clone());
        engine.release(&hold, true).await.expect("held");
        hold = next.as_mut().await.expect("handed off, or acquired anew");
        renewals += u32::from(owner(&hold) == first && hold.deadline() > deadline);
        assert!(!is_free(&store).await);
    }
    engine.release(&hold, true).await.expect("held");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_lock_that_is_offered_to_a_dropped_waiter_goes_to_the_next_waiter_or_is_freed() {
    let (store, engine) = engine();
    let first = acquire(&engine, request(None)).await.expect("free");
    let (second, mut third) = (queue(&engine, request(None)), queue(&engine, request(None)));
    engine.release(&first, true).await.expect("handed off");
    drop(second);
    let third = take_offer(&mut third);
    let fourth = queue(&engine, request(None));
    engine.release_in_background(&third, true);
    drop(fourth);
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await, "there are no more waiters");
}

#[tokio::test]
async fn a_stale_hold_does_not_affect_the_next_hold() {
    let (_store, engine) = engine();
    let first = acquire(&engine, request(None)).await.expect("free");
    let fence = engine.fencing_token(&first).await.expect("held");
    let mut second = queue(&engine, request(None));
    engine.release(&first, true).await.expect("handed off");
    let second = take_offer(&mut second);
    engine.release(&first, true).await.expect("the hold has ended without a loss");
    engine.release_in_background(&first, true);
    assert!(second.is_valid(BootInstant::now()));
    assert!(engine.fencing_token(&second).await.expect("held") > fence);
    engine.release(&second, true).await.expect("held");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_lock_that_is_handed_off_to_an_unpolled_waiter_is_freed() {
    let (store, engine) = engine();
    let first = acquire(&engine, request(None)).await.expect("free");
    // It is not polled for a while.
    let second = queue(&engine, request(None));
    engine.release(&first, true).await.expect("handed off");
    assert!(!is_free(&store).await);
    let is_freed = becomes_free(&store, RENEWED_LEASE * 3).await;
    assert!(is_freed, "the lease is not renewed for an unpolled waiter");
    let second = second.await.expect("acquired anew");
    assert_ne!(owner(&second), owner(&first));
    engine.release(&second, true).await.expect("held");
    assert_nothing_left(&engine).await;
}

/// The only waiter that is not stalled gives up before the offer is checked.
#[tokio::test]
async fn a_lock_on_offer_is_not_kept_for_stalled_waiters() {
    let (store, engine) = engine();
    let long = || fixed(LEASE * 100);
    let first = acquire(&engine, long()).await.expect("free");
    let stalled = queue(&engine, long());
    engine.release(&first, true).await.expect("handed off");
    assert!(becomes_free(&store, LEASE * 50).await, "its waiter is unpolled");
    let second =
        acquire(&engine, long()).await.expect("the stalled waiter has not taken the permit");
    let awake = queue(&engine, long());
    engine.release(&second, true).await.expect("handed off");
    drop(awake);
    assert!(becomes_free(&store, LEASE * 50).await, "the lock is kept for an unpolled waiter");
    drop(stalled);
    assert_nothing_left(&engine).await;
}

/// Tasks that share a lock ask for it again and again, and the queue may be empty in between.
#[tokio::test]
async fn a_lock_that_was_handed_off_is_kept_for_a_moment_for_the_next_caller() {
    let (store, engine) = engine();
    let first = acquire(&engine, request(None)).await.expect("free");
    let mut second = queue(&engine, request(None));
    engine.release(&first, true).await.expect("handed off");
    let second = take_offer(&mut second);
    // The first release that reaches the store fails.
    store.next_releases([Fault::Refuse]);
    let mut releasing = engine.release(&second, true);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut releasing).poll(&mut cx).is_pending());
    let mut third = queue(&engine, request(None));
    releasing.await.expect("handed off");
    let third = take_offer(&mut third);
    assert_eq!(owner(&third), owner(&first));
    // If the release is dropped meanwhile, the lock is freed nevertheless.
    let mut releasing = engine.release(&third, true);
    assert!(Pin::new(&mut releasing).poll(&mut cx).is_pending());
    drop(releasing);
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_shutdown_ends_a_hand_off() {
    let (store, engine) = engine();
    let first = acquire(&engine, request(None)).await.expect("free");
    let mut second = queue(&engine, request(None));
    engine.release(&first, true).await.expect("handed off");
    let left = tokio::spawn({
        let engine = engine.clone();
        async move { engine.shut_down(LEASE * 10).await }
    });
    sleep(LEASE / 10).await;
    assert!(matches!(poll(&mut second), Some(Err(LockError::ShutDown))));
    assert_eq!(left.await.expect("no panic"), 0);
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_shutdown_frees_a_lock_that_no_waiter_takes() {
    let (store, engine) = engine();
    let first = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    let second = queue(&engine, request(Some(LEASE * 100)));
    engine.release(&first, true).await.expect("handed off");
    let shutdown = tokio::spawn({
        let engine = engine.clone();
        async move { engine.shut_down(Duration::ZERO).await }
    });
    assert!(becomes_free(&store, LEASE * 50).await);
    assert_eq!(second.await.map(drop), Err(LockError::ShutDown));
    assert_eq!(shutdown.await.expect("no panic"), 0);
}
