//! `ls --scan` and `delete`: what the store knows.

use lock_tests::RedisServer;
use lock_tests::support::LEASE;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{FinishedRun, RunningProcess, answered, lockctl, outcome, wait_until};

/// A command under `shop:job` that is killed with its lockctl, so that its lock stays.
fn died(server: &RedisServer) {
    let words =
        ["run", "--namespace", "shop", "--lease", "60s", "job", "sh", "-c", "echo held; read line"];
    let mut holder = RunningProcess::start(lockctl(&server.url(), &words));
    assert_eq!(holder.line(), "held");
    holder.send(Signal::KILL);
    drop(holder);
    wait_until("its connections are closed", || server.channels("lock_client:*").is_empty());
}

fn scanned(server: &RedisServer, words: &[&str]) -> Vec<Value> {
    let words = [&["--namespace", "shop", "ls", "--scan", "-o", "json"], words].concat();
    let found: Value = serde_json::from_str(&answered(&server.url(), &words).output).expect("JSON");
    found["locks"].as_array().expect("a list").clone()
}

fn delete(server: &RedisServer, words: &[&str]) -> FinishedRun {
    outcome(&server.url(), &[&["--namespace", "shop", "delete", "job"], words].concat())
}

#[test]
fn a_scan_finds_the_locks_of_processes_that_have_died() {
    let server = RedisServer::start();
    died(&server);
    let words = ["--namespace", "shop", "run", "alive", "sh", "-c", "echo held; read line"];
    let mut alive = RunningProcess::start(lockctl(&server.url(), &words));
    assert_eq!(alive.line(), "held");
    server.tell(&["SET", "other:job", "x", "PX", "60000"]);
    server.tell(&["SET", "shop:text", "x"]);
    let locks = scanned(&server, &[]);
    let keys: Vec<_> = locks.iter().map(|lock| lock["key"].as_str().unwrap_or_default()).collect();
    assert_eq!(keys, ["alive", "job"]);
    assert_eq!((&locks[0]["answers"], &locks[1]["answers"]), (&true.into(), &false.into()));
    assert_eq!(locks[1]["client"]["service"], "lockctl");
    let keys = |words: &[&str]| -> Vec<Value> {
        scanned(&server, words).into_iter().map(|lock| lock["key"].clone()).collect()
    };
    assert_eq!(keys(&["--stale"]), ["job"]);
    let short = ["--namespace", "shop", "run", "--min-hold", "60s", "short", "true"];
    assert_eq!(outcome(&server.url(), &short).code, Some(0));
    assert_eq!(keys(&["--stale"]), ["job"], "a lock that stays for its min_hold is not stale");
    assert_eq!(keys(&["short"]), ["short"]);
    assert_eq!(keys(&["--others"]), ["alive", "job", "short", "text"]);
    assert_eq!(keys(&["j?b"]), ["job"]);
    drop(alive.end());
}

/// A client that has not answered may be alive: its locks must not be deleted.
#[test]
fn locks_of_a_suspended_process_are_not_stale() {
    let server = RedisServer::start();
    let words =
        ["run", "--namespace", "shop", "--lease", "60s", "job", "sh", "-c", "echo held; read line"];
    let mut holder = RunningProcess::start(lockctl(&server.url(), &words));
    assert_eq!(holder.line(), "held");
    holder.send(Signal::STOP);
    let ls = ["--namespace", "shop", "ls", "--scan", "-o", "json", "--answer-timeout", "100ms"];
    let listed = |words: &[&str]| -> Vec<Value> {
        let found = outcome(&server.url(), &[&ls, words].concat());
        assert_eq!(found.errors, "lockctl: warning: one client has not answered\n", "once");
        let found: Value = serde_json::from_str(&found.output).expect("JSON");
        found["locks"].as_array().expect("a list").clone()
    };
    assert_eq!(listed(&["--stale"]), [] as [Value; 0]);
    assert_eq!((&listed(&[])[0]["key"], &listed(&[])[0]["answers"]), (&"job".into(), &Value::Null));
    holder.send(Signal::CONT);
    drop(holder.end());
}

#[test]
fn a_lock_that_never_expires_is_stale_and_one_of_another_library_is_not() {
    let server = RedisServer::start();
    server.tell(&["SET", "shop:foreign", "x", "PX", "60000"]);
    server.tell(&["SET", "shop:forever", "x"]);
    let locks = scanned(&server, &["--others", "--stale"]);
    let found: Vec<_> = locks.iter().map(|lock| (&lock["key"], &lock["answers"])).collect();
    assert_eq!(found, [(&"forever".into(), &Value::Null)]);
}

