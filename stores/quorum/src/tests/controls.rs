//! The negative controls: each of these tests must fail without its safeguard.

use lock_core::safeguard::assert_fails_without;

/// A test, the safeguard that it needs, and what it says without it.
const CONTROLS: &[(&str, &str, &str)] = &[
    (
        "claiming::no_lock_is_granted_without_a_majority",
        "majority-grants",
        "granted by one of three",
    ),
    (
        "claiming::an_attempt_without_a_majority_is_undone_before_its_answer",
        "votes-are-undone",
        "a vote is left",
    ),
    (
        "claiming::a_store_that_did_not_answer_is_freed_as_well",
        "residual-votes-are-freed",
        "a store still has the key",
    ),
    (
        "claiming::a_late_vote_for_a_lock_that_was_released_is_undone",
        "residual-votes-are-freed",
        "a store still has the key",
    ),
    (
        "holding::a_store_that_hangs_delays_neither_renewals_nor_releases_and_is_freed_later",
        "residual-votes-are-freed",
        "a store still has the key",
    ),
    (
        "holding::a_lock_that_a_majority_renews_gets_the_vote_back_of_a_store_that_lost_it",
        "votes-are-restored",
        "a vote is not restored",
    ),
    (
        "holding::a_claim_for_a_lost_vote_that_is_late_leaves_nothing_after_the_release",
        "residual-votes-are-freed",
        "a store still has the key",
    ),
    (
        "holding::a_lock_that_a_majority_no_longer_has_is_lost_and_its_votes_expire",
        "majority-renews",
        "renewed by one of three",
    ),
    (
        "holding::a_lock_that_a_majority_no_longer_has_is_lost_and_its_votes_expire",
        "lost-votes-expire",
        "freed before the deadline",
    ),
    (
        "holding::a_token_is_above_those_of_holders_with_another_majority",
        "fence-is-written-back",
        "a token went back",
    ),
    (
        "holding::the_messages_about_a_release_wake_those_who_wait_when_a_majority_is_free",
        "wake-ups-are-gathered",
        "woken while two of three stores",
    ),
    (
        "holding::votes_of_a_minority_that_are_undone_wake_nobody",
        "wake-ups-are-gathered",
        "woken by an attempt that has failed",
    ),
    (
        "joining::stores_that_are_not_independent_are_refused",
        "voters-are-distinct",
        "the same server votes twice",
    ),
    (
        "joining::a_store_that_is_not_independent_has_no_vote",
        "voters-are-distinct",
        "one server is a majority",
    ),
    (
        "joining::a_server_that_takes_the_place_of_another_one_votes_after_a_check",
        "new-connections-are-checked",
        "a server has voted twice",
    ),
    (
        "joining::a_store_that_was_refused_votes_when_another_one_has_taken_its_place",
        "voters-are-distinct",
        "one server votes three times",
    ),
    (
        "claiming::an_answer_that_comes_after_the_lease_is_no_grant",
        "deadline-from-sending",
        "granted after the lease",
    ),
    (
        "claiming::a_late_undo_of_an_attempt_does_not_affect_the_next",
        "owner-per-attempt",
        "the undo has released a vote of the next attempt",
    ),
    (
        "claiming::a_claim_that_is_served_after_its_undo_on_the_same_connection_is_undone_again",
        "residual-votes-are-freed",
        "a store still has the key",
    ),
    (
        "claiming::a_late_vote_for_a_claim_that_was_dropped_is_undone",
        "residual-votes-are-freed",
        "a store still has the key",
    ),
    (
        "holding::a_renewal_without_a_majority_is_unknown",
        "majority-renews",
        "renewed by one answer of three",
    ),
    (
        "holding::a_release_without_a_majority_of_answers_is_unknown",
        "majority-renews",
        "released by one answer of three",
    ),
    (
        "holding::the_announcement_of_a_majority_counts",
        "majority-renews",
        "announced at one of three servers",
    ),
    (
        "holding::a_clock_that_is_ahead_at_one_store_does_not_prevent_tokens",
        "lowest-majority-counts",
        "no token by two clocks",
    ),
    (
        "residual::a_shutdown_releases_residual_votes",
        "shutdown-frees-votes",
        "a vote is left by the shutdown",
    ),
    (
        "residual::a_shutdown_releases_the_vote_of_a_claim_without_an_answer_again",
        "shutdown-frees-votes",
        "the late vote is left",
    ),
    (
        "residual::a_shutdown_does_not_release_the_votes_of_a_lost_lock",
        "lost-votes-expire",
        "released before the deadline",
    ),
];

#[test]
fn each_test_of_a_safeguard_fails_without_it() {
    for (test, safeguard, seen) in CONTROLS {
        assert_fails_without(safeguard, &format!("tests::{test}"), seen);
    }
}
