//! The end of a hold: by a release, or by a loss.

use super::*;
use crate::store::contract::Mode;

#[test]
fn an_overdue_lease_is_lost_for_a_reason_that_follows_from_its_terms() {
    let sent = BootInstant::now();
    for (renewed, max_hold, reason) in [
        (true, None, LostReason::RenewalFailed),
        (false, None, LostReason::LeaseOver),
        (true, Some(Duration::from_nanos(1)), LostReason::MaxHold),
        (true, Some(TERM), LostReason::RenewalFailed),
    ] {
        let (_queues, hold) = granted(sent, &Terms { renewed, max_hold, ..terms() });
        assert_eq!(
            (hold.is_renewed(), hold.lease().read(|state| state.overdue(BootInstant::now()))),
            (renewed, reason),
            "{max_hold:?}"
        );
    }
}

#[test]
fn a_release_is_distinguished_from_a_loss() {
    let (_queues, released) = renewed(BootInstant::now());
    assert_eq!(released.loss(), None);
    leave(&released);
    assert_eq!(released.loss(), None);

    let (_queues, lost) = renewed(BootInstant::now());
    assert_eq!(lost.loss(), None);
    lost.lease().lose(LostReason::Gone, || {});
    for error in [lost.loss(), lost.leave((None, true), None, BootInstant::now()).0] {
        match error {
            Some(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Gone),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_last_holder_releases_the_lock() {
    let (queues, hold) = renewed(BootInstant::now());
    assert!(hold.join(Mode::Exclusive));
    assert!(matches!(leave(&hold), Ending::None));
    assert!(hold.is_valid(BootInstant::now()));
    let Ending::Free(permit) = leave(&hold) else { panic!("the last holder") };
    assert!(!hold.is_valid(BootInstant::now()));
    assert!(!hold.join(Mode::Exclusive));
    assert_eq!(queues.keys(), 1, "other callers wait until the release is complete");
    drop(permit);
    assert_eq!(queues.keys(), 0);
}

#[test]
fn a_loss_of_the_key_is_reported_once_and_releases_nothing() {
    let (queues, hold) = renewed(BootInstant::now());
    assert!(hold.loss().is_none());
    assert!(hold.lease().lose(LostReason::Taken, || {}).is_some());
    assert!(hold.lease().lose(LostReason::Gone, || {}).is_none());
    assert!(matches!(hold.loss(), Some(LockError::Lost { reason: LostReason::Taken, .. })));
    drop(hold.lease().take_permit());
    assert_eq!(queues.keys(), 0, "other callers of the process may acquire the lock");
    assert!(matches!(leave(&hold), Ending::None));
}

#[test]
fn a_passed_deadline_is_a_loss_even_if_it_was_not_noticed() {
    let long_ago = BootInstant::from_nanos(1);
    for (terms, reason) in
        [(terms(), LostReason::RenewalFailed), (fixed(TERM), LostReason::LeaseOver)]
    {
        let (_queues, hold) = granted(long_ago, &terms);
        assert!(!hold.join(Mode::Exclusive));
        match hold.loss() {
            Some(LockError::Lost { reason: seen, .. }) => assert_eq!(seen, reason),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_last_holder_notices_a_loss_that_was_not_noticed_before() {
    let (_queues, hold) = renewed(BootInstant::from_nanos(1));
    let (lost, unnoticed, _) = hold.leave((None, true), None, BootInstant::now());
    assert_eq!(unnoticed, Some(LostReason::RenewalFailed));
    assert!(lost.is_some());
    let (_queues, hold) = renewed(BootInstant::from_nanos(1));
    hold.lease().expire(|| {});
    assert_eq!(
        hold.leave((None, true), None, BootInstant::now()).1,
        None,
        "the background thread has noticed the loss"
    );
}

#[test]
fn a_key_that_may_still_have_this_owner_stays_taken_until_all_holders_have_left() {
    for reason in [
        LostReason::ShutDown,
        LostReason::MaxHold,
        LostReason::RenewalFailed,
        LostReason::LeaseOver,
    ] {
        let (queues, hold) = renewed(BootInstant::now());
        assert!(hold.join(Mode::Exclusive));
        let loss = hold.lease().lose(reason, || {}).expect("held");
        assert!(loss.leaves_the_key(), "{reason:?}");
        assert!(!hold.is_valid(BootInstant::now()));
        assert!(matches!(leave(&hold), Ending::None));
        assert_eq!(queues.keys(), 1);
        assert!(matches!(leave(&hold), Ending::Free(Some(_))));
    }
    for reason in [LostReason::Gone, LostReason::Taken] {
        let (_queues, hold) = renewed(BootInstant::now());
        let loss = hold.lease().lose(reason, || {}).expect("held");
        assert!(!loss.leaves_the_key(), "{reason:?}");
    }
    let (_queues, hold) = renewed(BootInstant::now());
    let _permit = hand_off(&hold);
    let loss = hold.lease().lose(LostReason::RenewalFailed, || {}).expect("in a hand-off");
    assert!(!loss.leaves_the_key(), "there is no holder during a hand-off");
}
