//! The negative controls: each test of a safeguard must fail without that safeguard.

lock_tests::controls! {
    without_silent_members_are_left: "faults::no_lock_is_lost_while_the_leader_is_suspended"
        without "silent-members-are-left" seeing "locks are lost while the leader is suspended";
    without_members_need_a_leader: "faults::a_member_without_a_leader_refuses_at_once"
        without "members-need-a-leader" seeing "the member says why";
    without_tracking: "faults::a_lock_whose_key_is_deleted_is_lost_at_once"
        without "tracking" seeing "the loss is noticed at once";
    without_tracking_of_fixed_leases: "faults::a_fixed_lease_whose_key_is_deleted_is_lost_at_once"
        without "tracking" seeing "the loss is noticed at once";
    without_tracking_of_leases: "faults::all_locks_of_a_lease_that_is_revoked_are_lost_at_once_and_the_next_one_has_another_lease"
        without "tracking" seeing "the loss is noticed at once";
    without_keys_are_verified: "faults::a_renewal_notices_that_a_key_is_gone"
        without "keys-are-verified+tracking" seeing "a renewal notices the loss";
    without_reconnect_wakes: "faults::waiting_calls_and_holders_survive_compactions_and_restarts"
        without "reconnect-wakes" seeing "at once after the restart";
    without_leftovers_are_freed: "inputs::a_release_that_was_refused_is_made_up_for"
        without "leftovers-are-freed" seeing "the key that was left is deleted";
    without_only_if_free: "conformance::single::one_of_many_requests_is_granted"
        without "only-if-free" seeing "the number of owners";
    without_only_owner_releases: "conformance::single::only_the_owner_releases"
        without "only-owner-releases" seeing "a key that";
}
