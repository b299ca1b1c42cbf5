//! Acquisitions.

use super::*;

#[tokio::test]
async fn an_acquisition_whose_reply_was_lost_tries_again_with_the_same_owner_id() {
    let (store, engine) = engine();
    store.next_acquires([Fault::LoseReply]);
    // With another owner id, it would wait for its own key.
    let hold = timeout(LEASE / 2, acquire(&engine, request(Some(LEASE * 10)))).await;
    let hold = hold.expect("at once").expect("granted");
    assert!(!is_free(&store).await);
    engine.release(&hold, true).await.expect("held");
    assert!(is_free(&store).await);
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn an_acquisition_that_is_dropped_after_its_request_was_served_is_undone() {
    let (store, engine) = engine();
    store.next_acquires([Fault::HangAfter]);
    let cut = timeout(LEASE / 10, acquire(&engine, request(Some(LEASE * 100)))).await;
    assert!(cut.is_err());
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

/// The control of the test above.
#[tokio::test]
async fn a_request_that_is_sent_without_the_engine_is_not_undone() {
    let (store, _engine) = engine();
    store.next_acquires([Fault::HangAfter]);
    let claim = claim(new_owner(), LEASE * 100);
    let cut = timeout(
        LEASE / 10,
        store.try_acquire(claim, RequestTimeout::of(LEASE * 100), &SendTrace::default()),
    )
    .await;
    assert!(cut.is_err());
    sleep(LEASE).await;
    assert!(!is_free(&store).await);
}

#[tokio::test]
async fn a_request_that_arrives_after_the_release_is_undone() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Hang]);
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("by the second attempt");
    let owner = owner(&hold);
    engine.release(&hold, true).await.expect("held");
    // The first attempt arrives now.
    take(&*store, owner, LEASE * 100).await;
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn an_acquisition_waits_for_a_store_that_refuses_for_a_while() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Refuse, Fault::Hang, Fault::Refuse]);
    let hold = acquire(&engine, request(None)).await.expect("within the wait");
    engine.release(&hold, true).await.expect("held");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_store_that_never_answers_is_unavailable() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Hang; 100]);
    let request = Request { wait: Wait::For(LEASE), ..request(None) };
    match acquire(&engine, request).await.map(drop) {
        Err(LockError::Unavailable { key: Some(key), waited, cause, .. }) => {
            assert_eq!((key.as_str(), cause.as_str()), ("k", "reply lost as planned"));
            assert!(waited >= LEASE, "{waited:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_queued_caller_gets_unavailable_if_the_store_refuses() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Refuse; 100]);
    let request = Request { wait: Wait::For(LEASE), ..request(None) };
    let (first, second) =
        tokio::join!(acquire(&engine, request.clone()), acquire(&engine, request));
    for outcome in [first, second] {
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
    }
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_caller_that_queues_behind_an_unanswered_first_attempt_does_not_get_busy() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Hang; 100]);
    let first = acquire(&engine, request(None));
    let second = async {
        sleep(LEASE / 20).await;
        acquire(&engine, Request { wait: Wait::For(LEASE / 4), ..request(None) }).await
    };
    tokio::select! {
        outcome = first => panic!("{outcome:?}"),
        outcome = second => {
            assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
        }
    }
}

/// Time is paused, because an answer counts only for a while.
#[tokio::test(start_paused = true)]
async fn a_timeout_during_an_attempt_reports_an_earlier_busy_answer() {
    let (store, engine) = engine();
    let other = new_owner();
    take(&*store, other, LEASE * 100).await;
    // The second attempt is made as soon as the subscription is live.
    store.next_acquires([Fault::None, Fault::Hang]);
    let request = Request { wait: Wait::For(LEASE / 6), ..request(None) };
    let outcome = acquire(&engine, request).await;
    assert!(matches!(outcome, Err(LockError::Busy { .. })), "{outcome:?}");
    resume();
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_timeout_during_an_attempt_reports_the_last_error_of_the_store() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Refuse, Fault::Hang]);
    // Shorter than the response timeout.
    let request = Request { wait: Wait::For(LEASE / 6), ..request(None) };
    match acquire(&engine, request).await.map(drop) {
        Err(LockError::Unavailable { cause, .. }) => assert_eq!(cause, "refused as planned"),
        other => panic!("{other:?}"),
    }
    assert_nothing_left(&engine).await;
}

/// The hold has ended, and it is unknown whether its key is free.
#[tokio::test]
async fn a_hold_whose_release_gets_no_answer_is_not_reported_as_busy() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_releases([Fault::Hang; 10]);
    let releasing = engine.release(&hold, true);
    let asking = async {
        sleep(LEASE / 4).await;
        let wait = Wait::For(LEASE / 10);
        acquire(&engine, Request { wait, ..request(None) }).await.map(drop)
    };
    tokio::select! {
        released = releasing => panic!("{released:?}"),
        outcome = asking => {
            assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
        }
    }
}
