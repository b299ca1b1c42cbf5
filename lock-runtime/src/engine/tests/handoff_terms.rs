//! Hand-offs between waiters with different terms.

use super::*;

#[tokio::test]
async fn a_lease_is_renewed_for_a_waiter_that_asks_for_a_longer_one() {
    let (store, engine) = engine();
    let first = acquire(&engine, fixed(LEASE * 10)).await.expect("free");
    let mut second = queue(&engine, fixed(LEASE * 100));
    store.next_releases([Fault::Refuse]);
    let before = BootInstant::now();
    engine.release(&first, true).await.expect("handed off");
    let second = second.as_mut().await.expect("by a renewal");
    assert_eq!(owner(&second), owner(&first));
    assert!(!second.is_renewed());
    assert!(second.deadline() > before.after(LEASE * 90), "a lease of its own length");
    store.next_releases([Fault::None]);
    assert!(left(&store).await > LEASE * 50, "in the store as well");
    let _ = engine.release(&second, true).await;
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_waiter_that_asks_for_a_shorter_lease_acquires_the_lock_anew() {
    let (store, engine) = engine();
    let first = acquire(&engine, fixed(LEASE * 10)).await.expect("free");
    let mut second = queue(&engine, fixed(LEASE));
    engine.release(&first, true).await.expect("handed off");
    let second = second.as_mut().await.expect("acquired anew");
    assert_ne!(owner(&second), owner(&first));
    sleep(LEASE * 2).await;
    assert!(is_free(&store).await, "the key lasts no longer than the shorter lease");
    assert!(second.loss().is_some());
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_waiter_acquires_the_lock_anew_if_the_store_cannot_change_the_term() {
    let (store, engine) = engine();
    store.keep_terms();
    let first = acquire(&engine, fixed(LEASE * 10)).await.expect("free");
    let mut same = queue(&engine, fixed(LEASE * 10));
    engine.release(&first, true).await.expect("handed off");
    let same = same.as_mut().await.expect("by a renewal");
    assert_eq!(owner(&same), owner(&first));
    let mut longer = queue(&engine, fixed(LEASE * 20));
    engine.release(&same, true).await.expect("handed off");
    let longer = longer.as_mut().await.expect("acquired anew");
    assert_ne!(owner(&longer), owner(&first));
    match engine.extend(&longer, extension(Some(LEASE * 30), Duration::ZERO)).await {
        Err(LockError::Config { option: "lease", .. }) => {}
        other => panic!("{other:?}"),
    }
    engine.release(&longer, true).await.expect("held");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_waiter_acquires_the_lock_anew_if_the_renewal_for_it_fails() {
    for fault in [Fault::Refuse, Fault::LoseReply] {
        let (store, engine) = engine();
        let first = acquire(&engine, fixed(LEASE * 10)).await.expect("free");
        let mut second = queue(&engine, fixed(LEASE * 10));
        store.next_renewals([fault]);
        engine.release(&first, true).await.expect("handed off");
        let second = second.as_mut().await.expect("acquired anew");
        assert_ne!(owner(&second), owner(&first), "{fault:?}");
        engine.release(&second, true).await.expect("held");
        assert_nothing_left(&engine).await;
        assert!(is_free(&store).await);
    }
}

#[tokio::test]
async fn a_lock_goes_to_the_next_waiter_if_a_waiter_is_dropped_during_the_renewal_for_it() {
    let (store, engine) = engine();
    let first = acquire(&engine, fixed(LEASE * 10)).await.expect("free");
    let mut second = queue(&engine, fixed(LEASE * 10));
    let mut third = queue(&engine, fixed(LEASE * 10));
    store.next_renewals([Fault::Hang]);
    engine.release(&first, true).await.expect("handed off");
    assert!(poll(&mut second).is_none(), "the renewal for it is in flight");
    drop(second);
    let third = third.as_mut().await.expect("by a renewal");
    assert_eq!(owner(&third), owner(&first));
    engine.release(&third, true).await.expect("held");
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_lock_is_not_handed_off_during_its_min_hold() {
    let (store, engine) = engine();
    let kept = |min_hold| {
        let request = fixed(LEASE * 3);
        Request { terms: Terms { min_hold, ..request.terms }, ..request }
    };
    let start = BootInstant::now();
    let first = acquire(&engine, kept(LEASE)).await.expect("free");
    let second = queue(&engine, request(None));
    engine.release(&first, true).await.expect("held");
    let second = second.await.expect("later");
    assert!(BootInstant::now().since(start) > LEASE * 3 / 4, "the min_hold had not ended");
    engine.release(&second, true).await.expect("held");
    // For a waiter that asks for a min_hold itself, the lease is renewed.
    let first = acquire(&engine, fixed(LEASE * 3)).await.expect("free");
    let second = queue(&engine, kept(LEASE * 4));
    engine.release(&first, true).await.expect("handed off");
    let second = second.await.expect("by a renewal");
    engine.release(&second, true).await.expect("held");
    assert!(!is_free(&store).await);
    assert!(becomes_free(&store, LEASE * 50).await, "after the min_hold");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_max_hold_counts_from_the_beginning_of_its_own_hold() {
    let (_store, engine) = engine();
    let bounded = || {
        let request = request(None);
        Request { terms: Terms { max_hold: Some(LEASE * 5), ..request.terms }, ..request }
    };
    let first = acquire(&engine, bounded()).await.expect("free");
    let mut second = queue(&engine, bounded());
    sleep(LEASE * 3).await;
    engine.release(&first, true).await.expect("held");
    let second = second.as_mut().await.expect("handed off");
    sleep(LEASE * 3).await;
    assert!(second.is_valid(BootInstant::now()), "the second hold began later");
    assert_eq!(timeout(LEASE * 50, second.lost()).await, Ok(LostReason::MaxHold));
    let _ = engine.release(&second, true).await;
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_waiter_does_not_get_busy_if_the_renewal_for_it_gets_no_answer() {
    let (store, engine) = engine();
    let first = acquire(&engine, request(None)).await.expect("free");
    let waiting = |lease| Request { wait: Wait::For(LEASE * 3), ..fixed(lease) };
    let long = || waiting(LEASE * 100);
    let (second, third) = (queue(&engine, long()), queue(&engine, long()));
    store.next_renewals([Fault::Hang; 99]);
    store.next_releases([Fault::Hang; 99]);
    store.next_acquires([Fault::Hang; 99]);
    engine.release_in_background(&first, true);
    let (second, third) = tokio::join!(second, third);
    for outcome in [second.map(drop), third.map(drop)] {
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
    }
}
