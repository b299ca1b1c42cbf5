//! What happens between the grant of the lock and the start of the command.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use lock_tests::{Proxy, RedisServer};
use rustix::process::Signal;

use super::run;
use crate::support::{RunningProcess, lease, lockctl, outcome, wait_until};

/// A run that has the lock `k`, and whose request for the fencing token is not delivered.
fn without_answer(server: &RedisServer) -> (RunningProcess, Proxy) {
    assert_eq!(outcome(&server.url(), &["run", "k", "true"]).code, Some(0));
    let fences = server.command::<Vec<String>>(&["KEYS", "lock_fence:*"]);
    let proxy = Proxy::to(server.port());
    proxy.hold(&fences[0]);
    let lease = lease();
    let words = ["run", "--lease", &lease, "k", "echo", "ran"];
    let running = RunningProcess::start(lockctl(&proxy.url(), &words));
    wait_until("the token is requested", || proxy.triggered() == 1);
    (running, proxy)
}

#[test]
fn a_signal_before_the_start_prevents_it() {
    let server = RedisServer::start();
    let (running, _proxy) = without_answer(&server);
    running.send(Signal::TERM);
    let ended = running.end();
    assert_eq!((ended.code, &*ended.output), (Some(128 + 15), ""), "{ended:?}");
    assert!(!server.exists("k"));
}

#[test]
fn a_loss_before_the_start_prevents_it() {
    let server = RedisServer::start();
    let (running, _proxy) = without_answer(&server);
    server.tell(&["DEL", "k"]);
    let ended = running.end();
    assert_eq!((ended.code, &*ended.output), (Some(79), ""), "{ended:?}");
    assert!(ended.errors.contains("before the command was started"), "{ended:?}");
}

#[test]
fn a_command_can_run_without_a_fencing_token() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    // Without the keys `lock_fence:*`.
    let rights = ["~k", "~lock_queue:*", "~lock_client:*", "&*", "+@all"];
    server.tell(&[&["ACL", "SETUSER", "guest", "on", ">secret"], &rights[..]].concat());
    let words = ["run", "k", "sh", "-c", "echo \"token '$LOCK_FENCING_TOKEN'\""];
    let mut command = lockctl(&server.url_as("guest:secret"), &words);
    command.env("LOCK_FENCING_TOKEN", "that of an enclosing run");
    let ended = RunningProcess::start(command).end();
    assert_eq!((ended.code, &*ended.output), (Some(0), "token ''\n"), "{ended:?}");
    assert!(ended.errors.contains("LOCK_FENCING_TOKEN is not set"), "{ended:?}");
    let quiet = outcome(&server.url_as("guest:secret"), &["-q", "run", "k", "true"]);
    assert_eq!((quiet.code, &*quiet.errors), (Some(0), ""));
}

#[test]
fn arguments_are_bytes_and_keys_are_texts() {
    let server = RedisServer::start();
    let bytes = || OsString::from_vec(b"a\xffb".to_vec());
    let mut command = run(&server, &[], &["k", "sh", "-c", "printf %s \"$1\" | od -An -tx1", "sh"]);
    command.arg(bytes());
    let ended = RunningProcess::start(command).end();
    assert_eq!((ended.code, ended.output.trim()), (Some(0), "61 ff 62"), "{ended:?}");
    let mut command = run(&server, &[], &[]);
    command.arg(bytes()).arg("true");
    let refused = RunningProcess::start(command).end();
    assert_eq!(refused.code, Some(64), "{refused:?}");
    assert!(refused.errors.contains("the key is not UTF-8"), "{refused:?}");
}
