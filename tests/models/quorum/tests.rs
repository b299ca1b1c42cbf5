//! What holds for the votes of a quorum, and what fails without one of the rules.

use super::{ONE_HOLDER, QuorumModel, VOTES_FREED};
use crate::check::{holds, violates};

fn without(drop: impl Fn(&mut QuorumModel)) -> QuorumModel {
    let mut model = QuorumModel::default();
    drop(&mut model);
    model
}

#[test]
fn a_majority_has_one_holder_and_no_vote_is_left() {
    holds(QuorumModel { ticks: 3, ..QuorumModel::default() }, 10_000);
}

#[test]
fn a_majority_has_one_holder_and_no_vote_is_left_by_earlier_attempts() {
    holds(QuorumModel { attempts: vec![2, 1], ticks: 0, ..QuorumModel::default() }, 10_000);
}

#[test]
fn a_majority_has_one_holder_although_a_server_loses_its_data() {
    holds(QuorumModel { restarts: 1, ..QuorumModel::default() }, 50_000);
}

#[test]
fn a_majority_has_one_holder_although_holds_are_renewed() {
    holds(QuorumModel { renewals: vec![1, 1], ticks: 0, ..QuorumModel::default() }, 10_000);
}

#[test]
fn a_majority_has_one_holder_although_time_passes_during_a_renewal() {
    holds(QuorumModel { renewals: vec![1, 0], ticks: 3, ..QuorumModel::default() }, 100_000);
}

/// A client renews its hold twice, and a server restarts.
fn restoring() -> QuorumModel {
    QuorumModel { renewals: vec![2, 0], restarts: 1, ticks: 3, ..QuorumModel::default() }
}

#[test]
fn a_majority_has_one_holder_although_holds_get_votes_back() {
    holds(restoring(), 100_000);
}

#[test]
fn a_claim_for_a_vote_to_a_server_that_has_just_restarted_leads_to_two_holders() {
    violates(QuorumModel { waits_after_restart: false, ..restoring() }, ONE_HOLDER);
}

#[test]
fn a_claim_for_a_vote_that_arrives_after_the_release_leaves_it() {
    violates(QuorumModel { ticks: 0, repeats_undo: false, ..restoring() }, VOTES_FREED);
}

#[test]
fn a_renewal_by_a_minority_leads_to_two_holders() {
    let model = without(|model| model.renewal_majority = 1);
    violates(QuorumModel { renewals: vec![1, 0], ..model }, ONE_HOLDER);
}

#[test]
fn a_renewed_lease_that_counts_from_the_last_answer_leads_to_two_holders() {
    let model = without(|model| model.renewed_from_sending = false);
    violates(QuorumModel { renewals: vec![1, 0], ..model }, ONE_HOLDER);
}

#[test]
fn with_grants_by_a_minority_there_are_two_holders() {
    violates(without(|model| model.majority = 1), ONE_HOLDER);
}

#[test]
fn a_server_that_votes_at_once_after_a_restart_leads_to_two_holders() {
    let early = without(|model| model.waits_after_restart = false);
    violates(QuorumModel { restarts: 1, ..early }, ONE_HOLDER);
}

/// The assumption of the algorithm. What breaks it: `FLUSHALL`, an eviction, and a clock that is set forward.
#[test]
fn a_vote_that_is_lost_without_a_restart_leads_to_two_holders() {
    violates(QuorumModel { losses: 1, ..QuorumModel::default() }, ONE_HOLDER);
}

#[test]
fn a_lease_that_counts_from_the_last_answer_leads_to_two_holders() {
    violates(without(|model| model.from_sending = false), ONE_HOLDER);
}

#[test]
fn with_one_owner_for_all_attempts_a_late_undo_leads_to_two_holders() {
    let one_owner = without(|model| model.owner_per_attempt = false);
    violates(QuorumModel { attempts: vec![2, 1], ticks: 0, ..one_owner }, ONE_HOLDER);
}

#[test]
fn an_attempt_that_is_not_undone_leaves_votes() {
    let model = without(|model| model.undoes = false);
    violates(QuorumModel { ticks: 0, ..model }, VOTES_FREED);
}

#[test]
fn an_undo_at_the_servers_that_have_answered_alone_leaves_votes() {
    let model = without(|model| model.undoes_unanswered = false);
    violates(QuorumModel { ticks: 0, ..model }, VOTES_FREED);
}

#[test]
fn an_undo_that_is_not_repeated_leaves_votes() {
    let model = without(|model| model.repeats_undo = false);
    violates(QuorumModel { ticks: 0, ..model }, VOTES_FREED);
}

#[test]
fn a_renewal_that_creates_a_lock_leaves_votes() {
    let recreates = without(|model| model.recreates = true);
    violates(QuorumModel { renewals: vec![1, 1], ticks: 0, ..recreates }, VOTES_FREED);
}
