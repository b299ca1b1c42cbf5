//! Tables, JSON and colours.

use lock_tests::RedisServer;
use lock_tests::support::{LEASE, client};
use serde_json::Value;

use crate::support::{RunningProcess, lockctl, milliseconds};

/// With a new line, a colour, a change of the direction of the text, and control characters of one and of two bytes.
const HOSTILE: &str = "a\n\u{1b}[31mb\u{202e}c\"'\\\u{7f}\u{9b}1m";

fn listed(server: &RedisServer, words: &[&str], variable: (&str, &str)) -> String {
    let words = [&["ls", "--answer-timeout", "20s"], words].concat();
    let mut command = lockctl(&server.url(), &words);
    command.env(variable.0, variable.1);
    let ended = RunningProcess::start(command).end();
    assert_eq!((ended.code, &*ended.errors), (Some(0), ""));
    ended.output
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_keys_are_escaped_in_tables_and_exact_in_json() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let _guard = client.lock(HOSTILE).acquire().await.expect("free");
    let none = ("UNUSED", "");
    let table = listed(&server, &[], none);
    assert_eq!(table.lines().count(), 2, "{table:?}");
    assert!(table.contains(r#"a\n\u{1b}[31mb\u{202e}c"'\\\u{7f}\u{9b}1m"#), "{table:?}");
    let hidden = ['\u{1b}', '\u{202e}', '\u{7f}', '\u{9b}'];
    assert!(!table.contains(hidden), "{table:?}");
    for format in ["json", "ndjson"] {
        let text = listed(&server, &["-o", format], none);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.contains(hidden), "{text:?}");
        let found: Value = serde_json::from_str(&text).expect("JSON");
        let lock = if format == "json" { &found["locks"][0] } else { &found };
        assert_eq!((&lock["key"], &found["v"]), (&HOSTILE.into(), &1.into()));
    }
}

#[test]
fn colours_are_for_terminals_unless_they_are_forced() {
    let server = RedisServer::start();
    let words = ["run", "k", "sh", "-c", "echo held; read line"];
    let mut holder = RunningProcess::start(lockctl(&server.url(), &words));
    assert_eq!(holder.line(), "held");
    let is_coloured =
        |words: &[&str], variable| listed(&server, words, variable).contains('\u{1b}');
    assert!(!is_coloured(&[], ("UNUSED", "")));
    assert!(is_coloured(&[], ("CLICOLOR_FORCE", "1")));
    assert!(!is_coloured(&["--no-color"], ("CLICOLOR_FORCE", "1")));
    assert!(!is_coloured(&[], ("NO_COLOR", "1")));
    let usage_is_coloured = |words: &[&str]| {
        let mut command = lockctl(&server.url(), words);
        command.env("CLICOLOR_FORCE", "1");
        let refused = RunningProcess::start(command).end();
        assert_eq!(refused.code, Some(64), "{refused:?}");
        refused.errors.contains('\u{1b}')
    };
    assert!(usage_is_coloured(&["who"]));
    assert!(!usage_is_coloured(&["who", "--no-color"]));
}

#[test]
fn variables_do_not_change_the_usage_of_errors() {
    for (words, usage) in [
        (&["who"][..], "Usage: lockctl who [OPTIONS] <KEY>\n"),
        (&["delete", "k"], "Usage: lockctl delete [OPTIONS] --token <TOKEN> <KEY>\n"),
        (&["ls", "-q", "-v"], "Usage: lockctl ls [OPTIONS] [PATTERN]\n"),
        (&["man"], "Usage: lockctl man <DIRECTORY>\n"),
        (&["run", "k"], "Usage: lockctl run [OPTIONS] KEY [--] COMMAND [ARGUMENT]...\n"),
    ] {
        let mut command = lockctl("redis://host", words);
        command.env("LOCK_NAMESPACE", "shop");
        let refused = RunningProcess::start(command).end();
        assert!(refused.errors.contains(usage), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_prints_again_and_again_also_after_an_outage() {
    let mut server = RedisServer::start();
    let client = client(&server.url()).await;
    let guard = client.lock("k").lease(LEASE * 60).acquire().await.expect("free");
    let watch = format!("--watch={}", milliseconds(LEASE / 10));
    let words = ["ls", "-o", "ndjson", "--answer-timeout", "20s", &watch];
    let mut watching = RunningProcess::start(lockctl(&server.url(), &words));
    for _ in 0..3 {
        let found: Value = serde_json::from_str(&watching.line()).expect("JSON");
        assert_eq!(found["key"], "k");
    }
    server.kill();
    while !watching.error_line().contains("unavailable") {}
    server.restart();
    drop(guard);
    let again = client.lock("again").lease(LEASE * 60).acquire().await.expect("free");
    while !watching.line().contains("again") {}
    drop(again);
}

/// The output is a pipe whose reader has gone, or goes while there is nothing to print.
#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let server = RedisServer::start();
    let watch = ["ls", "-o", "ndjson", "--watch=100ms"];
    for words in [&["ls"][..], &["ls", "-o", "json"], &watch, &["completions", "bash"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = lockctl(&server.url(), words);
        command.stdout(writer).stderr(std::process::Stdio::piped());
        let ended = command.output().expect("it was built with the tests");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), &*errors), (Some(0), ""), "{words:?}");
    }
}

#[test]
fn texts_of_a_server_do_not_control_the_terminal() {
    let url = crate::failures::answering(b"-ERR \x1b[31mred\xc2\x9b1m\r\n");
    for words in [&["run", "-n", "k", "true"][..], &["-vvv", "run", "-n", "k", "true"]] {
        let refused = crate::support::outcome(&url, words);
        assert!(refused.errors.contains(r"\u{1b}[31mred"), "{refused:?}");
        assert!(!refused.errors.contains(['\u{1b}', '\u{9b}']), "{refused:?}");
    }
}
