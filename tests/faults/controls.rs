//! The negative controls: each test of this suite that keeps a protection has to fail without it.
//!
//! A control runs one test of this program in another process, in which the protection is off, and
//! looks at how it fails. A test that passes without its protection would prove nothing.

use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// After which a test that neither passes nor fails has hung, which is no way to fail.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether the test passes without the protection, and what was printed.
fn run(protection: &str, name: &str) -> (bool, String) {
    let program = std::env::current_exe().expect("it runs");
    let mut printed = tempfile::tempfile().expect("a temporary file");
    let to_file = || printed.try_clone().expect("a temporary file");
    let mut child = Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env("LOCK_WITHOUT", protection)
        .stdin(Stdio::null())
        .stdout(to_file())
        .stderr(to_file())
        .spawn()
        .expect("this program");
    let end = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            break status;
        }
        if Instant::now() > end {
            child.kill().expect("our own child");
            panic!("without {protection}, {name} neither passes nor fails");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut output = String::new();
    printed.rewind().and_then(|()| printed.read_to_string(&mut output)).expect("text");
    assert!(output.contains("running 1 test"), "there is no test {name}: {output}");
    (status.success(), output)
}

macro_rules! controls {
    ($($name:ident: $test:literal without $protection:literal;)*) => {
        $(
            #[test]
            fn $name() {
                let (passed, output) = run($protection, $test);
                assert!(!passed, "{} passes without {}", $test, $protection);
                let why = output.lines().skip_while(|line| !line.contains("panicked at")).nth(1);
                let why: String = why.unwrap_or_default().chars().take(160).collect();
                println!("without {}: {}: {why}", $protection, $test);
            }
        )*
    };
}

controls! {
    row_1: "processes::the_lock_of_a_killed_process_is_taken_over_at_the_end_of_its_lease"
        without "only-if-free";
    row_2_polls: "processes::a_process_that_was_frozen_past_its_lease_does_nothing_more"
        without "check-before-poll";
    row_2_release: "processes::a_process_that_was_frozen_past_its_lease_does_nothing_more"
        without "owner-releases";
    row_3: "processes::a_process_that_was_frozen_for_less_than_its_lease_goes_on"
        without "renewal";
    row_4: "bodies::a_body_that_blocks_its_thread_for_three_leases_loses_no_lock"
        without "keeper-thread";
    row_5: "server::a_server_that_died_and_forgot_ends_the_hold" without "owner-renews";
    row_5_token: "server::a_server_that_died_and_forgot_ends_the_hold" without "fence-above-clock";
    row_6: "server::a_server_that_died_and_kept_its_data_keeps_the_hold" without "renewal-retry";
    row_7: "server::a_server_out_of_reach_ends_the_hold_at_its_deadline"
        without "check-before-poll";
    row_7_errors: "server::a_server_out_of_reach_ends_the_hold_at_its_deadline"
        without "unknown-is-not-held";
    row_15: "server::an_answer_that_comes_after_the_lease_is_no_grant"
        without "deadline-from-sending";
    row_16_ahead: "server::a_server_whose_clock_jumps_ahead_gives_the_lock_away_and_the_holder_is_told"
        without "owner-renews";
    row_16_back: "server::a_server_whose_clock_is_set_back_makes_nobody_wait_and_its_tokens_rise"
        without "fence-above-last";
    row_18: "requests::an_acquire_whose_answer_was_lost_does_not_wait_for_itself" without "one-token";
    row_18_cut: "requests::a_request_that_was_cut_in_the_middle_is_made_again"
        without "release-goes-on";
    row_19: "requests::a_request_that_arrives_after_its_caller_gave_up_is_undone" without "undo";
    row_19_late: "requests::a_request_that_arrives_very_late_ends_with_its_lease" without "expiry";
    row_20_memory: "cancellation::on_the_memory_store_nothing_is_left_wherever_a_call_is_dropped"
        without "release-on-drop";
    row_20_live: "cancellation::on_a_live_server_nothing_is_left_wherever_a_call_is_dropped"
        without "undo";
    row_20_live_guards: "cancellation::on_a_live_server_nothing_is_left_wherever_a_call_is_dropped"
        without "release-on-drop";
    row_20_live_releases: "cancellation::on_a_live_server_nothing_is_left_wherever_a_call_is_dropped"
        without "release-goes-on";
    row_20_slow: "cancellation::on_a_slow_server_nothing_is_left_wherever_a_call_is_dropped"
        without "undo";
    row_20_cut: "cancellation::on_a_server_that_never_answers_nothing_is_left_after_a_lease"
        without "expiry";
    row_21: "bodies::however_a_body_ends_its_key_is_free_at_once" without "release-on-drop";
    row_21_exit: "processes::the_lock_of_a_process_that_ended_expires_with_its_lease"
        without "expiry";
    row_22: "renewals::nothing_is_renewed_once_its_release_has_begun" without "release-ends-renewal";
    row_22_successor: "renewals::nothing_is_renewed_once_its_release_has_begun"
        without "owner-renews";
    row_22_many: "renewals::a_thousand_releases_that_meet_their_renewals_leave_no_key"
        without "owner-renews";
    row_22_kept: "renewals::a_renewal_that_arrives_after_the_release_of_a_key_that_stays_does_not_extend_it"
        without "kept-under-another-name";
    row_23: "renewals::a_renewal_that_fails_once_or_twice_loses_nothing_and_is_logged"
        without "renewal-retry";
    row_24: "replies::scripts_that_are_forgotten_all_the_time_cost_no_error" without "script-by-text";
    row_24_exclusion: "replies::connections_that_are_killed_all_the_time_cost_no_error"
        without "only-if-free";
    row_25: "replies::a_server_that_denies_is_not_asked_again" without "kinds-of-errors";
    row_25_refusals: "replies::a_server_that_refuses_is_unavailable_says_why_and_is_waited_for"
        without "unavailable-is-not-busy";
    row_25_loading: "server::a_server_that_is_still_loading_is_unavailable_and_waited_for"
        without "unavailable-is-not-busy";
    row_25_full: "replies::a_server_that_is_full_is_unavailable_and_waited_for"
        without "unavailable-is-not-busy";
    row_27: "wake_ups::a_key_that_is_deleted_without_a_word_is_found_free_by_the_safety_poll"
        without "safety-poll";
    row_27_expiry: "wake_ups::a_key_that_expires_is_found_free_at_that_moment" without "safety-poll";
    row_27_reconnection: "wake_ups::a_release_that_falls_into_a_reconnection_is_noticed"
        without "safety-poll+reconnect-wakes";
    row_29: "secrets::no_password_is_shown_in_errors_debug_or_log" without "secrets-stay-in";
    row_31: "foreign::a_foreign_value_is_a_busy_lock_and_never_touched" without "only-if-free";
    row_31_type: "foreign::a_value_of_another_type_is_never_touched" without "only-if-free";
    row_31_expiry: "foreign::a_key_without_expiry_is_waited_for_and_named" without "only-if-free";
}
