//! The negative controls: each of these tests must fail without its safeguard.

use std::process::Command;

/// Runs a test in a process without a safeguard, and asserts that it fails with output that contains `seen`.
fn assert_fails(test: &str, safeguard: &str, seen: &str) {
    let name = format!("store::quorum::tests::{test}");
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    let output = program.args(["--exact", &name, "--nocapture"]).env("LOCK_WITHOUT", safeguard);
    let output = output.output().expect("a child process");
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(printed.contains("running 1 test"), "there is no test {name}");
    assert!(!output.status.success(), "{name} passes without {safeguard}");
    assert!(printed.contains(seen), "{name} fails for another reason: {printed}");
}

#[test]
fn each_test_of_a_safeguard_fails_without_it() {
    for (test, safeguard, seen) in [
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
    ] {
        assert_fails(test, safeguard, seen);
    }
}
