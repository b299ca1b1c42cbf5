//! The negative controls: each test of a safeguard must fail without that safeguard.

lock_tests::controls! {
    without_silent_members_are_left: "faults::no_lock_is_lost_while_the_leader_is_suspended"
        without "silent-members-are-left" seeing "locks are lost while the leader is suspended";
    without_members_need_a_leader: "faults::a_member_without_a_leader_refuses_at_once"
        without "members-need-a-leader" seeing "the member says why";
    without_leaving_members_that_are_cut_off: "partitions::calls_go_on_and_locks_stay_when_the_member_of_their_client_is_cut_off"
        without "members-need-a-leader+silent-members-are-left" seeing "calls go on by another member";
    without_leaving_a_leader_that_is_cut_off: "partitions::a_leader_that_is_cut_off_for_longer_than_the_lease_grants_nothing_twice"
        without "members-need-a-leader+silent-members-are-left" seeing "a client is not served";
    without_only_if_free_during_a_partition: "partitions::a_leader_that_is_cut_off_for_longer_than_the_lease_grants_nothing_twice"
        without "only-if-free" seeing "two have the lock";
    without_returning_to_a_member: "partitions::a_member_that_was_cut_off_is_used_again"
        without "members-need-a-leader+silent-members-are-left" seeing "calls go on by another member";
    without_learning_members: "members::a_lock_stays_while_all_members_of_the_url_are_replaced"
        without "members-are-learned" seeing "calls go on by another member";
    without_ignoring_other_clusters: "members::an_announced_address_that_leads_to_another_cluster_is_not_used"
        without "foreign-nodes-are-ignored" seeing "granted by another cluster";
    without_checking_the_url: "members::members_of_different_clusters_are_a_configuration_error"
        without "foreign-nodes-are-ignored" seeing "two clusters are used as one";
    without_checking_members: "members::a_member_that_answers_later_and_belongs_to_another_cluster_is_not_used"
        without "foreign-nodes-are-ignored" seeing "granted by another cluster";
    without_certificates_are_reread: "inputs::a_client_shows_its_certificate_and_reads_it_again"
        without "certificates-are-reread" seeing "the certificate is not read again";
    without_runtimes_are_separate: "faults::a_blocked_runtime_delays_no_calls_of_others"
        without "runtimes-are-separate" seeing "a blocked runtime delays no calls of others";
    without_tracking: "faults::a_lock_whose_key_is_deleted_is_lost_at_once"
        without "tracking" seeing "the loss is noticed at once";
    without_tracking_of_fixed_leases: "faults::a_fixed_lease_whose_key_is_deleted_is_lost_at_once"
        without "tracking" seeing "the loss is noticed at once";
    without_tracking_of_leases: "faults::all_locks_of_a_lease_that_is_revoked_are_lost_at_once_and_the_next_one_has_another_lease"
        without "tracking" seeing "the loss is noticed at once";
    without_keys_are_verified: "faults::a_renewal_notices_that_a_key_is_gone"
        without "keys-are-verified+tracking" seeing "a renewal notices the loss";
    without_reconnect_wakes: "faults::waiting_calls_and_holders_survive_compactions_and_restarts"
        without "reconnect-wakes" seeing "after the restart";
    without_leftovers_are_freed: "inputs::a_release_that_was_refused_is_made_up_for"
        without "leftovers-are-freed" seeing "the key that was left is deleted";
    without_checking_joined_parts: "joined::a_call_that_is_refused_refuses_no_other_one"
        without "joined-parts-are-checked" seeing "granted without permission";
    without_marking_waiters: "joined::a_release_knows_whether_others_wait"
        without "waiters-are-marked" seeing "the key and its mark";
    without_only_if_free: "conformance::single::one_of_many_requests_is_granted"
        without "only-if-free" seeing "the number of owners";
    without_leases_are_compared: "conformance::single::renewals_at_the_same_time_shorten_nothing"
        without "leases-are-compared" seeing "a renewal has shortened another one";
    without_only_owner_releases: "conformance::single::only_the_owner_releases"
        without "only-owner-releases" seeing "a key that";
}
