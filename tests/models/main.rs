//! Exhaustive model checks of the lock protocol.
//!
//! [`protocol`] covers acquisitions with their callers and background threads, one server, and a
//! guarded resource. [`handoffs`] covers hand-offs inside processes and fairness between processes.
//! [`queue`] covers a queue in the store, where a release transfers the lock to the next process, and
//! [`fair`] the claims of fair calls in it.
//! [`sets`] covers calls that lock several keys together,
//! [`modes`] writers that become readers and the reverse,
//! [`permits`] calls for permits of a semaphore, [`periods`] runs that happen once per period, and
//! [`leaders`] the terms and announcements of leaders. [`quorum`] covers votes of three servers. The checker visits every state, and asserts
//! exclusion, the absence of leaks and stale writes, progress, and the end of tenures.
//!
//! The controls show that each safeguard and each assumption is necessary. A control disables one
//! of them, and the checker must find a counterexample.

mod acquisition;
mod assumptions;
mod check;
mod fair;
mod handoffs;
mod leaders;
mod modes;
mod periods;
mod permits;
mod properties;
mod protocol;
mod queue;
mod queue_state;
mod quorum;
mod resource;
mod server;
mod sets;

use crate::assumptions::{Assumptions, Safeguards};
use crate::check::{holds, violates};
use crate::handoffs::{Handoffs, KEY, PROGRESS, TENURES_END};
use crate::properties::{EXCLUSION, NO_LEAK, NO_STALE_WRITE};
use crate::protocol::{Protocol, ProtocolState};
use crate::queue::{FIFO, NOTHING_STAYS, Queue, REACHED};
use crate::server::LEASE;
use crate::sets::{NO_DEADLOCK, Sets};

/// The model of the lock without one of its safeguards.
fn without(drop: impl Fn(&mut Safeguards)) -> Protocol {
    let mut model = Protocol::default();
    drop(&mut model.safeguards);
    model
}

/// The model of the lock without one of the assumptions.
fn unless(drop: impl Fn(&mut Assumptions)) -> Protocol {
    let mut model = Protocol::default();
    drop(&mut model.assumed);
    model
}

