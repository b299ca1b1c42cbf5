//! What holds for changes of the mode of a hold, and what fails without one of the safeguards.

use super::{ALONE, LOSS_IS_FOUND, Modes, NO_FALSE_LOSS};
use crate::check::{holds, violates};

#[test]
fn a_writer_is_alone_although_modes_change_and_requests_arrive_late() {
    holds(Modes::default(), 80_000);
    holds(Modes { writers: &[true, false], ..Modes::default() }, 85_000);
}

#[test]
fn a_downgrade_that_arrives_after_an_upgrade_lets_readers_in_beside_a_writer() {
    violates(Modes { late_downgrades_count: false, changes: 3, ..Modes::default() }, ALONE);
}

#[test]
fn a_reader_that_is_not_the_only_one_becomes_a_writer_beside_others() {
    violates(Modes { only_readers_upgrade: false, ..Modes::default() }, ALONE);
}

#[test]
fn a_writer_that_waits_for_the_answer_to_its_downgrade_is_not_alone() {
    violates(Modes { reader_before_request: false, ..Modes::default() }, ALONE);
}

#[test]
fn an_upgrade_without_an_answer_that_counts_makes_a_writer_beside_readers() {
    violates(Modes { unknown_is_no_upgrade: false, ..Modes::default() }, ALONE);
}

#[test]
fn an_attempt_that_arrives_after_an_upgrade_lets_readers_in_unless_it_keeps_the_mode() {
    violates(Modes { attempts_change_nothing: false, ..Modes::default() }, ALONE);
}

#[test]
fn a_renewal_finds_an_upgrade_that_the_store_has_lost() {
    let loses = Modes { upgrades_are_kept: false, requests: 1, ..Modes::default() };
    holds(loses.clone(), 35_000);
    violates(Modes { writers_are_verified: false, ..loses }, LOSS_IS_FOUND);
}

#[test]
fn a_renewal_from_before_an_upgrade_ends_the_hold_unless_it_is_ignored() {
    let ends = Modes { earlier_renewals_are_ignored: false, ..Modes::default() };
    violates(Modes { writers: &[true, false], ..ends }, NO_FALSE_LOSS);
}
