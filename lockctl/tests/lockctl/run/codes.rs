//! The exit codes.

use lock_tests::RedisServer;
use lock_tests::support::LEASE;

use super::{run, started};
use crate::support::{FinishedRun, RunningProcess, milliseconds};

/// Runs `sh -c SCRIPT` under the lock `k`.
fn shell(server: &RedisServer, options: &[&str], script: &str) -> FinishedRun {
    RunningProcess::start(run(server, options, &["k", "--", "sh", "-c", script])).end()
}

#[test]
fn the_code_is_that_of_the_command() {
    let server = RedisServer::start();
    for code in [0, 1, 7, 255] {
        let ended = shell(&server, &[], &format!("exit {code}"));
        let expected =
            FinishedRun { code: Some(code), output: String::new(), errors: String::new() };
        assert_eq!(ended, expected);
        assert_eq!(server.key_count(), 1, "only the fence is left: {:?}", server.keys());
    }
    let killed = shell(&server, &[], "kill -KILL $$");
    assert_eq!(killed.code, Some(128 + 9));
}

#[test]
fn a_busy_lock_has_a_code_that_can_be_chosen() {
    let server = RedisServer::start();
    let (holder, witness) = started(&server, &[], "echo started; read line");
    let refused = shell(&server, &["-n"], "echo ran");
    assert_eq!((refused.code, &*refused.output), (Some(75), ""));
    assert!(refused.errors.contains("lock \"k\" is busy"), "{refused:?}");
    let wait = milliseconds(LEASE / 10);
    let refused = shell(&server, &["-w", &wait, "-E", "3"], "echo ran");
    assert_eq!((refused.code, &*refused.output), (Some(3), ""));
    let held_by = format!("held by {}", lock_runtime_name(holder.id()));
    assert!(refused.errors.contains("(pid ") && refused.errors.contains("lockctl"), "{refused:?}");
    assert!(refused.errors.contains(&held_by), "{refused:?} without {held_by}");
    assert_eq!(holder.end().code, Some(1), "`read` has found no line");
    witness.ended();
}

/// How others see the client of this process.
fn lock_runtime_name(process: i32) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host} (pid {process}")
}

#[test]
fn a_waiting_run_gets_the_lock_when_the_command_before_it_ends() {
    let server = RedisServer::start();
    let (holder, witness) = started(&server, &[], "echo started; read line; echo last");
    let mut waiting = RunningProcess::start(run(&server, &[], &["k", "echo", "next"]));
    crate::support::wait_until("it waits", || server.queued("k") == 1);
    drop(holder.end());
    assert_eq!(witness.line().as_deref(), Some("last"));
    assert_eq!(waiting.line(), "next");
    assert_eq!(waiting.end().code, Some(0));
}

#[test]
fn a_command_that_does_not_exist_is_127_and_one_that_cannot_be_run_126() {
    let server = RedisServer::start();
    let run = |command| RunningProcess::start(run(&server, &[], &["k", command])).end();
    let missing = run("there-is-no-such-command");
    assert_eq!(missing.code, Some(127));
    assert!(
        missing.errors.contains("cannot run there-is-no-such-command: No such file"),
        "{missing:?}"
    );
    let folder = run("/");
    assert_eq!(folder.code, Some(126));
    assert!(folder.errors.contains("cannot run /: Permission denied"), "{folder:?}");
    assert_eq!(server.key_count(), 1, "only the fence is left: {:?}", server.keys());
}

#[test]
fn fifty_jobs_that_start_at_once_run_once() {
    let server = RedisServer::start();
    // Longer than the machine needs to start them all.
    let hold = milliseconds(LEASE * 60);
    let jobs: Vec<_> = (0..50)
        .map(|_| {
            let options = ["-n", "-E", "0", "-q", "--min-hold", &hold];
            RunningProcess::start(run(&server, &options, &["job", "echo", "ran"]))
        })
        .collect();
    let ended: Vec<_> = jobs.into_iter().map(RunningProcess::end).collect();
    let is_silent = |job: &FinishedRun| job.code == Some(0) && job.errors.is_empty();
    assert!(ended.iter().all(is_silent), "{ended:?}");
    assert_eq!(ended.iter().filter(|job| job.output == "ran\n").count(), 1);
}

/// The control of the last test: it would see a second run.
#[test]
fn without_a_min_hold_a_late_host_runs_the_job_again() {
    let server = RedisServer::start();
    for _ in 0..2 {
        let options = ["-n", "-E", "0", "-q"];
        let job = RunningProcess::start(run(&server, &options, &["job", "echo", "ran"])).end();
        assert_eq!((job.code, &*job.output), (Some(0), "ran\n"));
    }
}
