//! The negative controls: each test of a safeguard must fail without that safeguard.

lock_tests::controls! {
    replicas_without_grants_are_acknowledged: "topologies::replicas::a_grant_without_its_replicas_is_undone_and_delays_no_other_lock"
        without "grants-are-acknowledged" seeing "granted without the acknowledgement";
    replicas_without_grants_are_acknowledged_of_any_kind: "topologies::replicas::a_lock_of_any_kind_is_not_granted_without_its_replicas"
        without "grants-are-acknowledged" seeing "granted without the acknowledgement";
    replicas_without_grants_are_acknowledged_of_writers: "topologies::replicas::a_reader_does_not_become_a_writer_without_its_replicas"
        without "grants-are-acknowledged" seeing "granted without the acknowledgement";
    replicas_without_undo: "topologies::replicas::a_grant_without_its_replicas_is_undone_and_delays_no_other_lock"
        without "undo" seeing "k is undone";
    replicas_without_renewals_are_acknowledged: "topologies::replicas::a_renewal_without_its_replicas_does_not_count"
        without "renewals-are-acknowledged" seeing "no renewal counts";
    replicas_without_renewals_are_acknowledged_2: "topologies::replicas::a_nested_lock_that_requires_replicas_waits_for_them"
        without "renewals-are-acknowledged" seeing "granted without the acknowledgement";
    replicas_without_unknown_is_not_held: "topologies::replicas::a_wait_for_replicas_that_is_interrupted_grants_nothing"
        without "unknown-is-not-held" seeing "granted after";
    replicas_without_one_server_acknowledges: "topologies::replicas::an_acknowledgement_over_a_later_connection_does_not_count"
        without "one-server-acknowledges" seeing "a later connection has acknowledged it";
    replicas_without_one_server_acknowledges_2: "topologies::replicas::each_node_of_a_cluster_has_replicas_of_its_own"
        without "one-server-acknowledges" seeing "granted without the acknowledgement";
    replicas_without_grants_are_acknowledged_2: "topologies::replicas::a_lock_that_replicas_have_acknowledged_survives_the_failover_to_one_of_them"
        without "grants-are-acknowledged" seeing "granted without the acknowledgement";
    replicas_without_grants_are_acknowledged_3: "topologies::replicas::no_grant_or_renewal_of_a_master_counts_that_was_suspended_during_its_failover"
        without "grants-are-acknowledged" seeing "granted by a master that was replaced";
    replicas_without_renewals_are_acknowledged_3: "topologies::replicas::no_grant_or_renewal_of_a_master_counts_that_was_suspended_during_its_failover"
        without "renewals-are-acknowledged" seeing "renewed by a master that was replaced";
    replicas_without_grants_are_acknowledged_4: "topologies::replicas::each_node_of_a_cluster_has_replicas_of_its_own"
        without "grants-are-acknowledged" seeing "granted without the acknowledgement";
    partitions_without_grants_are_acknowledged: "topologies::partitions::no_grant_of_a_master_that_is_cut_off_counts_if_all_replicas_are_required"
        without "grants-are-acknowledged" seeing "granted by a master that is cut off";
    partitions_without_renewals_are_acknowledged: "topologies::partitions::no_grant_of_a_master_that_is_cut_off_counts_if_a_replica_is_required"
        without "renewals-are-acknowledged" seeing "violations";
    queue_without_unreachable_are_passed_over: "queue::ten_thousand_dead_claims_delay_a_release_and_the_next_claim_only_a_little"
        without "unreachable-are-passed-over" seeing "passed over";
    queue_without_safety_poll: "queue::a_lost_message_costs_one_check"
        without "safety-poll" seeing "the lock is found by a check";
    queue_without_transfers_count_from_confirmation: "queue::a_message_that_is_late_does_not_count"
        without "transfers-count-from-confirmation" seeing "granted although another client has the lock";
    queue_without_tickets_are_compared: "queue::a_message_about_an_earlier_place_does_not_count"
        without "tickets-are-compared" seeing "granted although another client has the lock";
    tracking_without_tracking: "tracking::a_lock_whose_key_is_deleted_is_lost_at_once"
        without "tracking" seeing "the loss is noticed at once";
    tracking_without_tracking_2: "tracking::a_lock_that_another_client_takes_by_force_is_lost_at_once"
        without "tracking" seeing "the loss is noticed at once";
    tracking_without_tracking_3: "tracking::a_fixed_lease_whose_key_is_deleted_is_lost_at_once"
        without "tracking" seeing "the loss is noticed at once";
    tracking_without_tracking_4: "tracking::all_locks_are_lost_at_once_when_all_keys_are_deleted"
        without "tracking" seeing "the loss is noticed at once";
    tracking_without_tracking_5: "tracking::a_release_without_a_message_wakes_the_first_claim_at_once"
        without "tracking" seeing "the call is woken at once";
    tracking_without_tracking_fair: "tracking::a_release_without_a_message_wakes_the_first_of_several_fair_calls_at_once"
        without "tracking" seeing "the call is woken at once";
    tracking_without_tracking_6: "tracking::a_lock_that_expires_early_wakes_the_first_claim_at_once"
        without "tracking" seeing "the call is woken at once";
    tracking_without_tracking_7: "tracking::changes_during_a_lost_connection_are_noticed"
        without "tracking" seeing "the loss is noticed at once";
    sets_without_only_if_free: "sets::random_sets_exclude_each_other_although_answers_and_connections_are_lost"
        without "only-if-free" seeing "two calls hold a lock";
    sets_without_only_if_free_2: "sets::the_locks_of_a_process_that_is_killed_are_free_after_its_lease"
        without "only-if-free" seeing "waits for the killed process";
    sets_without_release_on_drop: "sets::a_key_of_another_slot_that_cannot_be_locked_keeps_no_other_key"
        without "release-on-drop" seeing "kind: ThisTask";
    sets_without_undo: "sets::a_call_for_several_locks_dropped_at_any_time_leaves_nothing_on_a_slow_server"
        without "undo" seeing "a key still exists";
    sets_without_undo_2: "sets::a_call_for_several_locks_dropped_at_any_time_leaves_nothing_if_answers_are_lost"
        without "undo" seeing "a key still exists";
    sets_without_undo_3: "sets::a_lost_answer_to_a_request_for_several_locks_grants_nothing_and_is_undone"
        without "undo" seeing "soon: TooLate";
    leadership_without_check_before_poll: "leadership::there_is_never_more_than_one_leader_although_leaders_are_killed_and_suspended"
        without "check-before-poll" seeing "violations";
    leadership_without_check_before_poll_2: "leadership::a_leader_that_cannot_reach_the_server_is_replaced_after_its_body_was_dropped"
        without "check-before-poll" seeing "was dropped before";
    periodic_without_runs_count_from_their_start: "periodic::a_period_never_has_two_runs_although_processes_are_killed"
        without "runs-count-from-their-start" seeing "two runs in one period";
    periodic_without_release_on_drop: "periodic::a_call_that_is_dropped_at_the_start_or_the_end_frees_the_lock"
        without "release-on-drop" seeing "left after";
    replicas_without_grants_are_acknowledged_5: "topologies::replicas::the_success_of_a_run_that_may_be_repeated_has_to_be_acknowledged"
        without "grants-are-acknowledged" seeing "recorded without the acknowledgement";
    linger_without_tracking: "linger::another_process_that_begins_to_wait_gets_the_lock_at_once"
        without "tracking" seeing "the lock is passed on at once";
    linger_without_tracking_2: "linger::a_process_that_waits_already_gets_the_lock_at_once"
        without "tracking" seeing "the lock is passed on at once";
    quorum_without_residual_votes_are_freed: "topologies::quorum::servers::nothing_is_left_at_servers_that_did_not_answer"
        without "residual-votes-are-freed+undo" seeing "the votes are left";
    quorum_without_residual_votes_are_freed_2: "topologies::quorum::servers::a_late_vote_is_freed_although_the_lock_was_released_before"
        without "residual-votes-are-freed" seeing "the late vote is left";
    quorum_without_undo: "topologies::quorum::servers::a_call_dropped_at_any_time_leaves_nothing"
        without "undo" seeing "left at";
    quorum_without_quarantine: "topologies::quorum::restarts::a_server_that_has_restarted_does_not_vote_until_its_locks_have_ended"
        without "quarantine" seeing "there are two holders";
    quorum_without_quarantine_2: "topologies::quorum::restarts::new_servers_vote_after_a_lease_and_have_a_record_of_it"
        without "quarantine" seeing "a new server votes at once";
    quorum_without_majority_renews: "topologies::quorum::restarts::a_lock_survives_the_restart_of_a_minority_and_is_lost_with_the_majority"
        without "majority-renews" seeing "held by one of three servers";
    quorum_without_fence_is_written_back: "topologies::quorum::restarts::tokens_rise_although_the_clock_of_a_server_is_ahead"
        without "fence-is-written-back" seeing "a token went back";
    quorum_without_majority_grants: "topologies::quorum::servers::two_or_three_of_three_servers_down_are_an_outage"
        without "majority-grants" seeing "LockGuard";
    readiness_without_quarantine: "readiness::a_server_in_quarantine_is_not_ready"
        without "quarantine" seeing "ready after";
    quarantine_without_quarantine: "quarantine::a_server_that_has_lost_its_data_grants_nothing_until_its_locks_have_ended"
        without "quarantine" seeing "after the restart";
    quarantine_without_quarantine_2: "quarantine::a_promoted_replica_grants_nothing_until_the_locks_of_its_predecessor_have_ended"
        without "quarantine" seeing "the promoted replica has no quarantine";
    quarantine_without_quarantine_3: "quarantine::the_nodes_of_a_cluster_have_separate_quarantines"
        without "quarantine" seeing "after the failover";
    quarantine_without_quarantine_4: "quarantine::a_node_that_a_redirection_has_named_has_its_quarantine"
        without "quarantine" seeing "after the failover";
    quarantine_without_quarantine_5: "quarantine::a_server_that_was_a_replica_meanwhile_has_a_new_quarantine"
        without "quarantine" seeing "after the promotion";
    sentinel_without_holds_are_verified: "topologies::sentinel::a_lock_that_the_promoted_replica_does_not_have_is_lost_at_once"
        without "holds-are-verified+tracking" seeing "the loss is noticed at once";
    sentinel_without_renewal_never_recreates_of_all_kinds: "topologies::sentinel::locks_of_all_kinds_that_the_promoted_replica_does_not_have_are_lost_at_once"
        without "renewal-never-recreates" seeing "is lost at once";
    sentinel_without_renewal_never_recreates: "topologies::sentinel::a_lock_that_the_promoted_replica_does_not_have_is_lost_at_once"
        without "renewal-never-recreates" seeing "the loss is noticed at once";
    cluster_without_unavailable_is_not_busy: "topologies::cluster::nodes::a_cluster_that_is_down_in_part_is_unavailable_and_waited_for"
        without "unavailable-is-not-busy" seeing "Busy";
    cluster_without_renewal_never_recreates: "topologies::cluster::failovers::a_lock_that_the_promoted_replica_does_not_have_is_lost_at_once"
        without "renewal-never-recreates" seeing "the loss is noticed at once";
    processes_without_only_if_free: "processes::the_lock_of_a_killed_process_is_free_when_its_lease_ends"
        without "only-if-free" seeing "it was killed while it held the lock";
    processes_without_check_before_poll: "processes::a_process_suspended_past_its_lease_does_not_resume_its_body"
        without "check-before-poll" seeing "at once: TooLate";
    processes_without_renewal: "processes::a_process_suspended_for_less_than_its_lease_keeps_its_lock"
        without "renewal" seeing "left == right";
    background_releases_without_only_if_free: "background_releases::locks_exclude_each_other_while_releases_are_on_their_way"
        without "only-if-free" seeing "violations";
    background_releases_without_release_on_drop: "background_releases::a_release_whose_request_or_answer_is_lost_is_repeated"
        without "release-on-drop" seeing "before the end of the lease";
    background_releases_without_release_on_drop_2: "background_releases::a_release_outlives_the_runtime_of_its_call_and_a_shutdown_waits_for_it"
        without "release-on-drop" seeing "and the lock is free";
    bodies_without_background_thread: "bodies::a_body_that_blocks_its_thread_for_three_leases_loses_no_lock"
        without "background-thread" seeing "left == right";
    read_write_without_expiry: "read_write::a_killed_reader_leaves_at_the_end_of_its_lease_and_keeps_nobody_else"
        without "expiry" seeing "its turn";
    read_write_without_unreachable_are_passed_over: "read_write::a_killed_writer_that_waited_holds_no_reader_back"
        without "unreachable-are-passed-over" seeing "its turn";
    read_write_without_readers_wait_for_writers: "read_write::neither_readers_nor_writers_starve"
        without "readers-wait-for-writers" seeing "the other side lets it in";
    read_write_without_unpolled_calls_do_not_block: "read_write::readers_that_are_not_polled_block_no_other_readers"
        without "unpolled-calls-do-not-block" seeing "others get the lock";
    read_write_without_late_downgrades_count: "read_write::a_downgrade_that_arrives_late_makes_no_reader_of_a_writer"
        without "late-downgrades-count" seeing "a reader beside a writer";
    read_write_without_unpolled_calls_do_not_block_2: "read_write::a_call_that_is_not_polled_does_not_block_the_other_side_of_its_process"
        without "unpolled-calls-do-not-block" seeing "its turn";
    read_write_without_undo: "read_write::requests_for_a_read_write_lock_are_repeated_or_undone"
        without "undo" seeing "undone";
    read_write_without_one_owner_id: "read_write::requests_for_a_read_write_lock_are_repeated_or_undone"
        without "one-owner-id" seeing "one hold";
    read_write_without_release_on_drop: "read_write::readers_and_writers_that_end_at_any_time_leave_nothing"
        without "release-on-drop" seeing "left after";
    read_write_without_only_if_free: "read_write::readers_and_writers_exclude_each_other_while_processes_die"
        without "only-if-free" seeing "violations";
    semaphore_without_expiry: "semaphore::permits_of_a_killed_holder_end_with_its_own_lease"
        without "expiry" seeing "its turn";
    semaphore_without_unreachable_are_passed_over: "semaphore::a_killed_process_that_waited_for_many_permits_holds_nobody_back"
        without "unreachable-are-passed-over" seeing "its turn";
    semaphore_without_permits_in_order: "semaphore::tasks_with_few_permits_do_not_starve_a_call_for_all_of_them"
        without "permits-in-order" seeing "a large call has its turn";
    semaphore_without_undo: "semaphore::requests_for_permits_are_repeated_or_undone"
        without "undo" seeing "undone";
    semaphore_without_unpolled_calls_do_not_block: "semaphore::a_call_that_is_not_polled_does_not_block_the_others_of_its_process"
        without "unpolled-calls-do-not-block" seeing "others get the permit";
    semaphore_without_unpolled_calls_do_not_block_2: "semaphore::a_call_that_is_not_polled_keeps_no_permit_from_other_processes"
        without "unpolled-calls-do-not-block" seeing "other processes get the permit";
    semaphore_without_handoff_continues: "semaphore::a_permit_that_is_passed_on_to_a_dropped_call_goes_to_the_next_one"
        without "hand-off-continues" seeing "its turn";
    semaphore_without_release_on_drop: "semaphore::holders_of_permits_that_end_at_any_time_leave_nothing"
        without "release-on-drop" seeing "left after";
    semaphore_without_only_if_free: "semaphore::permits_are_within_the_limit_while_processes_die"
        without "only-if-free" seeing "violations";
    server_without_renewal_never_recreates: "server::a_server_restart_without_persistence_ends_the_hold" without "renewal-never-recreates" seeing "by its next renewal";
    server_without_check_before_poll: "server::an_unreachable_server_ends_the_hold_at_its_deadline"
        without "check-before-poll" seeing "at its deadline";
    server_without_unknown_is_not_held: "server::an_unreachable_server_ends_the_hold_at_its_deadline"
        without "unknown-is-not-held" seeing "an unreachable server is not busy";
    server_without_deadline_from_sending: "server::an_answer_that_arrives_after_the_lease_is_not_a_grant"
        without "deadline-from-sending" seeing "the lease had already expired";
    server_without_renewal_never_recreates_2: "server::a_holder_learns_of_its_loss_after_the_server_clock_is_set_forward"
        without "renewal-never-recreates" seeing "by its next renewal";
    server_without_fence_above_last: "server::waiters_get_the_lock_and_tokens_rise_after_the_server_clock_is_set_back"
        without "fence-above-last" seeing " after ";
    simulated_requests_without_one_owner_id: "simulated::requests::an_acquisition_whose_answer_was_lost_does_not_wait_for_itself" without "one-owner-id" seeing "the retry finds its own token";
    simulated_requests_without_attempts_do_not_shorten: "simulated::requests::a_late_attempt_does_not_shorten_the_lease"
        without "attempts-do-not-shorten" seeing "shortened: ";
    simulated_requests_without_only_owner_releases: "simulated::requests::a_late_release_does_not_free_the_key_of_a_successor"
        without "only-owner-releases" seeing "the key belongs to the successor";
    simulated_requests_without_undo: "simulated::requests::a_request_that_arrives_after_its_caller_gave_up_is_undone" without "undo" seeing "not undone: ";
    simulated_requests_without_expiry: "simulated::requests::the_key_of_a_request_that_arrives_very_late_expires_with_its_lease" without "expiry" seeing "it expires";
    cancellation_without_release_on_drop: "cancellation::a_call_dropped_at_any_poll_leaves_nothing_on_the_memory_store"
        without "release-on-drop" seeing "the key still exists";
    cancellation_without_undo: "cancellation::a_call_dropped_at_any_poll_leaves_nothing_on_a_live_server"
        without "undo" seeing "the key still exists";
    cancellation_without_release_on_drop_2: "cancellation::a_call_dropped_at_any_poll_leaves_nothing_on_a_live_server"
        without "release-on-drop" seeing "the key still exists";
    simulated_cancellation_without_undo_2: "simulated::cancellation::a_call_dropped_at_any_poll_leaves_nothing_on_a_slow_server"
        without "undo" seeing "the key still exists";
    simulated_cancellation_without_undo_3: "simulated::cancellation::a_call_dropped_at_any_poll_leaves_nothing_on_a_server_whose_answers_are_lost"
        without "undo" seeing "the key still exists";
    simulated_cancellation_without_expiry: "simulated::cancellation::a_call_dropped_at_any_poll_leaves_nothing_on_an_unreachable_server"
        without "expiry" seeing "the key still exists";
    // Where something is left or lost, the order of the requests decides which check of a run fails first.
    random_without_check_before_poll: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "check-before-poll" seeing "too many bodies hold";
    random_without_deadline_from_sending: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "deadline-from-sending" seeing "too many bodies hold";
    random_without_unknown_is_not_held: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "unknown-is-not-held" seeing "too many bodies hold";
    random_without_undo: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "undo" seeing "repeats this run";
    random_without_only_if_free: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "only-if-free" seeing "too many bodies hold";
    random_without_expiry: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "expiry" seeing "repeats this run";
    random_without_only_owner_releases: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "only-owner-releases" seeing "too many bodies hold";
    random_without_renewal_never_recreates: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "renewal-never-recreates" seeing "repeats this run";
    random_without_one_owner_id: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "one-owner-id" seeing "repeats this run";
    random_without_release_on_drop: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "release-on-drop" seeing "repeats this run";
    random_without_release_continues: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "release-continues" seeing "repeats this run";
    random_without_transfers_count_from_confirmation: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "transfers-count-from-confirmation" seeing "too many bodies hold";
    random_without_quarantine: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "quarantine" seeing "too many bodies hold";
    random_without_hand_off_keeps_deadline: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "hand-off-keeps-deadline" seeing "too many bodies hold";
    random_without_renewal: "simulated::random::random_faults_neither_break_nor_leave_a_lock"
        without "renewal" seeing "repeats this run";
    callers_without_key_outlives_body: "callers::after_a_max_hold_the_key_is_free_only_after_the_destructors_of_the_body"
        without "key-outlives-body" seeing "before the destructor";
    callers_without_key_outlives_body_2: "callers::a_body_stuck_past_its_max_hold_keeps_the_key_only_until_the_lease_ends"
        without "key-outlives-body" seeing "not at the maximum";
    holders_without_check_before_poll: "holders::a_holder_of_any_kind_that_cannot_reach_the_server_ends_before_the_next_one"
        without "check-before-poll" seeing "outlived their locks: Plain Fair Reader Writer Permits Set Leader Run";
    holders_without_check_before_poll_2: "holders::a_holder_of_any_kind_that_was_suspended_past_its_lease_does_not_continue"
        without "check-before-poll" seeing "continued: Plain Fair Reader Writer Permits Set Leader Run";
    holders_without_renewal_never_recreates: "holders::a_holder_of_any_kind_ends_if_the_server_has_lost_its_data"
        without "renewal-never-recreates" seeing "not lost: Plain Fair Reader Writer Permits Set Leader Run";
    fair_without_unreachable_are_passed_over: "fair::the_calls_of_a_killed_process_are_passed_over"
        without "unreachable-are-passed-over" seeing "passed over";
    fair_without_unpolled_calls_do_not_block: "fair::calls_that_are_not_polled_delay_the_others_only_briefly"
        without "unpolled-calls-do-not-block" seeing "the notifier thread polls them";
    fair_without_unpolled_calls_do_not_block_2: "fair::calls_on_a_runtime_that_is_blocked_leave_the_queue"
        without "unpolled-calls-do-not-block" seeing "claims of a blocked runtime";
    unpolled_without_unpolled_calls_do_not_block: "unpolled::an_unpolled_call_with_a_request_in_flight_does_not_block_other_calls"
        without "unpolled-calls-do-not-block" seeing "the notifier thread polls it instead";
    unpolled_without_unpolled_calls_do_not_block_2: "unpolled::an_unpolled_call_that_waits_for_another_process_does_not_block_other_calls"
        without "unpolled-calls-do-not-block" seeing "the notifier thread polls it instead";
    unpolled_without_unpolled_calls_do_not_block_3: "unpolled::an_unpolled_release_does_not_block_other_calls"
        without "unpolled-calls-do-not-block" seeing "the notifier thread polls it instead";
    unpolled_without_unpolled_calls_do_not_block_4: "unpolled::a_call_on_a_stalled_runtime_is_undone"
        without "unpolled-calls-do-not-block" seeing "the call is given up";
    unpolled_without_unpolled_calls_do_not_block_5: "unpolled::a_shutdown_does_not_wait_for_unpolled_calls"
        without "unpolled-calls-do-not-block" seeing "the calls are completed";
    unpolled_without_unpolled_calls_do_not_block_6: "unpolled::a_lock_granted_to_an_unpolled_call_is_released"
        without "unpolled-calls-do-not-block" seeing "the notifier thread polls it instead";
    unpolled_without_unpolled_calls_do_not_block_7: "unpolled::a_call_that_was_undone_gets_the_lock_when_its_runtime_continues"
        without "unpolled-calls-do-not-block" seeing "the call is given up";
    callers_without_undo: "callers::a_flood_of_cancelled_calls_loses_no_lock_and_leaves_no_key"
        without "undo" seeing " keys";
    bodies_without_release_on_drop: "bodies::the_key_is_free_at_once_however_the_body_ends" without "release-on-drop" seeing "Panic: still there";
    processes_without_expiry: "processes::the_lock_of_a_process_that_exits_expires_with_its_lease"
        without "expiry" seeing "it expires";
    simulated_renewals_without_only_owner_renews: "simulated::renewals::a_renewal_that_arrives_after_the_release_does_not_extend_the_lock_of_a_successor"
        without "only-owner-renews" seeing " after ";
    simulated_renewals_without_renewal_never_recreates: "simulated::renewals::a_renewal_that_arrives_after_the_release_does_not_recreate_the_key"
        without "renewal-never-recreates" seeing "the key does not exist";
    renewals_without_release_on_drop: "renewals::a_thousand_releases_that_race_with_renewals_leave_no_key"
        without "release-on-drop" seeing "left after";
    replies_without_only_if_free: "replies::repeatedly_killed_connections_cause_no_error"
        without "only-if-free" seeing "two holders of";
    replies_without_error_kinds: "replies::denied_requests_are_not_retried" without "error-kinds" seeing "Err(LockError::Denied";
    replies_without_error_kinds_2: "replies::denied_commands_in_scripts_are_not_retried" without "error-kinds" seeing "-get: Err(Unavailable";
    replies_without_unavailable_is_not_busy: "replies::a_refusal_is_reported_as_unavailable_with_its_cause_and_waited_out"
        without "unavailable-is-not-busy" seeing "Ok(())";
    server_without_unavailable_is_not_busy: "server::a_loading_server_is_unavailable_and_waited_for"
        without "unavailable-is-not-busy" seeing "Err(Busy";
    replies_without_unavailable_is_not_busy_2: "replies::a_server_at_its_connection_limit_is_unavailable_and_waited_for"
        without "unavailable-is-not-busy" seeing "Err(Busy";
    wake_ups_without_safety_poll: "wake_ups::a_key_deleted_without_a_message_is_found_free_by_the_safety_poll"
        without "safety-poll" seeing "the key becomes free: Busy";
    wake_ups_without_safety_poll_2: "wake_ups::a_key_that_expires_is_found_free_at_once" without "safety-poll" seeing "the key becomes free: Busy";
    secrets_without_secrets_are_hidden: "secrets::no_password_is_shown_in_errors_debug_or_log" without "secrets-are-hidden" seeing "c4nary@";
    foreign_without_only_if_free: "foreign::a_foreign_value_counts_as_a_busy_lock_and_is_never_changed" without "only-if-free" seeing "is_held: true";
    foreign_without_only_if_free_2: "foreign::a_value_of_another_type_is_never_changed" without "only-if-free" seeing "Ok(())";
    foreign_without_only_if_free_3: "foreign::a_key_without_expiry_is_busy_and_the_error_says_why" without "only-if-free" seeing "is_held: true";
    fairness_without_handoff_limit: "fairness::a_busy_process_lets_another_process_acquire_the_lock"
        without "handoff-limit" seeing "the other process gets the lock";
    fairness_without_hand_off_continues: "fairness::a_lock_offered_to_a_waiter_that_gives_up_goes_to_the_next_waiter" without "hand-off-continues" seeing "left: ClientStats { held: 1";
    fairness_without_release_on_drop: "fairness::five_hundred_tasks_that_end_at_any_time_leave_nothing"
        without "release-on-drop" seeing "Busy";
    fairness_without_renewal_never_recreates: "fairness::a_key_deleted_before_a_hand_off_is_lost_for_the_next_holder"
        without "renewal-never-recreates" seeing "by its next renewal";
    fairness_without_hand_off_keeps_deadline: "fairness::a_hand_off_does_not_extend_the_lease"
        without "hand-off-keeps-deadline" seeing "the lease got longer";
}
