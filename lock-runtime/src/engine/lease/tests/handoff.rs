//! A lease between two holds.

use super::*;
use crate::clock;
use crate::store::contract::Mode;

#[test]
fn a_hand_off_ends_one_hold_and_begins_another() {
    let (queues, first) = renewed(BootInstant::now());
    let stale = first.clone();
    let deadline = first.deadline();
    let mut permit = hand_off(&first);
    assert!(!stale.join(Mode::Exclusive), "the hold has ended");
    let (second, _) = first.lease().accept(&terms(), &mut permit).expect("the same terms");
    assert!(permit.is_none(), "the new hold has the permit");
    assert_eq!(second.deadline(), deadline, "the lease was not renewed");
    assert!(!stale.join(Mode::Exclusive));
    for limits in [None, Some(&HandoffLimit::default())] {
        assert!(matches!(
            stale.leave((limits, true), None, BootInstant::now()),
            (None, None, Ending::None)
        ));
    }
    assert!(second.is_valid(BootInstant::now()) && second.join(Mode::Exclusive));
    second.lease().lose(LostReason::Gone, || {});
    assert_eq!(stale.loss(), None, "only the second hold is lost");
    assert!(second.loss().is_some());
    drop(queues);
}

#[test]
fn each_hold_has_its_own_fencing_token() {
    let (_queues, first) = renewed(BootInstant::now());
    let fence = first.fence();
    assert!(Arc::ptr_eq(&fence, &first.fence()));
    let mut permit = hand_off(&first);
    let (second, _) = first.lease().accept(&terms(), &mut permit).expect("the same terms");
    assert!(!Arc::ptr_eq(&fence, &second.fence()));
    assert!(!Arc::ptr_eq(&second.fence(), &first.fence()), "a stale hold does not get the token");
}

#[test]
fn an_overdue_kept_lost_or_shared_lock_is_not_handed_off() {
    let late = BootInstant::from_nanos(BootInstant::now().as_nanos() - 6_000_000_000);
    let (_queues, overdue) = renewed(late);
    assert!(overdue.is_valid(BootInstant::now()));
    assert!(hand_off(&overdue).is_none(), "its renewals have failed for a while");

    let kept = Terms { min_hold: TERM / 2, ..terms() };
    let (_queues, kept) = granted(BootInstant::now(), &kept);
    assert!(hand_off(&kept).is_none(), "its key stays taken for the min_hold");

    let (_queues, lost) = renewed(BootInstant::now());
    lost.lease().lose(LostReason::Taken, || {});
    assert!(hand_off(&lost).is_none());

    let (_queues, shared) = renewed(BootInstant::now());
    assert!(shared.join(Mode::Exclusive));
    assert!(hand_off(&shared).is_none(), "another holder has not left");
    assert!(hand_off(&shared).is_some());
}

#[test]
fn a_waiter_with_other_terms_renews_the_lease_or_does_not_get_it() {
    let kept = Terms { min_hold: TERM / 2, ..terms() };
    for (terms, renewal) in [
        (fixed(TERM * 2), Some(TERM * 2)),
        (fixed(TERM / 2), None),
        (kept, Some(TERM)),
        (Terms { min_hold: TERM * 3, ..kept }, Some(TERM * 3)),
        (acknowledged_by(1), Some(TERM)),
    ] {
        let sent = BootInstant::now();
        let (_queues, hold) = renewed(sent);
        let mut permit = hand_off(&hold);
        assert!(hold.lease().accept(&terms, &mut permit).is_none());
        assert!(permit.is_some());
        let now = BootInstant::now();
        assert_eq!(hold.lease().about_to_renew_for(&terms, now), renewal, "{terms:?}");
        if let Some(renewal) = renewal {
            assert_eq!(hold.lease().gone_by(), now.after(renewal));
            let next = hold.lease().renewed_for(&terms, now, &mut permit).expect("in time");
            assert_eq!(next.deadline(), deadline(now, terms.term));
            assert_eq!((next.is_renewed(), next.lease().term()), (terms.renewed, terms.term));
            assert_eq!(next.lease().kept_until(), now.after(terms.min_hold));
        }
    }
}