/// A time stays in the store until the next holder overwrites it.
#[test]
fn a_time_that_has_passed_is_no_lock() {
    let server = RedisServer::start();
    server.tell(&["SET", "shop:job", "1700000000000"]);
    let run = |words: &[&str]| {
        let words = [&["--namespace", "shop", "--format", "timestamp"], words].concat();
        outcome(&server.url(), &words)
    };
    assert_eq!(run(&["wait", "job", "-w", "0s"]).code, Some(0));
    assert!(run(&["who", "job"]).output.contains("not held"));
    assert_eq!(run(&["ls", "--scan", "--others"]).output.lines().count(), 1, "the header alone");
    server.tell(&["SET", "shop:job", "4000000000000"]);
    assert_eq!(run(&["wait", "job", "-w", "0s"]).code, Some(75));
}

#[test]
fn a_scan_of_all_keys_requires_an_option() {
    let server = RedisServer::start();
    let refused = outcome(&server.url(), &["ls", "--scan"]);
    assert_eq!(refused.code, Some(64));
    assert!(refused.errors.contains("--all"), "{refused:?}");
    assert_eq!(outcome(&server.url(), &["ls", "--scan", "--all"]).code, Some(0));
    assert_eq!(outcome(&server.url(), &["ls", "--stale"]).code, Some(64));
}

#[test]
fn a_user_without_scan_is_denied() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    server.tell(&["ACL", "SETUSER", "guest", "on", ">secret", "~*", "&*", "+@all", "-scan"]);
    let denied = outcome(&server.url_as("guest:secret"), &["ls", "--scan", "--all"]);
    assert_eq!((denied.code, &*denied.output), (Some(77), ""), "{denied:?}");
}

#[test]
fn a_user_who_may_not_ask_sees_what_a_scan_finds() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    died(&server);
    let rights = ["~*", "resetchannels", "+@all", "-@pubsub"];
    server.tell(&[&["ACL", "SETUSER", "guest", "on", ">secret"], &rights[..]].concat());
    let words = ["--namespace", "shop", "ls", "--scan", "-o", "json"];
    let found = outcome(&server.url_as("guest:secret"), &words);
    assert_eq!(found.code, Some(0), "{found:?}");
    assert!(found.errors.contains("the clients cannot be asked"), "{found:?}");
    let found: Value = serde_json::from_str(&found.output).expect("JSON");
    let lock = &found["locks"][0];
    assert_eq!((&lock["key"], &lock["answers"]), (&"job".into(), &Value::Null));
    assert_eq!(found["unanswered"], Value::Null);
}

#[test]
fn a_scan_counts_the_keys_that_the_user_may_not_read() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    died(&server);
    server.tell(&["SET", "other:job", "x"]);
    let rights = ["~shop:*", "~lock_*", "&*", "+@all"];
    server.tell(&[&["ACL", "SETUSER", "guest", "on", ">secret"], &rights[..]].concat());
    let found = outcome(&server.url_as("guest:secret"), &["ls", "--scan", "--all"]);
    assert_eq!(found.code, Some(0), "{found:?}");
    assert!(found.output.contains("shop:job"), "{found:?}");
    assert!(found.errors.contains("keys that this user may not read: 1"), "{found:?}");
}

#[test]
fn exactly_the_hold_that_was_shown_is_deleted() {
    let server = RedisServer::start();
    died(&server);
    let token = scanned(&server, &[])[0]["token"].as_str().expect("a text").to_owned();
    let unconfirmed = delete(&server, &["--token", &token]);
    assert_eq!(unconfirmed.code, Some(64), "{unconfirmed:?}");
    for another in ["another", "-another"] {
        let wrong = delete(&server, &["--token", another, "--yes"]);
        assert_eq!(wrong.code, Some(75), "{wrong:?}");
        assert!(wrong.errors.contains("nothing was deleted"), "{wrong:?}");
    }
    assert!(server.exists("shop:job"));
    let deleted = delete(&server, &["--token", &token, "--yes"]);
    assert_eq!((deleted.code, &*deleted.output), (Some(0), "The hold was deleted.\n"));
    assert!(deleted.errors.contains("still runs"), "it says what it breaks: {deleted:?}");
    assert!(!server.exists("shop:job"));
    let free = delete(&server, &["--token", &token, "--yes"]);
    assert_eq!((free.code, &*free.output), (Some(75), ""), "{free:?}");
    assert!(free.errors.contains("nobody holds the lock \"job\"; nothing was deleted"), "{free:?}");
}

#[test]
fn a_deletion_gives_the_lock_to_the_command_that_waits() {
    let server = RedisServer::start();
    died(&server);
    let token = scanned(&server, &[])[0]["token"].as_str().expect("a text").to_owned();
    let words = ["--namespace", "shop", "run", "job", "echo", "ran"];
    let waiting = RunningProcess::start(lockctl(&server.url(), &words));
    wait_until("it waits", || server.has_woken_claims("shop:job", 1));
    assert_eq!(delete(&server, &["--token", &token, "--yes"]).code, Some(0));
    let began = std::time::Instant::now();
    assert_eq!(waiting.end().output, "ran\n");
    assert!(began.elapsed() < LEASE * 30, "before the lease of the holder that died");
}
