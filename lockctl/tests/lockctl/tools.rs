//! `doctor`, `bench`, `completions` and `man`.

use lock_tests::RedisServer;
use serde_json::Value;

use crate::support::{FinishedRun, outcome};

fn doctor(url: &str) -> (FinishedRun, Vec<Value>) {
    let ended = outcome(url, &["doctor", "--namespace", "shop", "-o", "json"]);
    let found: Value = serde_json::from_str(&ended.output).expect("JSON");
    let findings = found["findings"].as_array().expect("a list").clone();
    (ended, findings)
}

/// The result of a check.
fn result<'a>(findings: &'a [Value], check: &str) -> &'a str {
    let finding = findings.iter().find(|finding| finding["check"] == check);
    finding.and_then(|finding| finding["result"].as_str()).expect("it was made")
}

#[test]
fn doctor_judges_a_server_and_leaves_nothing() {
    let server = RedisServer::with(&["--appendonly", "yes"]);
    let (ended, findings) = doctor(&server.plain_url());
    assert_eq!((ended.code, &*ended.errors), (Some(0), ""));
    for check in ["connect", "version", "role", "persistence", "eviction", "clock", "rights"] {
        assert_eq!(result(&findings, check), "ok", "{findings:?}");
    }
    for check in ["lock", "messages"] {
        assert_eq!(result(&findings, check), "ok", "{findings:?}");
    }
    assert_eq!(server.key_count(), 1, "only the fence is left: {:?}", server.keys());
    assert_eq!(doctor(&server.plain_url()).0.code, Some(0));
    assert_eq!(server.key_count(), 1, "the same one: {:?}", server.keys());
    let table = outcome(&server.plain_url(), &["doctor"]).output;
    assert!(table.starts_with("CHECK") && table.lines().count() > 9, "{table}");
}

#[test]
fn doctor_stays_in_the_database_of_the_url() {
    let server = RedisServer::start();
    for _ in 0..2 {
        let (ended, findings) = doctor(&format!("{}/3", server.plain_url()));
        assert_eq!((ended.code, result(&findings, "rights")), (Some(0), "ok"), "{findings:?}");
        let script = "redis.call('SELECT', 3) return redis.call('KEYS', '*')";
        let mut keys = server.command::<Vec<String>>(&["EVAL", script, "0"]);
        keys.retain(|key| !key.starts_with("lock_client:"));
        assert_eq!((keys.len(), server.key_count()), (1, 0), "only the fence is left: {keys:?}");
    }
}

#[test]
fn doctor_fails_on_a_server_that_may_lose_locks() {
    let options = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let server = RedisServer::with(&options);
    let (ended, findings) = doctor(&server.plain_url());
    assert_eq!(ended.code, Some(1), "{findings:?}");
    assert_eq!((result(&findings, "eviction"), result(&findings, "persistence")), ("fail", "warn"));
    let change = findings.iter().find(|finding| finding["check"] == "eviction");
    let change = change.and_then(|finding| finding["change"].as_str()).expect("a text");
    assert!(change.contains("noeviction"), "{change}");
}

#[test]
fn doctor_names_the_rights_that_are_missing() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let page = include_str!("../../../docs/redis.md");
    let line = page.split("ACL SETUSER locker on >password").nth(1).expect("the line");
    let line = line.split("```").next().expect("its end").replace('\\', "");
    let rights: Vec<&str> = line.split_whitespace().collect();
    server.tell(&[&["ACL", "SETUSER", "locker", "on", ">secret"], &rights[..]].concat());
    let url = server.url_as("locker:secret");
    let (ended, findings) = doctor(&url);
    assert_eq!((ended.code, result(&findings, "rights")), (Some(0), "ok"), "{findings:?}");
    server.tell(&["ACL", "SETUSER", "locker", "-hset", "-pubsub|numsub"]);
    let (ended, findings) = doctor(&url);
    assert_eq!(ended.code, Some(0), "{findings:?}");
    let found = findings.iter().filter(|finding| finding["check"] == "rights");
    let found: Vec<_> = found.map(|it| (it["result"].as_str(), it["found"].as_str())).collect();
    let missing = |name| (Some("warn"), Some(name));
    let expected = ["no permission for hset", "no permission for pubsub|numsub"].map(missing);
    assert_eq!(found, expected);
    server.tell(&["ACL", "SETUSER", "locker", "-pexpire"]);
    let (ended, findings) = doctor(&url);
    assert_eq!(ended.code, Some(1), "{findings:?}");
}

#[test]
fn bench_measures_three_operations_and_leaves_nothing() {
    let server = RedisServer::start();
    let ended = outcome(&server.url(), &["bench", "--count", "20", "-o", "json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let found: Value = serde_json::from_str(&ended.output).expect("JSON");
    let costs = found["costs"].as_array().expect("a list");
    let operations: Vec<_> = costs.iter().filter_map(|cost| cost["operation"].as_str()).collect();
    assert_eq!(operations, ["read", "acquire", "release"]);
    for cost in costs {
        let [p50, p99, max] =
            ["p50_seconds", "p99_seconds", "max_seconds"].map(|it| cost[it].as_f64());
        assert!(p50 > Some(0.0) && p50 <= p99 && p99 <= max, "{cost}");
    }
    assert_eq!(server.key_count(), 0, "{:?}", server.keys());
}

#[test]
fn completions_and_pages_need_no_store() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = outcome("", &["completions", shell]);
        assert_eq!((ended.code, &*ended.errors), (Some(0), ""), "{shell}");
        assert!(ended.output.contains("conflict-exit-code"), "{shell}");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("man1");
    let ended = outcome("", &["man", path.to_str().expect("UTF-8")]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let help = outcome("", &["--help"]).output;
    let commands = help.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next());
    let commands =
        commands.expect("a list").lines().filter_map(|line| line.split_whitespace().next());
    let commands: Vec<_> = commands.filter(|command| *command != "help").collect();
    assert!(commands.len() > 9, "{commands:?}");
    for command in commands {
        let page = std::fs::read_to_string(path.join(format!("lockctl-{command}.1")));
        assert!(page.expect("a page").contains(".SH"), "{command}");
    }
}

#[test]
fn help_lists_the_exit_codes() {
    for words in [&["--help"][..], &["run", "--help"]] {
        let help = outcome("", words).output;
        for code in [64, 65, 69, 70, 75, 77, 78, 79, 126, 127] {
            assert!(help.contains(&format!("\n  {code} ")), "{code}: {help}");
        }
    }
}

#[cfg(not(feature = "serve"))]
#[test]
fn a_command_of_other_builds_names_its_feature() {
    let refused = outcome("memory:", &["serve"]);
    assert_eq!(refused.code, Some(64), "{refused:?}");
    assert!(refused.errors.contains("--features serve"), "{refused:?}");
}
