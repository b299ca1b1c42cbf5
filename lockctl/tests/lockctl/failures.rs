//! Bad input, and stores that do not work: each has a clear message and its exit code, and nothing is left.

use std::io::{Read, Write};
use std::net::TcpListener;

use lock_tests::RedisServer;

use crate::support::{FinishedRun, RunningProcess, lease, lockctl, outcome};

/// A server that answers each request with this text, or never if it is empty.
pub(crate) fn answering(text: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            std::thread::spawn(move || {
                let mut socket = socket.expect("a connection");
                let mut request = [0; 1024];
                while socket.read(&mut request).is_ok_and(|length| length > 0) {
                    if socket.write_all(text).is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("redis://{address}")
}

/// Runs `echo ran` under a lock, which must not happen.
fn refused(url: &str, options: &[&str]) -> FinishedRun {
    let lease = lease();
    let words = [&["run", "--lease", &lease, "-n"], options, &["k", "echo", "ran"]].concat();
    let refused = outcome(url, &words);
    assert_eq!(refused.output, "", "the command has not run");
    assert!(refused.errors.lines().count() >= 1, "there is a message");
    refused
}

#[test]
fn unknown_options_and_invalid_keys_are_errors_of_usage() {
    let server = RedisServer::start();
    let url = server.url();
    let long = "k".repeat(2000);
    for (words, message) in [
        (&["run", "--bogus", "k", "true"][..], "unexpected argument '--bogus'"),
        (&["run", "k"], "<COMMAND>"),
        (&["run", "", "true"], "the key is empty"),
        (&["run", &long, "true"], "the key has 2000 bytes; the limit is 1024"),
        (&["run", "lock_fence:1", "true"], "reserved"),
        (&["run", "--lease", "1ms", "k", "true"], "from 1s to 1d"),
        (&["run", "--lease", "25h", "k", "true"], "from 1s to 1d"),
        (&["run", "--max-hold", "8d", "k", "true"], "from 1s to 7d"),
        (&["run", "--wait", "8d", "k", "true"], "from 0s to 7d"),
        (&["run", "--min-hold", "8d", "k", "true"], "from 10ms to 7d"),
        (&["ls", "--answer-timeout", "2m"], "from 10ms to 1m"),
        (&["run", "--grace", "20s", "k", "true"], "a third of the lease"),
        (&["ls", "--watch", "1s"], "use `--watch=1s`"),
        (&["doctor", "--watch", "1s"], "use `--watch=1s`"),
        (&["bogus"], "unrecognized subcommand 'bogus'"),
        (&[], "Usage"),
        (&["--url", "redis://:secret@127.0.0.1", "run", "k", "true"], "--url-file"),
    ] {
        let refused = outcome(&url, words);
        assert_eq!(refused.code, Some(64), "{words:?}: {refused:?}");
        assert!(refused.errors.contains(message), "{words:?}: {refused:?}");
        assert!(!refused.errors.contains("secret"), "{refused:?}");
    }
    assert_eq!(server.key_count(), 0);
}

#[test]
fn a_store_that_cannot_be_reached_is_unavailable() {
    let server = RedisServer::start();
    let url = server.url();
    drop(server);
    let refused = refused(&url, &[]);
    assert_eq!(refused.code, Some(69), "{refused:?}");
    assert!(refused.errors.contains("unavailable"), "{refused:?}");
}

#[test]
fn a_server_that_never_answers_is_unavailable() {
    let refused = refused(&answering(b""), &[]);
    assert_eq!(refused.code, Some(69), "{refused:?}");
}

#[test]
fn a_server_that_answers_garbage_is_no_store() {
    for garbage in [&b"garbage\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+PONG\r\n"] {
        let refused = refused(&answering(garbage), &[]);
        assert!(matches!(refused.code, Some(69 | 78)), "{refused:?}");
    }
}

#[test]
fn rejected_credentials_and_missing_permissions_are_denied() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let refused_password = refused(&server.url_as(":wrong-secret"), &["-v"]);
    assert_eq!(refused_password.code, Some(77), "{refused_password:?}");
    assert!(!refused_password.errors.contains("wrong-secret"), "{refused_password:?}");
    assert!(!refused_password.errors.contains("WireFormat"), "{refused_password:?}");
    let no_password = refused(&server.url_as("nobody").replace("nobody@", ""), &[]);
    assert_eq!(no_password.code, Some(77), "{no_password:?}");
    assert!(
        no_password.errors.contains("requires a password, and the URL has none for it"),
        "{no_password:?}"
    );
    server.tell(&[
        "ACL",
        "SETUSER",
        "guest",
        "on",
        ">guest-secret",
        "~*",
        "&*",
        "+@all",
        "-eval",
        "-evalsha",
    ]);
    let without_scripts = refused(&server.url_as("guest:guest-secret"), &["-vvv"]);
    assert_eq!(without_scripts.code, Some(77), "{without_scripts:?}");
    assert!(!without_scripts.errors.contains("guest-secret"), "{without_scripts:?}");
    assert_eq!(server.key_count(), 0);
}

#[test]
fn a_user_without_scan_and_pubsub_can_run_commands() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let rights = ["~*", "&*", "+@all", "-scan", "-keys", "-@pubsub"];
    server.tell(&[&["ACL", "SETUSER", "guest", "on", ">secret"], &rights[..]].concat());
    let ended = outcome(&server.url_as("guest:secret"), &["run", "k", "echo", "ran"]);
    assert_eq!((ended.code, &*ended.output), (Some(0), "ran\n"), "{ended:?}");
}

#[test]
fn a_key_that_is_no_lock_is_not_changed() {
    let server = RedisServer::start();
    server.tell(&["RPUSH", "k", "a", "b"]);
    let refused = refused(&server.url(), &[]);
    assert_eq!(refused.code, Some(65), "{refused:?}");
    assert!(refused.errors.contains("instead of a string (as in `--format token`)"), "{refused:?}");
    assert_eq!(server.command::<Vec<String>>(&["LRANGE", "k", "0", "-1"]), ["a", "b"]);
}

#[test]
fn a_key_that_never_expires_leads_to_delete() {
    let server = RedisServer::start();
    server.tell(&["SET", "k", "v"]);
    let refused = refused(&server.url(), &[]);
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert!(refused.errors.contains("use `lockctl delete` with the token"), "{refused:?}");
}

#[test]
fn a_setting_that_is_invalid_is_an_error_of_configuration() {
    for (url, options, message) in [
        ("http://host", &[][..], "the URL"),
        ("", &[], "LOCK_URL"),
        ("redis://127.0.0.1:1", &["--namespace", "a b"], "namespace"),
        ("memory:", &[], "excludes only the tasks of one process"),
        (" memory:name", &[], "redis://host:6379"),
    ] {
        let words = [&["run"], options, &["k", "echo", "ran"]].concat();
        let refused = outcome(url, &words);
        assert_eq!(refused.code, Some(78), "{url} {options:?}: {refused:?}");
        assert!(refused.errors.contains(message), "{url} {options:?}: {refused:?}");
        assert_eq!(refused.output, "", "the command has not run");
    }
}

#[test]
fn no_output_contains_the_password() {
    let server = RedisServer::with(&["--requirepass", "secret-word"]);
    let url = server.url();
    for words in [&["--help"][..], &["run", "--help"], &["-vvv", "run", "k", "true"]] {
        let ended = RunningProcess::start(lockctl(&url, words)).end();
        assert_eq!(ended.code, Some(0), "{words:?}");
        assert!(!ended.output.contains("secret-word"), "{words:?}");
        assert!(!ended.errors.contains("secret-word"), "{words:?}");
    }
}
