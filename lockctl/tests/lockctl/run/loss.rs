//! The command ends before its lease does.

use std::time::{Duration, Instant};

use lock_runtime::LockClient;
use lock_runtime::admin::LockAdmin;
use lock_tests::support::{LEASE, client};
use lock_tests::{RedisServer, boot_nanos, running_time};

use super::{FOREVER, run, started};
use crate::support::{FullPipe, LONG, RunningProcess, Witness, milliseconds, wait_until};

/// Ignores SIGTERM, and reports it. The inner process shows that the whole group is killed.
const STUBBORN: &str = "trap 'echo told' TERM; echo started; (trap '' TERM; sleep 1000) & while :; do sleep 0.01; done";

/// The time between SIGKILL and the deadline: a tenth of the grace, which is a third of the lease.
const MARGIN: Duration = LONG.checked_div(30).expect("not zero");

/// Freezes the server. Returns the time by which the key `k` has expired.
fn frozen(server: &RedisServer) -> u64 {
    loop {
        // The next renewal must not come before the server is frozen.
        let lease = i64::try_from(LONG.as_millis()).expect("short");
        wait_until("the last renewal is recent", || {
            (lease * 8 / 10..lease * 9 / 10).contains(&server.pttl("k"))
        });
        let read = boot_nanos();
        let left = u64::try_from(server.pttl("k")).expect("held");
        server.freeze();
        // Otherwise, the machine has stalled, and the lease may have been renewed meanwhile.
        if Duration::from_nanos(boot_nanos() - read) < LONG / 20 {
            return read + left * 1_000_000;
        }
        server.thaw();
    }
}

/// The time that the machine gave to lockctl, from the moment at which it had to send a signal until now.
fn taken(expired: u64, before: Duration) -> Duration {
    let due = Duration::from_nanos(expired).saturating_sub(before);
    let since = Duration::from_nanos(boot_nanos()).saturating_sub(due);
    running_time(Instant::now().checked_sub(since).expect("after the start of the machine"))
}

#[test]
fn a_command_is_told_before_the_deadline_and_dead_at_it() {
    let server = RedisServer::start();
    let (running, witness) = started(&server, &[], STUBBORN);
    let expired = frozen(&server);
    assert_eq!(witness.line().as_deref(), Some("told"));
    let told = taken(expired, LONG / 3);
    assert!(told < LONG / 3, "it was terminated too late: {told:?}");
    witness.ended();
    let dead = taken(expired, MARGIN);
    assert!(dead < MARGIN, "it was alive for {dead:?} after it had to be killed");
    let ended = running.end();
    assert_eq!(ended.code, Some(79), "{ended:?}");
    assert!(ended.errors.contains("the lock ends in "), "{ended:?}");
    assert!(ended.errors.contains("the command was terminated"), "{ended:?}");
    assert!(ended.errors.contains("the command was killed"), "{ended:?}");
}

/// A pager that shows its first page does not read further.
#[test]
fn a_reader_of_the_messages_that_pauses_does_not_stop_the_deadline() {
    let server = RedisServer::start();
    let (mut witness, pipe) = (Witness::new(), FullPipe::new());
    // The shell itself reports processes that a signal has ended.
    let script = witness.script(&format!("exec 2>/dev/null; {STUBBORN}"));
    let command = run(&server, &["-vvv"], &["k", "sh", "-c", &script]);
    let running = RunningProcess::start_with_errors(command, pipe.writer());
    witness.started();
    let expired = frozen(&server);
    assert_eq!(witness.line().as_deref(), Some("told"));
    witness.ended();
    let dead = taken(expired, MARGIN);
    assert!(dead < MARGIN, "it was alive for {dead:?} after it had to be killed");
    assert_eq!(running.end().code, Some(79), "the last messages are not awaited for long");
}

#[test]
fn a_descendant_that_cleans_up_has_the_grace_although_the_command_has_ended() {
    let server = RedisServer::start();
    let clean_up = format!("trap 'sleep 0.3; echo cleaned; exit' TERM; echo ready; {FOREVER}");
    let script = format!("echo started; sh -c \"{clean_up}\"; exit 5");
    let (running, witness) = started(&server, &[], &script);
    assert_eq!(witness.line().as_deref(), Some("ready"));
    server.tell(&["DEL", "k"]);
    assert_eq!(witness.line().as_deref(), Some("cleaned"));
    witness.ended();
    let ended = running.end();
    assert_eq!(ended.code, Some(79));
    assert!(!ended.errors.contains("was killed"), "{ended:?}");
}

/// The library would go on with the release, but the process ends.
#[test]
fn a_release_without_an_answer_is_reported_with_the_end_of_the_lease() {
    let server = RedisServer::start();
    let (running, witness) = started(&server, &["--lease", "60s"], "echo started; read line");
    server.freeze();
    let ended = running.end();
    witness.ended();
    assert_eq!(ended.code, Some(1), "that of the command: {ended:?}");
    let expected = "the lock stays taken until its lease ends, at most 1m00s";
    assert!(ended.errors.contains(expected), "{ended:?}");
    assert!(!ended.errors.contains("background"), "{ended:?}");
}

