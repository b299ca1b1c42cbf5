//! The negative controls: each test of a safeguard must fail without that safeguard.

lock_tests::controls! {
    without_only_if_free_during_a_partition: "partitions::a_leader_that_is_cut_off_for_longer_than_the_lease_grants_nothing_twice"
        without "only-if-free" seeing "two have the lock";
    without_tracking: "faults::a_lock_whose_key_is_deleted_is_lost_at_once"
        without "tracking" seeing "the loss is noticed at once";
    without_tracking_of_fixed_leases: "faults::a_fixed_lease_whose_key_is_deleted_is_lost_at_once"
        without "tracking" seeing "the loss is noticed at once";
    without_tracking_of_leases: "faults::all_locks_of_a_lease_that_is_revoked_are_lost_at_once_and_the_next_one_has_another_lease"
        without "tracking" seeing "the loss is noticed at once";
    without_leftovers_are_freed: "inputs::a_release_that_was_refused_is_made_up_for"
        without "leftovers-are-freed" seeing "the key that was left is deleted";
    without_only_if_free: "conformance::single::one_of_many_requests_is_granted"
        without "only-if-free" seeing "the number of owners";
    without_only_owner_releases: "conformance::single::only_the_owner_releases"
        without "only-owner-releases" seeing "a key that";
}
