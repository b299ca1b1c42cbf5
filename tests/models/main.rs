//! The lock protocol as a model, checked exhaustively: it keeps its promises under its assumptions,
//! and there is no protection and no assumption that it could do without. Beside it a model of what
//! goes on between processes that pass a lock on inside: [`turns`].
//!
//! Every test of something that was taken away is the control of one that holds: there the checker
//! has to find the counterexample.

mod assumptions;
mod contender;
mod properties;
mod protocol;
mod resource;
mod server;
mod turns;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

use crate::assumptions::{Assumptions, Protections};
use crate::properties::{EXCLUSION, NO_LEAK, NO_STALE_WRITE};
use crate::protocol::{Protocol, State};
use crate::server::LEASE;
use crate::turns::{KEY, NOBODY_IDLES, TURNS, Turns};

/// What the checker can explore.
trait Checked:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync,
        Action: Clone + Debug + PartialEq + Send + Sync,
    > + Send
    + Sync
    + 'static
{
}

impl Checked for Protocol {}
impl Checked for Turns {}

/// Explores every state there is. There are to be more than `floor`, so that a model in which
/// little can happen does not pass for one in which nothing goes wrong.
fn holds(model: impl Checked, floor: usize) {
    let checker = model.checker().spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{states} states, {depth} steps deep");
    checker.assert_properties();
    // With a promise that was kept there is no reason to stop early.
    assert!(checker.is_done());
    assert!(states > floor, "{states} states are fewer than there were");
}

/// Finds a short way to break a promise, and returns where it leads.
fn breaks<M: Checked>(model: M, promise: &'static str) -> M::State {
    let only = HasDiscoveries::AllOf(BTreeSet::from([promise]));
    let checker = model.checker().finish_when(only).spawn_bfs().join();
    let Some(path) = checker.discovery(promise) else {
        panic!("{promise} holds in all of {} states", checker.unique_state_count())
    };
    println!("{promise} is broken by {:?}", path.clone().into_actions());
    path.last_state().clone()
}

/// The lock alone, without one of its protections.
fn without(drop: impl Fn(&mut Protections)) -> Protocol {
    let mut model = Protocol::default();
    drop(&mut model.held);
    model
}

/// The lock alone, in a world without one of the assumptions.
fn unless(drop: impl Fn(&mut Assumptions)) -> Protocol {
    let mut model = Protocol::default();
    drop(&mut model.assumed);
    model
}

/// Bodies that write, in processes that are paused at any point, to a server that forgets its data
/// and whose clock is set forward.
fn writes_in_bad_times(drop: impl Fn(&mut Protections)) -> Protocol {
    let mut model = Protocol { writes: true, tries: &[1, 1], breaks: false, ..without(drop) };
    model.assumed.polls_end_in_time = false;
    model.assumed.data_is_kept = false;
    model.assumed.no_jump_forward = false;
    model
}

#[test]
fn exclusion_holds_and_nothing_leaks_under_the_assumptions() {
    holds(Protocol::default(), 400_000);
}

#[test]
fn exclusion_holds_among_three() {
    holds(Protocol { tries: &[1, 1, 1], breaks: false, ..Protocol::default() }, 300_000);
}

#[test]
fn without_the_check_before_each_poll_two_bodies_run() {
    breaks(without(|held| held.check_before_poll = false), EXCLUSION);
}

#[test]
fn a_deadline_counted_from_the_answer_is_too_late() {
    breaks(without(|held| held.deadline_from_sending = false), EXCLUSION);
}

#[test]
fn without_a_margin_the_drift_of_clocks_makes_two_holders() {
    breaks(without(|held| held.margin = false), EXCLUSION);
}

#[test]
fn a_body_that_outlives_its_release_meets_the_next() {
    breaks(without(|held| held.body_ends_before_release = false), EXCLUSION);
}

#[test]
fn a_release_that_does_not_compare_frees_a_successors_lock() {
    let careless = without(|held| held.release_compares = false);
    // Besides the one that is late and its successor, it takes a third who gets in.
    breaks(Protocol { tries: &[1, 1, 1], ..careless }, EXCLUSION);
}

#[test]
fn a_renewal_that_does_not_compare_believes_in_a_successors_lock() {
    breaks(without(|held| held.renewal_compares = false), EXCLUSION);
}

#[test]
fn a_renewal_answered_after_the_release_must_not_revive_the_hold() {
    breaks(without(|held| held.ended_is_final = false), EXCLUSION);
}

#[test]
fn who_takes_silence_for_a_grant_shares_the_lock() {
    breaks(without(|held| held.unknown_is_not_held = false), EXCLUSION);
}

#[test]
fn with_one_token_for_all_the_second_is_taken_for_the_first() {
    breaks(without(|held| held.fresh_token = false), EXCLUSION);
}

#[test]
fn an_extended_lease_is_safe_from_late_retries() {
    let extends = Protocol { extends: true, tries: &[3, 1], ..Protocol::default() };
    holds(extends, 400_000);
}

#[test]
fn a_late_retry_that_shortens_the_key_lets_another_in_beside_an_extended_lease() {
    let shortens = without(|held| held.retry_never_shortens = false);
    breaks(Protocol { extends: true, tries: &[3, 1], ..shortens }, EXCLUSION);
}

#[test]
fn a_server_that_forgets_gives_the_lock_away() {
    breaks(unless(|assumed| assumed.data_is_kept = false), EXCLUSION);
}

#[test]
fn a_server_whose_clock_is_set_forward_gives_the_lock_away() {
    breaks(unless(|assumed| assumed.no_jump_forward = false), EXCLUSION);
}

