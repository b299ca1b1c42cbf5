//! The negative controls: each test of a safeguard must fail without that safeguard.

lock_tests::controls! {
    without_grants_are_flushed: "faults::a_crash_loses_no_acquired_lock_although_releases_do_not_wait_for_the_disk"
        without "grants-are-flushed" seeing "is forgotten";
    without_grants_are_flushed_at_a_standby: "failover::no_acquired_lock_is_lost_with_a_synchronous_standby"
        without "grants-are-flushed" seeing "Ok(())";
    without_releases_are_not_flushed: "failover::a_release_and_an_attempt_that_fails_do_not_wait_for_a_standby"
        without "releases-are-not-flushed" seeing "the release waits for the standby";
    without_releases_are_not_flushed_in_a_crash: "faults::a_release_that_a_crash_forgets_frees_the_key_when_the_lease_ends"
        without "releases-are-not-flushed" seeing "each release was on the disk";
    without_acquires_are_announced: "failover::no_acquired_lock_is_lost_with_a_synchronous_standby"
        without "acquires-are-announced" seeing "undone long before the lease ends";
    without_only_if_free_together: "joined::calls_at_the_same_time_share_statements_and_have_their_own_outcomes"
        without "only-if-free" seeing "a key that is taken";
    without_fence_above_last_together: "joined::calls_at_the_same_time_share_statements_and_have_their_own_outcomes"
        without "fence-above-last" seeing "drawn before";
    without_only_owner_releases_together: "joined::calls_at_the_same_time_share_statements_and_have_their_own_outcomes"
        without "only-owner-releases" seeing "k11: Ok";
    without_joined_rows_are_ordered: "joined::statements_that_share_keys_do_not_wait_for_each_other_in_a_circle"
        without "joined-rows-are-ordered" seeing "wait for each other in a circle";
    without_locked_rows_are_skipped: "faults::a_row_that_another_session_has_locked_costs_no_other_lock"
        without "locked-rows-are-skipped" seeing "another lock is lost";
    without_locked_rows_are_skipped_2: "faults::calls_for_locked_rows_delay_no_other_call"
        without "locked-rows-are-skipped" seeing "delays no other call";
    without_runtimes_are_separate: "faults::a_blocked_runtime_delays_no_calls_of_others"
        without "runtimes-are-separate" seeing "a blocked runtime delays no calls of others";
    without_server_clock: "faults::leases_end_by_the_clock_of_the_server"
        without "server-clock" seeing "are left by the clock of the server";
    without_only_if_free: "store::conformance::one_of_many_requests_is_granted"
        without "only-if-free" seeing "the number of owners";
    without_only_owner_releases: "store::conformance::only_the_owner_releases"
        without "only-owner-releases" seeing "a key that another owner has";
    without_only_owner_renews: "store::conformance::only_the_owner_renews"
        without "only-owner-renews" seeing "a key that another owner has";
    without_renewals_shorten_nothing: "store::conformance::a_renewal_shortens_nothing"
        without "attempts-do-not-shorten" seeing "a renewal has shortened a lease";
    without_attempts_do_not_shorten: "store::conformance::the_second_request_shortens_nothing"
        without "attempts-do-not-shorten" seeing "the second request has shortened a lease";
    without_fence_above_last: "store::a_token_is_above_those_of_owners_who_came_and_went_during_the_request"
        without "fence-above-last" seeing " after ";
    without_raises_are_exclusive: "store::tokens_rise_when_two_owners_raise_them_at_the_same_time"
        without "raises-are-exclusive" seeing " comes after ";
    without_verified_rows_are_locked: "verify::nobody_gets_a_verified_lock_before_the_transaction_ends"
        without "verified-rows-are-locked" seeing "Ok(())";
    without_listeners_are_probed: "pooler::behind_a_pooler_in_transaction_mode_calls_poll"
        without "listeners-are-probed" seeing "notifications are expected from a pooler";
    without_listens_are_undone: "pooler::no_session_of_a_pooler_listens_in_vain"
        without "listens-are-undone" seeing "a session of the pooler listens in vain";
    without_poolers_prepare_nothing: "pooler::nothing_is_prepared_in_the_sessions_of_a_pooler"
        without "poolers-prepare-nothing" seeing "statements are prepared in a session of the pooler";
    without_former_primaries_are_left: "failover::a_former_primary_that_goes_on_is_not_used_again"
        without "former-primaries-are-left" seeing "are those of the former primary";
}
