//! The tests of the formats fail without what they are tests of.

lock_tests::controls! {
    token_without_owner_releases: "formats::a_release_by_one_who_does_not_know_of_the_loss_leaves_the_successor_alone::in_token"
        without "owner-releases" seeing "Ok(())";
    token_without_owner_renews: "formats::a_body_whose_key_was_taken_is_dropped_and_the_key_left_alone::in_token"
        without "owner-renews" seeing "by its next renewal";
    token_without_gone_stays_gone: "formats::a_body_whose_key_was_deleted_is_dropped_at_the_next_renewal::in_token"
        without "gone-stays-gone" seeing "by its next renewal";
    token_without_only_if_free: "formats::theirs_excludes_ours::in_token"
        without "only-if-free" seeing "is_free";
    token_without_expiry: "formats::ours_excludes_ours_and_theirs::in_token"
        without "expiry" seeing "it expires with its lease";
    token_without_tries_shorten_nothing: "formats::a_try_that_arrives_late_shortens_nothing::in_token"
        without "tries-shorten-nothing" seeing "ms left";
    token_without_tries_shorten_nothing_2: "formats::a_renewal_that_arrives_late_shortens_nothing::in_token"
        without "tries-shorten-nothing" seeing "ms left";
    token_without_kept_under_another_name: "formats::a_renewal_that_arrives_late_does_not_extend_a_key_that_stays::in_token"
        without "kept-under-another-name" seeing " ms after ";
    token_without_one_token: "formats::a_request_whose_answer_is_lost_is_one_hold_or_none::in_token"
        without "one-token" seeing "it was its own";
    token_without_undo: "formats::a_request_that_arrives_after_its_caller_gave_up_is_undone::in_token"
        without "undo" seeing "left for";
    redisson_without_owner_releases: "formats::a_release_by_one_who_does_not_know_of_the_loss_leaves_the_successor_alone::in_redisson"
        without "owner-releases" seeing "Ok(())";
    redisson_without_owner_renews: "formats::a_body_whose_key_was_taken_is_dropped_and_the_key_left_alone::in_redisson"
        without "owner-renews" seeing "by its next renewal";
    redisson_without_gone_stays_gone: "formats::a_body_whose_key_was_deleted_is_dropped_at_the_next_renewal::in_redisson"
        without "gone-stays-gone" seeing "Taken";
    redisson_without_only_if_free: "formats::theirs_excludes_ours::in_redisson"
        without "only-if-free" seeing "is_free";
    redisson_without_expiry: "formats::ours_excludes_ours_and_theirs::in_redisson"
        without "expiry" seeing "it expires with its lease";
    redisson_without_tries_shorten_nothing: "formats::a_try_that_arrives_late_shortens_nothing::in_redisson"
        without "tries-shorten-nothing" seeing "ms left";
    redisson_without_tries_shorten_nothing_2: "formats::a_renewal_that_arrives_late_shortens_nothing::in_redisson"
        without "tries-shorten-nothing" seeing "ms left";
    redisson_without_kept_under_another_name: "formats::a_renewal_that_arrives_late_does_not_extend_a_key_that_stays::in_redisson"
        without "kept-under-another-name" seeing " ms after ";
    redisson_without_one_token: "formats::a_request_whose_answer_is_lost_is_one_hold_or_none::in_redisson"
        without "one-token" seeing "it was its own";
    redisson_without_undo: "formats::a_request_that_arrives_after_its_caller_gave_up_is_undone::in_redisson"
        without "undo" seeing "left for";
    redisson_without_turns_end: "formats::redisson::a_turn_of_this_process_ends_when_java_waits"
        without "turns-end" seeing "in a hundred holds";
    timestamp_without_owner_releases: "formats::a_release_by_one_who_does_not_know_of_the_loss_leaves_the_successor_alone::in_timestamp"
        without "owner-releases" seeing "Ok(())";
    timestamp_without_owner_renews: "formats::a_body_whose_key_was_taken_is_dropped_and_the_key_left_alone::in_timestamp"
        without "owner-renews" seeing "by its next renewal";
    timestamp_without_gone_stays_gone: "formats::a_body_whose_key_was_deleted_is_dropped_at_the_next_renewal::in_timestamp"
        without "gone-stays-gone" seeing "Taken";
    timestamp_without_only_if_free: "formats::theirs_excludes_ours::in_timestamp"
        without "only-if-free" seeing "is_free";
    timestamp_without_expiry: "formats::ours_excludes_ours_and_theirs::in_timestamp"
        without "expiry" seeing "it expires with its lease";
    timestamp_without_tries_shorten_nothing: "formats::a_try_that_arrives_late_shortens_nothing::in_timestamp"
        without "tries-shorten-nothing" seeing "ms left";
    timestamp_without_tries_shorten_nothing_2: "formats::a_renewal_that_arrives_late_shortens_nothing::in_timestamp"
        without "tries-shorten-nothing" seeing "ms left";
    timestamp_without_kept_under_another_name: "formats::a_renewal_that_arrives_late_does_not_extend_a_key_that_stays::in_timestamp"
        without "kept-under-another-name" seeing " ms after ";
    timestamp_without_one_token: "formats::a_request_whose_answer_is_lost_is_one_hold_or_none::in_timestamp"
        without "one-token" seeing "it was its own";
    timestamp_without_undo: "formats::a_request_that_arrives_after_its_caller_gave_up_is_undone::in_timestamp"
        without "undo" seeing "left for";
}
