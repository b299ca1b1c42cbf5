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
        "holding::a_token_is_above_those_of_holders_with_another_majority",
        "fence-is-written-back",
        "a token went back",
    ),
    (
        "claiming::an_answer_that_comes_after_the_lease_is_no_grant",
        "deadline-from-sending",
        "granted after the lease",
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
];

#[test]
fn each_test_of_a_safeguard_fails_without_it() {
    for (test, safeguard, seen) in CONTROLS {
        assert_fails_without(safeguard, &format!("tests::{test}"), seen);
    }
}