/// The control of the tests of the deadline: it would see a command that outlives its lock.
#[test]
fn a_command_that_ignores_the_loss_outlives_its_lock() {
    let server = RedisServer::start();
    let options = ["--on-lost", "ignore"];
    let (mut running, witness) = started(&server, &options, "echo started; read line; echo last");
    let expired = frozen(&server);
    let warning = running.error_line();
    assert!(warning.contains("the lock was lost") && warning.contains("goes on"), "{warning}");
    let left = Duration::from_nanos(expired.saturating_sub(boot_nanos())) + LEASE;
    assert_eq!(witness.line_within(left), Err(()), "it lives on");
    wait_until("the violation is seen", || taken(expired, MARGIN) > MARGIN);
    assert_eq!(witness.line_within(Duration::ZERO), Err(()), "it has lived until then");
    running.close_input();
    assert_eq!(witness.line().as_deref(), Some("last"));
    assert_eq!(running.end().code, Some(0), "that of the command");
}

#[test]
fn a_command_that_obeys_has_the_time_until_the_deadline() {
    let server = RedisServer::start();
    let script = "trap 'echo told; exit 0' TERM; echo started; while :; do sleep 0.01; done";
    let (running, witness) = started(&server, &[], script);
    server.freeze();
    assert_eq!(witness.line().as_deref(), Some("told"));
    witness.ended();
    assert_eq!(running.end().code, Some(79), "its own code does not hide the loss");
}

#[test]
fn a_command_whose_key_was_deleted_is_told_and_then_killed() {
    let server = RedisServer::start();
    let (running, witness) = started(&server, &[], STUBBORN);
    server.tell(&["DEL", "k"]);
    assert_eq!(witness.line().as_deref(), Some("told"));
    witness.ended();
    let ended = running.end();
    assert_eq!(ended.code, Some(79));
    assert!(ended.errors.contains("its key no longer exists"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_lock_is_revoked_ends_before_the_next_holder_comes() {
    let server = RedisServer::start();
    let script = "trap 'echo told; read line; echo last; exit 0' TERM; echo started; while :; do sleep 0.01; done";
    let (running, witness) = started(&server, &["--lease", "30s"], script);
    let other = client(&server.url()).await;
    let waiting = other.lock("k");
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    wait_until("it waits", || server.queued("k") == 1);
    let revocation = LockAdmin::new(&other).revoke("k").await.expect("up");
    assert_eq!((revocation.revoked, revocation.refused), (1, 0));
    assert_eq!(witness.line().as_deref(), Some("told"));
    assert!(!waiting.is_finished(), "the command still runs");
    let ended = tokio::task::spawn_blocking(|| running.end()).await.expect("no panic");
    assert_eq!(ended.code, Some(79), "{ended:?}");
    assert_eq!(witness.line().as_deref(), Some("last"));
    assert!(waiting.await.expect("no panic").is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ignores_losses_cannot_be_revoked() {
    let server = RedisServer::start();
    let (running, _witness) = started(&server, &["--on-lost", "ignore"], "echo started; read line");
    let other: LockClient = client(&server.url()).await;
    let revocation = LockAdmin::new(&other).revoke("k").await.expect("up");
    assert_eq!((revocation.revoked, revocation.refused), (0, 1));
    drop(running);
}

#[test]
fn a_command_ends_before_its_max_hold_is_over() {
    let server = RedisServer::start();
    let began = boot_nanos();
    // A busy machine starts the command within this time.
    let max_hold = LONG * 2;
    let options = ["--lease", "60s", "--max-hold", &milliseconds(max_hold)];
    let (running, witness) = started(&server, &options, STUBBORN);
    assert_eq!(witness.line().as_deref(), Some("told"));
    assert!(Duration::from_nanos(boot_nanos() - began) > max_hold / 2, "it had its time");
    witness.ended();
    let ended = running.end();
    assert_eq!(ended.code, Some(79));
    assert!(ended.errors.contains("the time of `--max-hold` ("), "{ended:?}");
    assert!(!server.exists("k"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_another_process_has_passed_on_is_kept() {
    let server = RedisServer::start();
    let other = client(&server.url()).await;
    let guard = other.lock("k").lease(LEASE * 60).acquire().await.expect("free");
    // Such a lock has a lease of at most three seconds at first, which is less than the grace.
    let words = ["run", "--lease", "60s", "--grace", "20s", "k", "sh", "-c", "echo got; read line"];
    let mut waiting = RunningProcess::start(crate::support::lockctl(&server.url(), &words));
    wait_until("it waits", || server.queued("k") == 1);
    guard.release().await.expect("held");
    assert_eq!(waiting.line(), "got");
    wait_until("the lease is renewed", || server.pttl("k") > 30_000);
    let ended = waiting.end();
    assert_eq!((ended.code, &*ended.errors), (Some(1), ""), "`read` has found no line");
}
