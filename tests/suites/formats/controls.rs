//! The negative controls: each test of a safeguard must fail without that safeguard.

lock_tests::controls! {
    sets_without_only_if_free: "sets::a_set_takes_all_locks_or_none::on_redis"
        without "only-if-free" seeing "is_none()";
    sets_without_check_before_poll: "sets::the_loss_of_one_lock_ends_the_body_and_frees_the_others"
        without "check-before-poll" seeing "it ends";
    sets_without_unpolled_calls_do_not_block: "sets::a_call_that_is_not_polled_blocks_no_other_call::on_redis"
        without "unpolled-calls-do-not-block" seeing "not kept";
    token_without_only_owner_releases: "formats::a_release_after_an_unnoticed_loss_does_not_affect_the_successor::in_token"
        without "only-owner-releases" seeing "Ok(())";
    token_without_only_owner_renews: "formats::a_body_whose_key_was_taken_is_dropped_and_the_key_is_not_changed::in_token"
        without "only-owner-renews" seeing "by its next renewal";
    token_without_renewal_never_recreates: "formats::a_body_whose_key_was_deleted_is_dropped_at_the_next_renewal::in_token"
        without "renewal-never-recreates" seeing "by its next renewal";
    token_without_only_if_free: "formats::a_lock_of_the_peer_excludes_clients_of_this_library::in_token"
        without "only-if-free" seeing "is_free";
    token_without_expiry: "formats::a_lock_excludes_other_clients_of_this_library_and_the_peer::in_token"
        without "expiry" seeing "it expires with its lease";
    token_without_attempts_do_not_shorten: "formats::a_late_attempt_does_not_shorten_the_lease::in_token"
        without "attempts-do-not-shorten" seeing "ms left";
    token_without_attempts_do_not_shorten_2: "formats::a_late_renewal_does_not_shorten_the_lease::in_token"
        without "attempts-do-not-shorten" seeing "ms left";
    token_without_one_owner_id: "formats::requests_whose_answers_are_lost_take_effect_once::in_token"
        without "one-owner-id" seeing "the retry finds its own token";
    token_without_undo: "formats::a_request_that_arrives_after_its_caller_gave_up_is_undone::in_token"
        without "undo" seeing "left for";
    redisson_without_only_owner_releases: "formats::a_release_after_an_unnoticed_loss_does_not_affect_the_successor::in_redisson"
        without "only-owner-releases" seeing "Ok(())";
    redisson_without_only_owner_renews: "formats::a_body_whose_key_was_taken_is_dropped_and_the_key_is_not_changed::in_redisson"
        without "only-owner-renews" seeing "by its next renewal";
    redisson_without_renewal_never_recreates: "formats::a_body_whose_key_was_deleted_is_dropped_at_the_next_renewal::in_redisson"
        without "renewal-never-recreates" seeing "Taken";
    redisson_without_only_if_free: "formats::a_lock_of_the_peer_excludes_clients_of_this_library::in_redisson"
        without "only-if-free" seeing "is_free";
    redisson_without_expiry: "formats::a_lock_excludes_other_clients_of_this_library_and_the_peer::in_redisson"
        without "expiry" seeing "it expires with its lease";
    redisson_without_attempts_do_not_shorten: "formats::a_late_attempt_does_not_shorten_the_lease::in_redisson"
        without "attempts-do-not-shorten" seeing "ms left";
    redisson_without_attempts_do_not_shorten_2: "formats::a_late_renewal_does_not_shorten_the_lease::in_redisson"
        without "attempts-do-not-shorten" seeing "ms left";
    redisson_without_one_owner_id: "formats::requests_whose_answers_are_lost_take_effect_once::in_redisson"
        without "one-owner-id" seeing "the retry finds its own token";
    redisson_without_undo: "formats::a_request_that_arrives_after_its_caller_gave_up_is_undone::in_redisson"
        without "undo" seeing "left for";
    redisson_without_handoff_limit: "formats::redisson::a_tenure_of_this_process_ends_when_java_waits"
        without "handoff-limit" seeing "in a hundred holds";
    timestamp_without_only_owner_releases: "formats::a_release_after_an_unnoticed_loss_does_not_affect_the_successor::in_timestamp"
        without "only-owner-releases" seeing "Ok(())";
    timestamp_without_only_owner_renews: "formats::a_body_whose_key_was_taken_is_dropped_and_the_key_is_not_changed::in_timestamp"
        without "only-owner-renews" seeing "by its next renewal";
    timestamp_without_renewal_never_recreates: "formats::a_body_whose_key_was_deleted_is_dropped_at_the_next_renewal::in_timestamp"
        without "renewal-never-recreates" seeing "Taken";
    timestamp_without_only_if_free: "formats::a_lock_of_the_peer_excludes_clients_of_this_library::in_timestamp"
        without "only-if-free" seeing "is_free";
    timestamp_without_expiry: "formats::a_lock_excludes_other_clients_of_this_library_and_the_peer::in_timestamp"
        without "expiry" seeing "it expires with its lease";
    timestamp_without_attempts_do_not_shorten: "formats::a_late_attempt_does_not_shorten_the_lease::in_timestamp"
        without "attempts-do-not-shorten" seeing "ms left";
    timestamp_without_attempts_do_not_shorten_2: "formats::a_late_renewal_does_not_shorten_the_lease::in_timestamp"
        without "attempts-do-not-shorten" seeing "ms left";
    timestamp_without_one_owner_id: "formats::requests_whose_answers_are_lost_take_effect_once::in_timestamp"
        without "one-owner-id" seeing "the retry finds its own token";
    timestamp_without_undo: "formats::a_request_that_arrives_after_its_caller_gave_up_is_undone::in_timestamp"
        without "undo" seeing "left for";
    read_write_without_only_if_free: "read_write::any_number_of_readers_or_one_writer_has_the_lock::on_redis"
        without "only-if-free" seeing "a reader excludes writers";
    semaphores_without_only_if_free: "semaphore::tasks_reach_the_limit_and_never_more::on_redis"
        without "only-if-free" seeing "the most holders at a time";
    semaphores_without_permits_in_order: "semaphore::permits_are_granted_in_order::on_redis"
        without "permits-in-order" seeing "a small call does not overtake a large one";
    admin_without_key_outlives_body: "admin::a_revoked_lock_is_free_for_others_when_its_body_was_dropped"
        without "key-outlives-body" seeing "outlived its lock";
}