#[test]
fn an_earlier_renewal_does_not_affect_a_lease_that_was_renewed_for_a_waiter() {
    let sent = BootInstant::now();
    let (_queues, hold) = renewed(sent);
    let mut permit = hand_off(&hold);
    let longer = fixed(TERM * 2);
    assert!(hold.lease().about_to_renew_for(&longer, sent).is_some());
    let later = BootInstant::now();
    assert_eq!(hold.lease().about_to_renew(later), Some(TERM));
    let next = hold.lease().renewed_for(&longer, sent, &mut permit).expect("in time");
    next.lease().extended(later, None);
    assert_eq!(next.deadline(), deadline(sent, TERM * 2));
    assert_eq!(next.lease().about_to_renew(BootInstant::now()), None, "no further renewals");
}

#[test]
fn a_max_hold_limits_one_hold_and_not_the_lease() {
    let bounded = Terms { max_hold: Some(TERM / 4), ..terms() };
    let sent = BootInstant::now();
    let (_queues, first) = granted(sent, &bounded);
    let mut permit = hand_off(&first);
    assert_eq!(first.lease().deadline(), deadline(sent, TERM));
    let (second, reschedule) = first.lease().accept(&bounded, &mut permit).expect("the same terms");
    assert!(reschedule);
    assert!(second.deadline() >= sent.after(TERM / 4));
    assert!(second.deadline() < deadline(sent, TERM));
}

#[test]
fn a_lease_that_no_waiter_takes_is_not_renewed_for_long() {
    let (_queues, hold) = renewed(BootInstant::now());
    let mut permit = hand_off(&hold);
    let now = BootInstant::now();
    assert!(hold.lease().about_to_renew(now).is_some(), "a waiter may take the lease at any time");
    assert!(hold.lease().about_to_renew(now.after(TERM / 3)).is_none());
    let (next, reschedule) = hold.lease().accept(&terms(), &mut permit).expect("still valid");
    assert!(reschedule, "the lease is scheduled at its deadline");
    assert!(next.lease().about_to_renew(now.after(TERM / 3)).is_some());
}

#[test]
fn a_lease_that_no_waiter_takes_is_closed_once() {
    let (_queues, hold) = renewed(BootInstant::now());
    assert!(!hold.lease().close(), "the lock is held");
    let permit = hand_off(&hold);
    assert!(hold.lease().close());
    assert!(!hold.lease().close());
    assert!(hold.lease().accept(&terms(), &mut { permit }).is_none());
    assert!(!hold.is_valid(BootInstant::now()));
}

#[test]
fn a_lease_that_is_lost_during_a_hand_off_is_not_accepted() {
    let (_queues, hold) = renewed(BootInstant::now());
    let mut permit = hand_off(&hold);
    let lost = hold.lease().lose(LostReason::Gone, || {});
    assert_eq!(lost, Some(Loss { reason: LostReason::Gone, held_for: None }));
    assert!(hold.lease().accept(&terms(), &mut permit).is_none());
    assert!(hold.lease().about_to_renew_for(&terms(), BootInstant::now()).is_none());
    assert!(!hold.lease().close());
}

#[test]
fn a_renewal_for_a_waiter_that_is_answered_after_its_deadline_begins_no_hold() {
    let (_queues, hold) = renewed(BootInstant::now());
    let mut permit = hand_off(&hold);
    let (sent, longer) = (BootInstant::now(), fixed(TERM * 2));
    assert!(hold.lease().about_to_renew_for(&longer, sent).is_some());
    clock::sleep_through(TERM * 3);
    assert!(hold.lease().renewed_for(&longer, sent, &mut permit).is_none());
    assert!(permit.is_some(), "the waiter has the permit");
    assert!(hold.lease().close(), "the lease has to be released");
}

#[test]
fn a_waiter_gets_a_lease_unchanged_only_if_it_requires_the_same_replicas() {
    for (first, next, is_unchanged) in [(0, 1, false), (1, 0, false), (2, 1, false), (1, 1, true)] {
        let sent = BootInstant::now();
        let (_queues, hold) = granted(sent, &acknowledged_by(first));
        let mut permit = hand_off(&hold);
        let accepted = hold.lease().accept(&acknowledged_by(next), &mut permit);
        assert_eq!(accepted.is_some(), is_unchanged, "{first} and {next}");
        if accepted.is_none() {
            let now = BootInstant::now();
            let renewed = hold.lease().renewed_for(&acknowledged_by(next), now, &mut permit);
            assert!(renewed.is_some());
        }
        assert_eq!(hold.lease().acknowledged_by().at_least, next);
    }
}
