//! What holds for the turns of readers and writers, and what fails without one of the rules.

use super::{
    CHECKS_HELP, NOTHING_REMAINS, READERS_WAIT_FOR_ONE, REASON, Turns, WRITERS_ARE_NOT_OVERTAKEN,
};
use crate::check::{holds, violates};

#[test]
fn readers_and_writers_take_turns() {
    holds(Turns { times: 2, ..Turns::default() }, 2_000);
    holds(
        Turns { writers: vec![false, false, false, true, true, true], ..Turns::default() },
        8_000,
    );
}

#[test]
fn readers_and_writers_take_turns_although_modes_change_and_calls_crash() {
    let faults = Turns { changes: true, faults: true, ..Turns::default() };
    holds(Turns { writers: vec![false, false, true], times: 2, ..faults.clone() }, 35_000);
    holds(faults, 70_000);
}

#[test]
fn without_a_turn_after_each_writer_a_reader_waits_for_several_writers() {
    let writers = vec![false, true, true, true];
    violates(Turns { writers, after_writers: false, ..Turns::default() }, READERS_WAIT_FOR_ONE);
}

#[test]
fn readers_that_do_not_wait_overtake_a_writer() {
    violates(Turns { readers_wait: false, ..Turns::default() }, WRITERS_ARE_NOT_OVERTAKEN);
}

#[test]
fn if_giving_up_gives_nobody_the_lock_a_reader_waits_without_a_reason() {
    violates(Turns { giving_up_settles: false, ..Turns::default() }, REASON);
}

#[test]
fn if_a_downgrade_gives_nobody_the_lock_a_reader_waits_without_a_reason() {
    violates(Turns { downgrades_settle: false, changes: true, ..Turns::default() }, REASON);
}

#[test]
fn a_reader_that_becomes_a_writer_while_others_wait_overtakes_them() {
    let unseen = Turns { upgrades_see_queue: false, changes: true, ..Turns::default() };
    violates(unseen, WRITERS_ARE_NOT_OVERTAKEN);
}

#[test]
fn if_checks_do_not_see_the_end_of_a_lease_a_call_waits_forever() {
    violates(Turns { checks_see_ends: false, faults: true, ..Turns::default() }, CHECKS_HELP);
}

#[test]
fn if_checks_do_not_see_that_a_writer_is_gone_a_reader_waits_for_it() {
    violates(Turns { checks_see_gone: false, faults: true, ..Turns::default() }, CHECKS_HELP);
}

#[test]
fn a_release_of_a_read_write_lock_that_is_not_repeated_misses_a_late_request() {
    violates(Turns { releases_repeat: false, faults: true, ..Turns::default() }, NOTHING_REMAINS);
}
