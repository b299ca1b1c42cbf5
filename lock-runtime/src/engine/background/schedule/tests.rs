use std::time::Duration;

use super::*;
use crate::engine::handoff::LocalQueues;
use crate::engine::lease::Terms;
use crate::engine::testing::{self, UNREAD};
use crate::error::LostReason;
use crate::replicas::RequiredReplicas;

const TERM: Duration = Duration::from_secs(30);

fn lease(name: &str, renewed: bool) -> Arc<Lease> {
    lease_of(name, renewed, TERM)
}

fn lease_of(name: &str, renewed: bool, term: Duration) -> Arc<Lease> {
    let terms = Terms {
        term,
        renewed,
        max_hold: None,
        min_hold: Duration::ZERO,
        acknowledged_by: RequiredReplicas::NONE,
        linger: Duration::ZERO,
        site: &UNREAD,
    };
    let queues = Arc::new(LocalQueues::default());
    let hold = testing::hold(&queues, name, &terms, BootInstant::now());
    Arc::clone(hold.lease())
}

#[test]
fn a_renewed_lease_is_due_after_a_third_of_its_term() {
    let (schedule, lease) = (Schedule::default(), lease("k", true));
    assert!(schedule.add(&lease), "the first lease wakes the thread");
    let start = BootInstant::now();
    assert!(schedule.due(start.after(TERM / 4)).renew.is_empty());
    let due = schedule.due(start.after(TERM / 3));
    assert_eq!(due.renew.len(), 1);
    assert_eq!(due.next, Some(lease.deadline()), "while the renewal is in flight");
}

#[test]
fn an_answered_renewal_is_due_again_a_third_later() {
    let (schedule, lease) = (Schedule::default(), lease("k", true));
    schedule.add(&lease);
    let sent = BootInstant::now().after(TERM / 3);
    assert_eq!(schedule.due(sent).renew.len(), 1);
    lease.about_to_renew(sent);
    lease.extended(sent, None);
    schedule.reschedule(&lease);
    assert!(schedule.due(sent.after(TERM / 4)).renew.is_empty());
    assert_eq!(schedule.due(sent.after(TERM / 3)).renew.len(), 1);
}

#[test]
fn all_leases_can_be_verified_at_once() {
    let (schedule, one, two) = (Schedule::default(), lease("one", true), lease("two", true));
    let (fixed, ended) = (lease("fixed", false), lease("ended", true));
    for lease in [&one, &two, &fixed, &ended] {
        schedule.add(lease);
    }
    schedule.remove(&ended);
    let now = BootInstant::now();
    schedule.verify_all(now);
    let due = schedule.due(now);
    let is_due = |lease: &&Arc<Lease>| due.renew.iter().any(|due| Arc::ptr_eq(due, lease));
    assert!([&one, &two, &fixed].iter().all(is_due));
    assert_eq!(due.renew.len(), 3);
    assert_eq!(schedule.len(), 3, "at their deadlines");
}

#[test]
fn a_renewal_without_an_answer_does_not_hide_the_deadline() {
    let (schedule, lease) = (Schedule::default(), lease("k", true));
    schedule.add(&lease);
    schedule.due(BootInstant::now().after(TERM / 3));
    let due = schedule.due(BootInstant::now().after(TERM));
    assert_eq!(due.expired.len(), 1);
    assert_eq!(schedule.len(), 0);
}

#[test]
fn a_failed_renewal_is_repeated_until_the_deadline() {
    let (schedule, lease) = (Schedule::default(), lease("k", true));
    schedule.add(&lease);
    schedule.due(BootInstant::now().after(TERM / 3));
    assert!(schedule.retry(&lease, Duration::ZERO), "earlier than the deadline");
    assert_eq!(schedule.due(BootInstant::now()).renew.len(), 1);
    schedule.retry(&lease, TERM * 2);
    assert_eq!(schedule.due(lease.deadline()).expired.len(), 1);
}

#[test]
fn a_renewal_that_is_due_too_late_is_not_sent() {
    let (schedule, lease) = (Schedule::default(), lease("k", true));
    schedule.add(&lease);
    let due = schedule.due(lease.deadline());
    assert_eq!((due.renew.len(), due.expired.len()), (0, 1));
}

#[test]
fn an_extended_lease_does_not_expire_at_its_old_deadline() {
    let (schedule, lease) = (Schedule::default(), lease("k", false));
    schedule.add(&lease);
    let old = lease.deadline();
    lease.extended(BootInstant::now(), Some(TERM * 3));
    let due = schedule.due(old);
    assert_eq!((due.renew.len(), due.expired.len()), (0, 0));
    assert_eq!(due.next, Some(lease.deadline()));
}

#[test]
fn a_fixed_lease_is_never_renewed() {
    let (schedule, lease) = (Schedule::default(), lease("k", false));
    schedule.add(&lease);
    let due = schedule.due(lease.deadline());
    assert!(due.renew.is_empty());
    assert_eq!(due.expired.len(), 1);
}

#[test]
fn a_removed_lease_is_not_added_again() {
    let (schedule, lease) = (Schedule::default(), lease("k", true));
    schedule.add(&lease);
    schedule.due(BootInstant::now().after(TERM / 3));
    lease.lose(LostReason::Gone, || {});
    schedule.remove(&lease);
    assert!(!schedule.reschedule(&lease), "the answer to its renewal is too late");
    assert_eq!(schedule.len(), 0);
}

