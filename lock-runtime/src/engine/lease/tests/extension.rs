//! Deadlines, renewals, and the limits of a hold.

use super::*;

#[test]
fn the_deadline_is_a_margin_before_the_end_of_the_lease_in_the_store() {
    let sent = BootInstant::now();
    let (_queues, hold) = renewed(sent);
    assert!(hold.is_valid(sent));
    let margin = TERM / 100 + Duration::from_millis(2);
    assert_eq!(hold.deadline().since(sent) + margin, TERM);
    assert!(!hold.is_valid(hold.deadline()));
    assert_eq!(hold.lease().gone_by(), sent.after(TERM));
}

#[test]
fn the_deadline_after_a_renewal_counts_from_the_sending_of_its_request() {
    let sent = BootInstant::now();
    let (_queues, hold) = renewed(sent);
    let again = sent.after(TERM / 3);
    assert_eq!(hold.about_to_extend(again, None, Duration::ZERO), Some(TERM));
    assert_eq!(
        hold.lease().gone_by(),
        again.after(TERM),
        "the request may already have extended the key"
    );
    hold.lease().failed();
    assert_eq!(hold.lease().failed(), 2);
    assert_eq!(hold.lease().extended(again, None), 2);
    assert_eq!(hold.deadline(), deadline(again, TERM));
    assert_eq!(hold.lease().failed(), 1, "a success resets the count of failures");
}

#[test]
fn the_latest_deadline_applies_in_whatever_order_answers_arrive() {
    let sent = BootInstant::now();
    let (_queues, hold) = granted(sent, &fixed(TERM));
    hold.extended(sent, TERM * 6);
    hold.extended(sent, TERM * 2);
    assert_eq!(hold.deadline(), deadline(sent, TERM * 6));
}

#[test]
fn a_released_lease_is_not_extended() {
    let sent = BootInstant::now();
    let (_queues, hold) = renewed(sent);
    assert!(hold.about_to_extend(sent, None, Duration::ZERO).is_some());
    drop(leave(&hold));
    assert!(hold.about_to_extend(sent, None, Duration::ZERO).is_none());
    hold.lease().extended(BootInstant::now(), None);
    assert!(!hold.is_valid(BootInstant::now()));
}

#[test]
fn a_fixed_lease_is_verified_without_an_extension() {
    let sent = BootInstant::now();
    let (_queues, hold) = granted(sent, &fixed(TERM));
    let lease = hold.lease();
    let later = sent.after(TERM / 4);
    assert_eq!(lease.about_to_renew(later), None);
    assert!(lease.verify());
    let shortest = Duration::from_millis(1);
    assert_eq!(lease.about_to_renew(later), Some(shortest), "the request extends nothing");
    assert_eq!(lease.about_to_renew(sent.after(TERM)), None, "the key has expired");
    lease.failed();
    assert!(lease.about_to_renew(later).is_some(), "there was no answer");
    lease.extended(later, None);
    assert_eq!((lease.confirmed(), lease.about_to_renew(later)), (later, None));
    assert_eq!((hold.deadline(), lease.gone_by()), (deadline(sent, TERM), sent.after(TERM)));
    assert!(lease.verify());
    drop(leave(&hold));
    assert_eq!((lease.verify(), lease.about_to_renew(later)), (false, None));
}

#[test]
fn a_max_hold_limits_every_extension() {
    let (sent, max_hold) = (BootInstant::now(), TERM * 3 / 2);
    let (_queues, hold) = granted(sent, &Terms { max_hold: Some(max_hold), ..terms() });
    assert!(hold.lease().can_be_renewed());
    hold.lease().extended(sent.after(TERM), None);
    assert_eq!(hold.deadline(), sent.after(max_hold));
    assert!(!hold.lease().can_be_renewed());
}

#[test]
fn every_request_asks_for_at_least_the_rest_of_the_min_hold() {
    let (sent, min_hold) = (BootInstant::now(), TERM * 2);
    let terms = Terms { min_hold, ..terms() };
    let (_queues, hold) = granted(sent, &terms);
    assert_eq!(terms.in_store(), min_hold);
    assert_eq!(hold.deadline(), deadline(sent, TERM), "the deadline of the holder is unaffected");
    assert_eq!(hold.lease().gone_by(), sent.after(min_hold));
    let term = hold.about_to_extend(sent.after(TERM / 2), None, Duration::ZERO);
    assert_eq!(term, Some(TERM * 3 / 2));
    assert_eq!(hold.about_to_extend(sent.after(min_hold), None, Duration::ZERO), Some(TERM));
}

#[test]
fn a_key_is_kept_for_the_longest_min_hold() {
    let sent = BootInstant::now();
    let (_queues, hold) = renewed(sent);
    assert!(hold.lease().kept_until() <= sent);
    hold.keep_for(sent, TERM);
    let longest = hold.lease().kept_until();
    assert!(longest >= sent.after(TERM));
    hold.keep_for(sent, TERM / 2);
    assert_eq!(hold.lease().kept_until(), longest);
}

#[test]
fn renewals_that_were_sent_before_more_replicas_are_required_do_not_count() {
    let sent = BootInstant::now();
    let (_queues, hold) = granted(sent, &acknowledged_by(1));
    let both = RequiredReplicas { at_least: 1, all: true };
    let request = BootInstant::now();
    assert!(!hold.acknowledged(RequiredReplicas::NONE, (sent, TERM)));
    // The replicas of the stricter request may not have this renewal.
    hold.lease().extended(BootInstant::now(), None);
    assert!(hold.deadline() > deadline(request, TERM));
    let early = BootInstant::now();
    assert!(hold.acknowledged(both, (request, TERM)));
    assert_eq!(hold.deadline(), deadline(request, TERM));
    assert_eq!(hold.lease().renewal(TERM).acknowledged_by, both);
    hold.lease().extended(early, None);
    assert_eq!(hold.deadline(), deadline(request, TERM));
    let late = BootInstant::now();
    hold.lease().extended(late, None);
    assert_eq!(hold.deadline(), deadline(late, TERM));
}
