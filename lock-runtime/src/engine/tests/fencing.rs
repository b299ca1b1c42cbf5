//! Fencing tokens.

use super::*;

#[tokio::test]
async fn a_request_for_a_fencing_token_is_repeated_until_it_is_answered() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(None)).await.expect("free");
    store.next_fences([Fault::Refuse, Fault::LoseReply]);
    let fence = engine.fencing_token(&hold).await.expect("held");
    store.next_fences([Fault::Hang]);
    let again = timeout(LEASE, engine.fencing_token(&hold)).await.expect("without a request");
    assert_eq!(again, Ok(fence), "a hold has one token");
    engine.release(&hold, true).await.expect("held");
}

#[tokio::test]
async fn a_dropped_request_for_a_fencing_token_does_not_affect_later_ones() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(None)).await.expect("free");
    for fault in [Fault::Hang, Fault::HangAfter] {
        store.next_fences([fault]);
        assert!(timeout(LEASE / 10, engine.fencing_token(&hold)).await.is_err());
    }
    engine.fencing_token(&hold).await.expect("held");
    engine.release(&hold, true).await.expect("held");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_request_for_a_fencing_token_ends_when_the_lock_is_lost() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE))).await.expect("free");
    store.next_fences([Fault::Hang]);
    match timeout(LEASE * 2, engine.fencing_token(&hold)).await.expect("at the deadline") {
        Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::LeaseOver),
        other => panic!("{other:?}"),
    }
    // The token is not returned after a loss, even if it was known before.
    assert!(engine.fencing_token(&hold).await.is_err());
}

#[tokio::test]
async fn a_refused_fencing_token_is_unavailable_and_the_lock_is_still_held() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(None)).await.expect("free");
    store.next_fences(std::iter::repeat_n(Fault::Refuse, 1000));
    match engine.fencing_token(&hold).await {
        Err(LockError::Unavailable { key, waited, .. }) => {
            assert_eq!(key.as_deref(), Some("k"));
            assert!(waited >= LEASE * 5, "{waited:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(hold.is_valid(BootInstant::now()));
    engine.release(&hold, true).await.expect("held");
}

#[tokio::test]
async fn a_timeout_during_a_request_for_a_fencing_token_reports_the_last_error_of_the_store() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_fences([Fault::Refuse, Fault::Hang]);
    match engine.fencing_token(&hold).await {
        Err(LockError::Unavailable { cause, .. }) => assert_eq!(cause, "refused as planned"),
        other => panic!("{other:?}"),
    }
    engine.release(&hold, true).await.expect("held");
}

/// Each of them waits until its own timeout, and not for the timeouts of the others as well.
#[tokio::test]
async fn concurrent_requests_for_a_fencing_token_time_out_together() {
    let (store, engine) = engine();
    // A fixed lease, so that no renewal can be too late.
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_fences(std::iter::repeat_n(Fault::Refuse, 10_000));
    let asking = async {
        tokio::join!(
            engine.fencing_token(&hold),
            engine.fencing_token(&hold),
            engine.fencing_token(&hold)
        )
    };
    // If the whole test is paused, both branches are ready, and the first one counts.
    let (one, two, three) = tokio::select! {
        biased;
        outcomes = asking => outcomes,
        () = sleep(LEASE * 15) => panic!("one of them waits for longer than its timeout"),
    };
    for outcome in [one, two, three] {
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
    }
    engine.release(&hold, true).await.expect("held");
}