#[test]
fn a_lost_lease_whose_key_is_left_to_its_holder_is_due_when_the_key_expires() {
    let (schedule, lease) = (Schedule::default(), lease("k", true));
    schedule.add(&lease);
    lease.lose(LostReason::MaxHold, || {});
    schedule.leave(&lease);
    assert_eq!((schedule.len(), schedule.held().len()), (0, 0), "the lease is not held any more");
    assert!(!schedule.reschedule(&lease), "a late renewal changes nothing");
    let due = schedule.due(lease.gone_by().before_grid(TERM));
    assert!(due.over.is_empty());
    assert_eq!(due.next, Some(lease.gone_by()));
    let due = schedule.due(lease.gone_by());
    assert_eq!((due.over.len(), due.expired.len(), due.next), (1, 0, None));

    schedule.leave(&lease);
    schedule.remove(&lease);
    assert!(schedule.due(lease.gone_by()).over.is_empty(), "its holder has left");
}

#[test]
fn leases_of_about_the_same_time_are_renewed_together() {
    let schedule = Schedule::default();
    let leases: Vec<_> = (0..100).map(|_| lease("k", true)).collect();
    let start = BootInstant::now();
    for (n, lease) in (0_u32..).zip(&leases) {
        lease.extended(start.after(TERM * n / 100), None);
        schedule.add(lease);
    }
    assert_eq!(schedule.len(), leases.len());
    let mut batches = 0;
    while let Some(next) = schedule.due(BootInstant::now()).next.filter(|_| batches < 100) {
        let due = schedule.due(next);
        if due.renew.is_empty() {
            break;
        }
        batches += 1;
    }
    // A third of the leases were granted in ten steps of the grid.
    assert!(batches <= 31, "{batches}");
}

#[test]
fn many_due_leases_are_taken_in_parts() {
    let (schedule, sent) = (Schedule::default(), BootInstant::now());
    for _ in 0..AT_ONCE * 3 {
        let lease = lease("k", true);
        lease.extended(sent, None);
        schedule.add(&lease);
    }
    let now = sent.after(TERM / 2);
    for _ in 0..3 {
        let due = schedule.due(now);
        assert_eq!(due.renew.len(), AT_ONCE);
        assert!(due.next.is_some());
    }
    let rest = schedule.due(now);
    assert_eq!(rest.renew.len(), 0);
    assert!(rest.next > Some(now));
}

#[test]
fn leases_of_the_same_instant_are_each_renewed() {
    let (schedule, sent) = (Schedule::default(), BootInstant::now());
    let leases: Vec<_> = (0..3).map(|_| lease("k", true)).collect();
    for lease in &leases {
        lease.extended(sent.after(TERM / 10), None);
        schedule.add(lease);
    }
    let due = schedule.due(sent.after(TERM / 2));
    assert_eq!(due.renew.len(), leases.len());
}

#[test]
fn the_thread_is_woken_only_for_an_earlier_lease() {
    let schedule = Schedule::default();
    let (one, two, short) = (lease("1", true), lease("2", true), lease_of("3", true, TERM / 10));
    assert!(schedule.add(&one));
    schedule.due(BootInstant::now());
    assert!(!schedule.add(&two), "due later than the first lease");
    assert!(schedule.add(&short));
}

#[test]
fn retries_back_off_within_the_term() {
    for failures in 1..40 {
        let pause = retry_pause(TERM, failures);
        assert!(pause >= TERM / 61 && pause <= TERM / 6, "{pause:?} after {failures}");
    }
    assert!(retry_pause(TERM, 1) <= TERM / 30);
    assert!(retry_pause(TERM, 3) > TERM / 30);
}

/// For example, a lease whose deadline passes while it is handed off to a holder with more time.
#[test]
fn a_lease_that_was_extended_as_it_expired_is_scheduled_again() {
    let (schedule, lease) = (Schedule::default(), lease("k", true));
    schedule.add(&lease);
    assert_eq!(schedule.due(lease.deadline()).expired.len(), 1);
    let sent = BootInstant::now();
    lease.extended(sent.after(TERM), None);
    assert!(schedule.add_again(&lease), "the first entry");
    assert!(schedule.due(sent).renew.is_empty(), "nothing is due yet");
    assert!(!schedule.add_again(&lease), "the thread wakes for the renewal anyway");
    assert_eq!(schedule.len(), 1);
    assert_eq!(schedule.due(sent.after(TERM * 3 / 2)).renew.len(), 1);
    assert!(schedule.add_again(&lease), "the thread was to wake at the deadline, which is later");
    lease.lose(LostReason::Gone, || {});
    schedule.remove(&lease);
    assert!(!schedule.add_again(&lease));
    assert_eq!(schedule.len(), 0, "the lease has ended");
}

#[test]
fn a_key_that_is_left_to_its_holders_wakes_the_thread_only_if_it_expires_first() {
    let (schedule, left, other) = (Schedule::default(), lease("1", true), lease("2", true));
    schedule.add(&other);
    schedule.due(BootInstant::now());
    left.lose(LostReason::MaxHold, || {});
    assert!(!schedule.leave(&left), "the other lease is due earlier");
    schedule.remove(&other);
    schedule.due(BootInstant::now());
    let short = lease_of("3", true, TERM / 10);
    short.lose(LostReason::MaxHold, || {});
    assert!(schedule.leave(&short));
}
