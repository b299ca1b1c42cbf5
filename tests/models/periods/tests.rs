//! What holds for runs that happen once per period, and what fails without one of the safeguards.

use super::{
    AT_MOST_ONCE, BEGINS_IN_TIME, FAILED_IS_FREE, NO_RUN_AFTER_SUCCESS, Periods, UNUSED_IS_FREE,
};
use crate::check::{holds, violates};

/// The model with `retry_failed`.
fn retried() -> Periods {
    Periods { retry_failed: true, ..Periods::default() }
}

#[test]
fn a_period_has_at_most_one_run() {
    holds(Periods::default(), 170_000);
}

#[test]
fn a_failed_run_can_be_repeated_and_a_success_counts() {
    holds(retried(), 190_000);
}

#[test]
fn a_run_that_does_not_count_from_its_start_is_repeated_after_a_crash() {
    violates(Periods { runs_count_from_start: false, ..Periods::default() }, AT_MOST_ONCE);
}

#[test]
fn if_failed_runs_count_they_take_their_period() {
    violates(Periods { failed_do_not_count: false, ..retried() }, FAILED_IS_FREE);
}

#[test]
fn two_runs_with_the_same_owner_id_both_begin() {
    violates(Periods { runs_have_owners: false, ..Periods::default() }, AT_MOST_ONCE);
}

#[test]
fn a_start_that_is_not_undone_takes_its_period() {
    violates(Periods { starts_are_undone: false, ..Periods::default() }, UNUSED_IS_FREE);
}

#[test]
fn a_refused_start_whose_first_request_comes_late_takes_the_next_period() {
    violates(Periods { refused_are_undone: false, ..Periods::default() }, UNUSED_IS_FREE);
}

#[test]
fn a_start_that_comes_after_its_undo_takes_its_period() {
    violates(Periods { undo_is_final: false, ..Periods::default() }, UNUSED_IS_FREE);
}

#[test]
fn a_repeated_start_that_is_not_recognized_takes_its_period() {
    violates(Periods { repeats_are_granted: false, ..Periods::default() }, UNUSED_IS_FREE);
}

#[test]
fn a_late_start_takes_the_next_period_unless_starts_are_numbered() {
    violates(Periods { starts_are_numbered: false, ..Periods::default() }, UNUSED_IS_FREE);
}

#[test]
fn a_repeated_start_that_does_not_begin_anew_belongs_to_an_earlier_period() {
    let late = Periods { repeats_begin_anew: false, ..Periods::default() };
    violates(late, BEGINS_IN_TIME);
}

#[test]
fn a_late_start_of_a_run_without_the_lock_takes_its_period() {
    violates(Periods { only_owners_record: false, ..Periods::default() }, UNUSED_IS_FREE);
}

#[test]
fn a_late_end_of_a_failed_run_hides_a_success() {
    violates(Periods { only_owners_record: false, ..retried() }, NO_RUN_AFTER_SUCCESS);
}

#[test]
fn if_the_clock_is_set_back_an_undone_start_hides_the_run_before_it() {
    let set_back = Periods { no_jump_back: false, ..Periods::default() };
    violates(Periods { requests: &[1, 1, 1], late: 0, ..set_back }, AT_MOST_ONCE);
}

/// The second of three requests arrives after the third one was answered.
#[test]
fn a_late_start_takes_the_next_period_unless_the_highest_number_is_kept() {
    let three = Periods { requests: &[3, 1], ..Periods::default() };
    holds(three.clone(), 140_000);
    violates(Periods { numbers_are_kept: false, ..three }, UNUSED_IS_FREE);
}
