//! The negative controls: each test of a safeguard must fail without that safeguard.

lock_tests::controls! {
    without_grants_are_flushed: "faults::a_crash_loses_no_acquired_lock_although_releases_do_not_wait_for_the_disk"
        without "grants-are-flushed" seeing "is forgotten";
    without_grants_are_flushed_at_a_standby: "failover::no_acquired_lock_is_lost_with_a_synchronous_standby"
        without "grants-are-flushed" seeing "Ok(())";
    without_only_if_free_together: "joined::calls_at_the_same_time_share_statements_and_have_their_own_outcomes"
        without "only-if-free" seeing "a key that is taken";
    without_fence_above_last_together: "joined::calls_at_the_same_time_share_statements_and_have_their_own_outcomes"
        without "fence-above-last" seeing "drawn before";
    without_only_owner_releases_together: "joined::calls_at_the_same_time_share_statements_and_have_their_own_outcomes"
        without "only-owner-releases" seeing "k11: Ok";
    without_only_if_free: "store::conformance_of_fresh_requests::one_of_many_requests_is_granted"
        without "only-if-free" seeing "the number of owners";
    without_only_owner_releases: "store::conformance::only_the_owner_releases"
        without "only-owner-releases" seeing "a key that another owner has";
    without_only_owner_renews: "store::conformance::only_the_owner_renews"
        without "only-owner-renews" seeing "a key that another owner has";
    without_renewals_shorten_nothing: "store::conformance::a_renewal_shortens_nothing"
        without "attempts-do-not-shorten" seeing "a renewal has shortened a lease";
    without_fence_above_last: "store::a_token_is_above_those_of_owners_who_came_and_went_during_the_request"
        without "fence-above-last" seeing " after ";
    without_verified_rows_are_locked: "verify::nobody_gets_a_verified_lock_before_the_transaction_ends"
        without "verified-rows-are-locked" seeing "Ok(())";
}
