//! The negative controls: each test of this suite that keeps a protection has to fail without it.

lock_tests::controls! {
    processes_without_only_if_free: "processes::the_lock_of_a_killed_process_is_taken_over_at_the_end_of_its_lease"
        without "only-if-free" seeing "it was killed while it held the lock";
    processes_without_check_before_poll: "processes::a_process_that_was_frozen_past_its_lease_does_nothing_more"
        without "check-before-poll" seeing "at once: Elapsed";
    processes_without_renewal: "processes::a_process_that_was_frozen_for_less_than_its_lease_goes_on"
        without "renewal" seeing "left == right";
    bodies_without_keeper_thread: "bodies::a_body_that_blocks_its_thread_for_three_leases_loses_no_lock"
        without "keeper-thread" seeing "left == right";
    server_without_gone_stays_gone: "server::a_server_that_died_and_forgot_ends_the_hold" without "gone-stays-gone" seeing "by its next renewal";
    server_without_fence_above_clock: "server::a_server_that_died_and_forgot_ends_the_hold" without "fence-above-clock" seeing "1 after 1";
    server_without_renewal_retry: "server::a_server_that_died_and_kept_its_data_keeps_the_hold" without "renewal-retry" seeing "reason: RenewalFailed";
    server_without_check_before_poll: "server::a_server_out_of_reach_ends_the_hold_at_its_deadline"
        without "check-before-poll" seeing "at its deadline";
    server_without_unknown_is_not_held: "server::a_server_out_of_reach_ends_the_hold_at_its_deadline"
        without "unknown-is-not-held" seeing "nobody can know whether it is busy";
    server_without_deadline_from_sending: "server::an_answer_that_comes_after_the_lease_is_no_grant"
        without "deadline-from-sending" seeing "it had expired by then";
    server_without_gone_stays_gone_2: "server::a_server_whose_clock_jumps_ahead_gives_the_lock_away_and_the_holder_is_told"
        without "gone-stays-gone" seeing "by its next renewal";
    server_without_fence_above_last: "server::a_server_whose_clock_is_set_back_makes_nobody_wait_and_its_tokens_rise"
        without "fence-above-last" seeing " after ";
    requests_without_one_token: "requests::an_acquire_whose_answer_was_lost_does_not_wait_for_itself" without "one-token" seeing "it was its own";
    requests_without_release_goes_on: "requests::a_request_that_was_cut_in_the_middle_is_made_again"
        without "release-goes-on" seeing "EVALSHA";
    requests_without_tries_shorten_nothing: "requests::a_try_that_arrives_late_shortens_nothing"
        without "tries-shorten-nothing" seeing "shortened: ";
    requests_without_owner_releases: "requests::a_release_that_arrives_when_a_successor_has_the_key_frees_nothing"
        without "owner-releases" seeing "it is somebody else's";
    requests_without_undo: "requests::a_request_that_arrives_after_its_caller_gave_up_is_undone" without "undo" seeing "not undone: ";
    requests_without_expiry: "requests::a_request_that_arrives_very_late_ends_with_its_lease" without "expiry" seeing "it expires";
    cancellation_without_release_on_drop: "cancellation::on_the_memory_store_nothing_is_left_wherever_a_call_is_dropped"
        without "release-on-drop" seeing "the key is left";
    cancellation_without_undo: "cancellation::on_a_live_server_nothing_is_left_wherever_a_call_is_dropped"
        without "undo" seeing "the key is left";
    cancellation_without_release_on_drop_2: "cancellation::on_a_live_server_nothing_is_left_wherever_a_call_is_dropped"
        without "release-on-drop" seeing "the key is left";
    cancellation_without_undo_2: "cancellation::on_a_slow_server_nothing_is_left_wherever_a_call_is_dropped"
        without "undo" seeing "the key is left";
    cancellation_without_undo_3: "cancellation::on_a_server_whose_answers_are_lost_nothing_is_left_wherever_a_call_is_dropped"
        without "undo" seeing "the key is left";
    cancellation_without_expiry: "cancellation::on_a_server_that_never_answers_nothing_is_left_after_a_lease"
        without "expiry" seeing "the key is left";
    callers_without_log_thread: "callers::a_log_that_blocks_loses_no_lock_and_keeps_no_body_alive"
        without "log-thread" seeing "their keys are still there";
    callers_without_key_outlives_body: "callers::a_key_is_not_free_before_the_destructor_of_a_body_that_was_held_too_long"
        without "key-outlives-body" seeing "before the destructor";
    callers_without_key_outlives_body_2: "callers::a_body_that_is_stuck_past_its_maximum_keeps_the_key_for_its_lease_at_the_most"
        without "key-outlives-body" seeing "not at the maximum";
    callers_without_offers_go_on: "callers::waiters_that_nobody_polls_hold_up_nobody_else"
        without "offers-go-on" seeing "everybody who is polled has it";
    callers_without_offers_go_on_2: "callers::a_lock_is_not_kept_for_a_waiter_that_nobody_polls"
        without "offers-go-on" seeing "it is free";
    callers_without_owners_are_helped: "callers::a_call_that_asks_the_store_and_is_not_polled_holds_up_nobody_else"
        without "owners-are-helped" seeing "somebody goes on for it";
    callers_without_owners_are_helped_2: "callers::a_call_that_waits_for_another_process_and_is_not_polled_holds_up_nobody_else"
        without "owners-are-helped" seeing "somebody goes on for it";
    callers_without_owners_are_helped_3: "callers::a_release_that_is_not_polled_holds_up_nobody_else"
        without "owners-are-helped" seeing "somebody goes on for it";
    callers_without_owners_are_helped_4: "callers::a_call_on_a_runtime_that_stands_still_gives_up_its_turn"
        without "owners-are-helped" seeing "it is given up";
    callers_without_owners_are_helped_5: "callers::a_shutdown_does_not_wait_for_calls_that_are_not_polled"
        without "owners-are-helped" seeing "they are gone on with";
    callers_without_owners_are_helped_6: "callers::a_lock_is_not_kept_for_a_call_that_is_not_polled"
        without "owners-are-helped" seeing "somebody goes on for it";
    callers_without_owners_are_helped_7: "callers::a_call_that_was_given_up_is_served_when_its_runtime_goes_on"
        without "owners-are-helped" seeing "it is given up";
    callers_without_permits_come_back: "callers::requests_that_nobody_polls_keep_no_others_from_being_sent"
        without "permits-come-back" seeing "it is sent";
    callers_without_undo: "callers::a_flood_of_cancelled_calls_loses_no_lock_and_leaves_no_key"
        without "undo" seeing " keys";
    bodies_without_release_on_drop: "bodies::however_a_body_ends_its_key_is_free_at_once" without "release-on-drop" seeing "Panic: still there";
    processes_without_expiry: "processes::the_lock_of_a_process_that_ended_expires_with_its_lease"
        without "expiry" seeing "it expires";
    renewals_without_release_ends_renewal: "renewals::nothing_is_renewed_once_its_release_has_begun" without "release-ends-renewal" seeing "renewals after the release";
    renewals_without_owner_renews: "renewals::a_renewal_that_arrives_after_the_release_extends_no_successor"
        without "owner-renews" seeing " after ";
    renewals_without_gone_stays_gone: "renewals::a_renewal_that_arrives_after_the_release_makes_no_lock"
        without "gone-stays-gone" seeing "there is no such key";
    renewals_without_release_on_drop: "renewals::a_thousand_releases_that_meet_their_renewals_leave_no_key"
        without "release-on-drop" seeing "left after";
    renewals_without_kept_under_another_name: "renewals::a_renewal_that_arrives_after_the_release_of_a_key_that_stays_does_not_extend_it"
        without "kept-under-another-name" seeing " after ";
    renewals_without_renewal_retry: "renewals::a_renewal_that_fails_once_or_twice_loses_nothing_and_is_logged"
        without "renewal-retry" seeing "it is tried again";
    replies_without_script_by_text: "replies::scripts_that_are_forgotten_all_the_time_cost_no_error" without "script-by-text" seeing "left == right";
    replies_without_only_if_free: "replies::connections_that_are_killed_all_the_time_cost_no_error"
        without "only-if-free" seeing "two holders of";
    replies_without_kinds_of_errors: "replies::a_server_that_denies_is_not_asked_again" without "kinds-of-errors" seeing "Err(LockError::Denied";
    replies_without_unavailable_is_not_busy: "replies::a_server_that_refuses_is_unavailable_says_why_and_is_waited_for"
        without "unavailable-is-not-busy" seeing "Ok(())";
    server_without_unavailable_is_not_busy: "server::a_server_that_is_still_loading_is_unavailable_and_waited_for"
        without "unavailable-is-not-busy" seeing "Err(Busy";
    replies_without_unavailable_is_not_busy_2: "replies::a_server_that_is_full_is_unavailable_and_waited_for"
        without "unavailable-is-not-busy" seeing "Err(Busy";
    wake_ups_without_safety_poll: "wake_ups::a_key_that_is_deleted_without_a_word_is_found_free_by_the_safety_poll"
        without "safety-poll" seeing "it becomes free: Busy";
    wake_ups_without_safety_poll_2: "wake_ups::a_key_that_expires_is_found_free_at_that_moment" without "safety-poll" seeing "it becomes free: Busy";
    wake_ups_without_safety_poll_and_reconnect_wakes: "wake_ups::a_release_that_falls_into_a_reconnection_is_noticed"
        without "safety-poll+reconnect-wakes" seeing "it becomes free: Busy";
    secrets_without_secrets_stay_in: "secrets::no_password_is_shown_in_errors_debug_or_log" without "secrets-stay-in" seeing "c4nary@";
    foreign_without_only_if_free: "foreign::a_foreign_value_is_a_busy_lock_and_never_touched" without "only-if-free" seeing "is_held: true";
    foreign_without_only_if_free_2: "foreign::a_value_of_another_type_is_never_touched" without "only-if-free" seeing "Ok(())";
    foreign_without_only_if_free_3: "foreign::a_key_without_expiry_is_waited_for_and_named" without "only-if-free" seeing "is_held: true";
    turns_without_turns_end: "turns::a_process_that_never_stops_lets_another_one_have_its_turn"
        without "turns-end" seeing "its turn";
    turns_without_step_back: "turns::a_process_far_away_gets_its_share" without "step-back" seeing "its share";
    turns_without_pass_on: "turns::wherever_those_who_wait_give_up_the_lock_goes_on" without "pass-on" seeing "left: ClientStats { held: 1";
    turns_without_release_on_drop: "turns::five_hundred_who_give_up_at_any_time_leave_nothing"
        without "release-on-drop" seeing "Busy";
    turns_without_gone_stays_gone: "turns::a_lock_that_is_deleted_is_lost_for_whoever_has_it_by_then"
        without "gone-stays-gone" seeing "by its next renewal";
    turns_without_passed_on_as_it_is: "turns::a_lock_that_is_passed_on_lasts_no_longer_for_that"
        without "passed-on-as-it-is" seeing "it lasts longer";
    replies_without_expected_replies: "replies::a_reply_that_is_none_grants_nothing" without "expected-replies" seeing "granted by";
    replies_without_expected_replies_2: "replies::a_reply_that_is_none_leaves_unknown_what_was_done"
        without "expected-replies" seeing "Ok(())";
    requests_without_limited_requests: "requests::a_burst_of_requests_waits_for_itself_and_costs_no_error"
        without "limited-requests+patience-with-answers" seeing "errors, such as";
    requests_without_limited_requests_2: "requests::a_request_that_had_to_wait_for_others_for_too_long_was_not_sent"
        without "limited-requests" seeing "were sent";
    wake_ups_without_silence_is_noticed: "wake_ups::a_subscription_that_has_gone_silent_is_made_again"
        without "silence-is-noticed" seeing "it is noticed";
    wake_ups_without_limited_subscriptions: "wake_ups::very_many_subscriptions_are_made_again_and_cost_no_lock"
        without "limited-subscriptions" seeing "channels are back";
}
