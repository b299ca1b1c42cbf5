//! What holds for calls for permits, and what fails without one of the rules.

use super::{
    CHECK_GIVES_PERMITS, FIRST_HAS_REASON, IN_ORDER, NO_PERMITS_REMAIN, PermitCalls, WITHIN_LIMIT,
};
use crate::check::{holds, violates};

/// Calls for one and two of two permits.
fn with_faults() -> PermitCalls {
    PermitCalls { wanted: vec![(1, 2), (2, 2), (1, 2)], faults: true, ..PermitCalls::default() }
}

#[test]
fn permits_are_within_the_limit_and_go_to_the_calls_in_order() {
    holds(PermitCalls::default(), 1_500);
    let wanted = vec![(1, 2), (2, 4), (1, 4), (3, 4), (4, 4)];
    holds(PermitCalls { wanted, times: 1, ..PermitCalls::default() }, 700);
}

#[test]
fn permits_go_to_the_calls_in_order_although_calls_crash_and_requests_arrive_late() {
    holds(with_faults(), 18_000);
    holds(PermitCalls { times: 1, faults: true, ..PermitCalls::default() }, 38_000);
}

#[test]
fn if_a_call_does_not_count_by_its_own_limit_there_are_too_many_holders() {
    violates(PermitCalls { own_limits: false, ..PermitCalls::default() }, WITHIN_LIMIT);
}

#[test]
fn if_the_first_call_holds_nobody_back_it_is_overtaken() {
    violates(PermitCalls { in_order: false, ..PermitCalls::default() }, IN_ORDER);
}

#[test]
fn if_newcomers_do_not_wait_they_overtake() {
    violates(PermitCalls { newcomers_wait: false, ..PermitCalls::default() }, IN_ORDER);
}

#[test]
fn if_giving_up_gives_nobody_permits_a_call_waits_for_them_without_a_reason() {
    violates(PermitCalls { giving_up_settles: false, ..PermitCalls::default() }, FIRST_HAS_REASON);
}

#[test]
fn if_checks_do_not_see_the_end_of_a_lease_a_call_waits_for_its_permits_forever() {
    violates(PermitCalls { checks_see_ends: false, ..with_faults() }, CHECK_GIVES_PERMITS);
}

#[test]
fn if_checks_do_not_see_that_the_first_call_is_gone_the_next_one_waits_for_it() {
    violates(PermitCalls { checks_see_gone: false, ..with_faults() }, CHECK_GIVES_PERMITS);
}

#[test]
fn a_release_of_permits_that_is_not_repeated_misses_a_late_request() {
    violates(PermitCalls { releases_repeat: false, ..with_faults() }, NO_PERMITS_REMAIN);
}
