//! Renewals and extensions.

use super::*;

#[tokio::test]
async fn a_lock_is_kept_if_its_renewals_fail_and_then_succeed() {
    let (store, engine) = engine();
    // Long enough for three attempts on a busy machine. The first renewal is due immediately.
    let mut terms = request(None).terms;
    terms.term = LEASE * 40;
    let third = u64::try_from((terms.term / 3).as_nanos()).expect("a few seconds");
    let sent = BootInstant::from_nanos(BootInstant::now().as_nanos() - third);
    let hold = hold_in(Arc::clone(engine.store()), "k", &terms, sent);
    take(&*store, owner(&hold), terms.term).await;
    let granted_until = hold.deadline();
    store.next_renewals([Fault::Refuse, Fault::LoseReply]);
    engine.background().watch(hold.lease());
    // The deadline changes only by a renewal that was answered, or by a loss.
    while hold.deadline() == granted_until {
        sleep(LEASE / 100).await;
    }
    assert!(hold.deadline() > granted_until, "{:?}", hold.loss());
    assert!(!is_free(&store).await);
    engine.release(&hold, true).await.expect("held");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_lock_whose_renewals_get_no_answer_is_lost_at_its_deadline() {
    let (store, engine) = engine();
    store.next_renewals([Fault::Hang; 100]);
    let mut request = request(None);
    request.terms.term = LEASE;
    let start = BootInstant::now();
    let hold = acquire(&engine, request).await.expect("free");
    let reason = timeout(LEASE * 5, hold.lost()).await.expect("at the deadline");
    assert_eq!(reason, LostReason::RenewalFailed);
    assert!(BootInstant::now().since(start) >= LEASE * 9 / 10, "not before the deadline");
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_renewal_that_hangs_does_not_delay_other_renewals() {
    let (store, engine) = engine();
    let stuck = acquire(&engine, request(None)).await.expect("free");
    store.next_renewals([Fault::Hang]);
    // The first of them is renewed alone.
    sleep(RENEWED_LEASE / 6).await;
    let other = Request { key: Arc::from("other"), ..request(None) };
    let other = acquire(&engine, other).await.expect("free");
    let granted_until = other.deadline();
    stuck.lost().await;
    assert!(other.deadline() > granted_until, "it was renewed meanwhile");
    engine.release(&other, true).await.expect("held");
}

#[tokio::test]
async fn a_failed_extension_leaves_no_min_hold() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 10))).await.expect("free");
    store.next_renewals([Fault::LoseReply]);
    engine.extend(&hold, extension(None, LEASE * 1000)).await.expect_err("no answer");
    engine.release(&hold, true).await.expect("held");
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_refused_extension_reports_the_cause() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 10))).await.expect("free");
    store.next_renewals([Fault::Refuse]);
    match engine.extend(&hold, extension(Some(LEASE * 20), Duration::ZERO)).await {
        Err(LockError::Unavailable { cause, .. }) => assert_eq!(cause, "refused as planned"),
        other => panic!("{other:?}"),
    }
    engine.extend(&hold, extension(Some(LEASE * 20), Duration::ZERO)).await.expect("held");
    assert!(hold.deadline() > BootInstant::now().after(LEASE * 15));
    engine.release(&hold, true).await.expect("held");
}