#[test]
fn a_server_that_gains_more_than_the_margin_gives_the_lock_away() {
    breaks(unless(|assumed| assumed.drift_within_margin = false), EXCLUSION);
}

#[test]
fn a_server_whose_clock_is_set_back_only_keeps_the_lock_longer() {
    let set_back = unless(|assumed| assumed.no_jump_back = false);
    holds(Protocol { tries: &[1, 1], ..set_back }, 40_000);
}

#[test]
fn without_the_undo_the_key_of_one_that_gave_up_stays() {
    let end = breaks(without(|held| held.undo = false), NO_LEAK);
    assert!(ends_with_its_lease(&end));
}

#[test]
fn without_the_second_sweep_a_late_request_takes_the_key_for_nobody() {
    let end = breaks(without(|held| held.second_sweep = false), NO_LEAK);
    assert!(ends_with_its_lease(&end));
}

#[test]
fn an_undo_that_is_content_with_freeing_once_misses_another_request() {
    let end = breaks(without(|held| held.sweep_after_freeing = false), NO_LEAK);
    assert!(ends_with_its_lease(&end));
}

#[test]
fn what_arrives_after_the_second_sweep_ends_with_its_lease() {
    let end = breaks(unless(|assumed| assumed.late_request_meets_sweep = false), NO_LEAK);
    assert!(ends_with_its_lease(&end));
}

#[test]
fn a_renewal_that_recreates_a_key_takes_it_for_nobody() {
    breaks(without(|held| held.renewal_never_recreates = false), NO_LEAK);
}

/// Nobody is left to extend it, so the time that it has is all that it gets.
fn ends_with_its_lease(quiet: &State) -> bool {
    quiet.server.key.is_some_and(|key| key.left <= LEASE)
}

#[test]
fn no_write_is_stale_while_every_poll_ends_in_time() {
    let unfenced = Protocol {
        writes: true,
        tries: &[1, 1],
        breaks: false,
        ..without(|held| held.fence = false)
    };
    holds(unfenced, 20_000);
}

#[test]
fn a_poll_that_is_paused_writes_late() {
    let mut unfenced = Protocol {
        writes: true,
        tries: &[1, 1],
        breaks: false,
        ..without(|held| held.fence = false)
    };
    unfenced.assumed.polls_end_in_time = false;
    breaks(unfenced, NO_STALE_WRITE);
}

#[test]
fn the_fence_refuses_every_stale_write_of_paused_processes_on_a_server_that_forgets() {
    holds(writes_in_bad_times(|_| {}), 200_000);
}

#[test]
fn fencing_tokens_that_are_merely_counted_start_again_on_a_server_that_forgets() {
    breaks(writes_in_bad_times(|held| held.token_from_clock = false), NO_STALE_WRITE);
}

#[test]
fn fencing_tokens_go_back_where_the_data_and_the_time_are_lost_together() {
    let mut model = writes_in_bad_times(|_| {});
    model.assumed.no_jump_back = false;
    breaks(model, NO_STALE_WRITE);
}

/// Turn-taking without one of its rules.
fn turns_without(drop: impl Fn(&mut Turns)) -> Turns {
    let mut model = Turns::default();
    drop(&mut model);
    model
}

#[test]
fn a_lock_that_is_handed_over_excludes_and_every_process_has_its_turn() {
    holds(Turns::default(), 10_000);
}

#[test]
fn a_lock_that_is_handed_over_excludes_where_both_do_it() {
    holds(Turns { tasks: &[2, 2], is_counted: false, ..Turns::default() }, 100_000);
}

#[test]
fn a_lock_that_is_handed_over_excludes_among_three() {
    holds(Turns { tasks: &[2, 1, 1], is_counted: false, ..Turns::default() }, 150_000);
}

#[test]
fn among_three_one_may_lose_every_race_for_the_key() {
    breaks(Turns { tasks: &[1, 1, 1], ..Turns::default() }, TURNS);
}

#[test]
fn a_guard_of_before_that_acts_lets_another_in_beside_the_holder() {
    breaks(turns_without(|model| model.holds_are_numbered = false), turns::EXCLUSION);
}

#[test]
fn a_lease_that_was_lost_on_its_way_and_is_taken_has_no_key() {
    breaks(turns_without(|model| model.loss_is_seen = false), KEY);
}

#[test]
fn a_lock_on_its_way_to_one_who_gives_up_is_lost_to_all() {
    breaks(turns_without(|model| model.is_passed_on = false), NOBODY_IDLES);
}

#[test]
fn a_turn_that_does_not_end_starves_the_others() {
    breaks(turns_without(|model| model.ends = false), TURNS);
}

#[test]
fn who_does_not_ask_for_others_starves_them() {
    breaks(turns_without(|model| model.asks = false), TURNS);
}

#[test]
fn who_does_not_step_back_takes_the_key_again_and_again() {
    breaks(turns_without(|model| model.steps_back = false), TURNS);
}

#[test]
fn who_frees_the_key_for_another_lease_has_to_step_back_as_well() {
    breaks(turns_without(|model| model.steps_back_anew = false), TURNS);
}

#[test]
fn who_subscribes_and_does_not_look_again_misses_a_release() {
    breaks(turns_without(|model| model.looks_again = false), NOBODY_IDLES);
}

#[test]
fn a_process_that_is_woken_and_comes_late_may_wait_for_longer() {
    breaks(turns_without(|model| model.woken_come_in_time = false), TURNS);
}