/// The model of bodies that write to a resource. Processes can be paused in the middle of a poll,
/// the server can lose its data, and its clock can be set forward.
fn writes_under_faults(drop: impl Fn(&mut Safeguards)) -> Protocol {
    let mut model = Protocol { writes: true, attempts: &[1, 1], faults: false, ..without(drop) };
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
fn exclusion_holds_among_three_acquisitions() {
    holds(Protocol { attempts: &[1, 1, 1], faults: false, ..Protocol::default() }, 300_000);
}

#[test]
fn without_the_check_before_each_poll_two_bodies_run() {
    violates(without(|safeguards| safeguards.check_before_poll = false), EXCLUSION);
}

#[test]
fn a_deadline_counted_from_the_answer_is_too_late() {
    violates(without(|safeguards| safeguards.deadline_from_sending = false), EXCLUSION);
}

#[test]
fn without_a_margin_clock_drift_leads_to_two_holders() {
    violates(without(|safeguards| safeguards.margin = false), EXCLUSION);
}

#[test]
fn a_body_that_outlives_its_release_overlaps_with_the_next_body() {
    violates(without(|safeguards| safeguards.body_ends_before_release = false), EXCLUSION);
}

#[test]
fn a_release_that_does_not_compare_owners_frees_the_lock_of_a_successor() {
    let uncompared = without(|safeguards| safeguards.release_compares = false);
    // Besides the late acquisition and its successor, the counterexample needs a third acquisition.
    violates(Protocol { attempts: &[1, 1, 1], ..uncompared }, EXCLUSION);
}

#[test]
fn a_renewal_that_does_not_compare_owners_takes_the_lock_of_a_successor_for_its_own() {
    violates(without(|safeguards| safeguards.renewal_compares = false), EXCLUSION);
}

#[test]
fn a_renewal_answered_after_the_release_revives_the_hold_unless_its_end_is_final() {
    violates(without(|safeguards| safeguards.ended_is_final = false), EXCLUSION);
}

#[test]
fn an_acquisition_that_takes_a_missing_reply_for_a_grant_shares_the_lock() {
    violates(without(|safeguards| safeguards.unknown_is_not_held = false), EXCLUSION);
}

#[test]
fn with_one_owner_token_for_all_a_second_acquisition_is_granted_the_lock() {
    violates(without(|safeguards| safeguards.fresh_token = false), EXCLUSION);
}

#[test]
fn a_late_retry_does_not_shorten_an_extended_lease() {
    let extends = Protocol { extends: true, attempts: &[3, 1], ..Protocol::default() };
    holds(extends, 400_000);
}

#[test]
fn a_late_retry_that_shortens_an_extended_lease_leads_to_two_holders() {
    let shortens = without(|safeguards| safeguards.retry_never_shortens = false);
    violates(Protocol { extends: true, attempts: &[3, 1], ..shortens }, EXCLUSION);
}

#[test]
fn a_server_that_loses_its_data_grants_a_held_lock() {
    violates(unless(|assumed| assumed.data_is_kept = false), EXCLUSION);
}

#[test]
fn a_server_whose_clock_is_set_forward_grants_a_held_lock() {
    violates(unless(|assumed| assumed.no_jump_forward = false), EXCLUSION);
}

#[test]
fn a_server_whose_clock_gains_more_than_the_margin_grants_a_held_lock() {
    violates(unless(|assumed| assumed.drift_within_margin = false), EXCLUSION);
}

#[test]
fn a_server_whose_clock_is_set_back_only_keeps_the_key_longer() {
    let set_back = unless(|assumed| assumed.no_jump_back = false);
    holds(Protocol { attempts: &[1, 1], ..set_back }, 40_000);
}

#[test]
fn without_the_undo_the_key_of_an_acquisition_that_gave_up_stays() {
    let end = violates(without(|safeguards| safeguards.undo = false), NO_LEAK);
    assert!(ends_with_its_lease(&end));
}

#[test]
fn without_the_second_sweep_a_late_request_takes_the_key_without_a_holder() {
    let end = violates(without(|safeguards| safeguards.second_sweep = false), NO_LEAK);
    assert!(ends_with_its_lease(&end));
}

#[test]
fn an_undo_that_stops_after_freeing_the_key_misses_another_request() {
    let end = violates(without(|safeguards| safeguards.sweep_after_freeing = false), NO_LEAK);
    assert!(ends_with_its_lease(&end));
}

#[test]
fn a_key_taken_by_a_request_after_the_second_sweep_ends_with_its_lease() {
    let end = violates(unless(|assumed| assumed.late_request_meets_sweep = false), NO_LEAK);
    assert!(ends_with_its_lease(&end));
}

#[test]
fn a_renewal_that_recreates_a_key_takes_it_without_a_holder() {
    violates(without(|safeguards| safeguards.renewal_never_recreates = false), NO_LEAK);
}

/// Whether the key expires within a lease. No request is in flight, so no renewal extends the key.
fn ends_with_its_lease(quiet: &ProtocolState) -> bool {
    quiet.server.key.is_some_and(|key| key.left <= LEASE)
}

#[test]
fn no_write_is_stale_if_every_poll_ends_in_time() {
    let unfenced = Protocol {
        writes: true,
        attempts: &[1, 1],
        faults: false,
        ..without(|safeguards| safeguards.fence = false)
    };
    holds(unfenced, 20_000);
}

#[test]
fn a_paused_poll_makes_a_stale_write() {
    let mut unfenced = Protocol {
        writes: true,
        attempts: &[1, 1],
        faults: false,
        ..without(|safeguards| safeguards.fence = false)
    };
    unfenced.assumed.polls_end_in_time = false;
    violates(unfenced, NO_STALE_WRITE);
}

#[test]
fn fencing_prevents_stale_writes_of_paused_processes_on_a_server_that_loses_its_data() {
    holds(writes_under_faults(|_| {}), 200_000);
}

#[test]
fn fencing_tokens_from_a_counter_start_again_on_a_server_that_loses_its_data() {
    violates(writes_under_faults(|safeguards| safeguards.token_from_clock = false), NO_STALE_WRITE);
}

#[test]
fn fencing_tokens_go_back_if_the_data_is_lost_and_the_clock_is_set_back() {
    let mut model = writes_under_faults(|_| {});
    model.assumed.no_jump_back = false;
    violates(model, NO_STALE_WRITE);
}

/// The model of hand-offs and fairness without one of its rules.
fn handoffs_without(drop: impl Fn(&mut Handoffs)) -> Handoffs {
    let mut model = Handoffs::default();
    drop(&mut model);
    model
}

#[test]
fn with_hand_offs_exclusion_holds_and_every_tenure_ends() {
    holds(Handoffs::default(), 10_000);
}

#[test]
fn exclusion_holds_if_two_processes_hand_the_lock_off() {
    holds(Handoffs { tasks: &[2, 2], checks_tenures: false, ..Handoffs::default() }, 100_000);
}

#[test]
fn exclusion_holds_with_hand_offs_among_three_processes() {
    holds(Handoffs { tasks: &[2, 1, 1], checks_tenures: false, ..Handoffs::default() }, 150_000);
}

#[test]
fn one_of_three_processes_may_lose_every_race_for_the_key() {
    violates(Handoffs { tasks: &[1, 1, 1], ..Handoffs::default() }, TENURES_END);
}

#[test]
fn a_guard_of_an_earlier_hold_that_releases_the_lock_leads_to_two_holders() {
    violates(handoffs_without(|model| model.holds_are_numbered = false), handoffs::EXCLUSION);
}

#[test]
fn a_task_that_takes_a_lease_lost_during_the_hand_off_holds_no_key() {
    violates(handoffs_without(|model| model.loss_is_seen = false), KEY);
}

#[test]
fn a_lock_offered_to_a_task_that_gives_up_is_lost_unless_the_hand_off_continues() {
    violates(handoffs_without(|model| model.handoff_continues = false), PROGRESS);
}

#[test]
fn a_tenure_that_does_not_end_starves_other_processes() {
    violates(handoffs_without(|model| model.tenures_end = false), TENURES_END);
}

#[test]
fn a_process_that_does_not_count_waiters_starves_other_processes() {
    violates(handoffs_without(|model| model.counts_waiters = false), TENURES_END);
}

#[test]
fn a_process_that_does_not_yield_takes_the_key_again_and_again() {
    violates(handoffs_without(|model| model.yields = false), TENURES_END);
}

#[test]
fn a_process_that_frees_the_key_for_other_terms_and_does_not_yield_starves_other_processes() {
    violates(handoffs_without(|model| model.yields_before_reacquire = false), TENURES_END);
}

#[test]
fn a_process_that_makes_no_attempt_after_its_subscription_misses_a_release() {
    violates(handoffs_without(|model| model.retries_after_subscribe = false), PROGRESS);
}

#[test]
fn a_woken_process_whose_attempt_comes_late_may_wait_longer() {
    violates(handoffs_without(|model| model.woken_attempts_come_first = false), TENURES_END);
}

/// The model of the queue without one of its rules.
fn queue_without(drop: impl Fn(&mut Queue)) -> Queue {
    let mut model = Queue::default();
    drop(&mut model);
    model
}

#[test]
fn with_a_queue_exclusion_holds_and_every_transfer_ends() {
    holds(Queue::default(), 140_000);
}

#[test]
fn a_queue_serves_those_who_remain_when_clients_crash() {
    holds(Queue { requests: &[1, 1, 1], crashes: true, ..Queue::default() }, 60_000);
}

/// The model of two clients whose requests may arrive late.
fn queue_with_late_requests() -> Queue {
    Queue { requests: &[2, 2], crashes: true, time_outs: true, renews: true, ..Queue::default() }
}

#[test]
fn with_a_queue_late_requests_leave_nothing_behind() {
    holds(queue_with_late_requests(), 40_000);
}

#[test]
fn a_registration_that_arrives_after_its_last_release_may_cost_one_transfer() {
    let late = Queue { late_request_meets_release: false, ..queue_with_late_requests() };
    violates(late, queue::TRANSFERS_END);
}

#[test]
fn a_release_that_is_not_repeated_misses_a_late_registration() {
    violates(Queue { releases_repeat: false, ..queue_with_late_requests() }, NOTHING_STAYS);
}

#[test]
fn a_release_that_keeps_the_place_of_its_token_transfers_the_key_to_the_same_token() {
    violates(Queue { releases_remove_places: false, ..queue_with_late_requests() }, NOTHING_STAYS);
}

#[test]
fn a_waiter_that_gives_up_without_a_release_stays_in_the_queue() {
    violates(queue_without(|model| model.cancelled_calls_release = false), NOTHING_STAYS);
}

#[test]
fn a_deadline_counted_from_the_receipt_of_a_message_is_too_late() {
    violates(queue_without(|model| model.deadline_from_basis = false), queue::EXCLUSION);
}

#[test]
fn a_basis_counted_from_the_receipt_of_an_answer_is_too_late() {
    violates(queue_without(|model| model.basis_from_sending = false), queue::EXCLUSION);
}

#[test]
fn a_basis_counted_from_a_request_in_flight_is_too_late() {
    violates(queue_without(|model| model.basis_is_answered = false), queue::EXCLUSION);
}

#[test]
fn a_deadline_counted_with_the_full_term_is_too_late() {
    violates(queue_without(|model| model.transfer_term_is_read = false), queue::EXCLUSION);
}

#[test]
fn a_message_with_the_ticket_of_an_earlier_place_leads_to_two_holders() {
    let uncompared = queue_without(|model| model.tickets_are_compared = false);
    // The waiter registers, checks and registers again.
    violates(Queue { requests: &[1, 3, 1], ..uncompared }, queue::EXCLUSION);
}

#[test]
fn a_client_that_releases_what_it_does_not_wait_for_may_free_a_lock_that_it_holds() {
    let releases = queue_without(|model| model.other_messages_are_ignored = false);
    violates(Queue { requests: &[1, 3], ..releases }, queue::KEY);
}

#[test]
fn a_transfer_to_a_client_that_is_gone_keeps_the_lock_from_the_next_one() {
    let crashes = Queue { requests: &[1, 1], crashes: true, ..Queue::default() };
    violates(Queue { gone_are_skipped: false, ..crashes }, REACHED);
}

#[test]
fn a_release_that_does_not_look_at_the_queue_lets_others_pass_the_first_waiter() {
    violates(queue_without(|model| model.releases_transfer = false), FIFO);
}

#[test]
fn a_waiter_that_does_not_check_its_place_waits_forever_if_a_message_is_lost() {
    violates(queue_without(|model| model.checks = false), queue::PROGRESS);
}

#[test]
fn waiters_that_only_check_their_places_miss_an_expiry() {
    let unseen = queue_without(|model| model.checks_see_the_key = false);
    violates(Queue { requests: &[1, 1], ..unseen }, queue::PROGRESS);
}

/// Calls that want their keys in different orders, and one that wants a single key.
fn sets() -> Sets {
    let wanted = vec![vec![0, 1], vec![1, 0], vec![2, 1], vec![0, 2], vec![1]];
    Sets { wanted, keys: 3, attempts: 2, is_sorted: true, gives_back: true }
}

#[test]
fn calls_for_several_keys_get_all_of_them_without_deadlocks() {
    for attempts in 0..3 {
        holds(Sets { attempts, ..sets() }, 9_000);
    }
}

#[test]
fn calls_that_take_their_keys_in_different_orders_deadlock() {
    violates(Sets { is_sorted: false, ..sets() }, NO_DEADLOCK);
}

#[test]
fn calls_that_keep_a_key_while_they_wait_for_another_one_deadlock() {
    violates(Sets { gives_back: false, ..sets() }, NO_DEADLOCK);
}
