//! What a command finds in its environment.

use std::collections::BTreeMap;

use lock_tests::RedisServer;

use super::run;
use crate::support::{FinishedRun, RunningProcess, lease, lockctl};

/// The variables that begin with `LOCK_`, which `env` has printed.
fn variables(outcome: &FinishedRun) -> BTreeMap<&str, &str> {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let all = outcome.output.lines().filter_map(|line| line.split_once('='));
    all.filter(|(name, _)| name.starts_with("LOCK_")).collect()
}

#[test]
fn a_command_knows_its_lock_and_not_the_url() {
    let server = RedisServer::with(&["--requirepass", "secret"]);
    let options = ["--namespace", "shop"];
    let ended = RunningProcess::start(run(&server, &options, &["order:7", "env"])).end();
    let found = variables(&ended);
    let names: Vec<_> = found.keys().copied().collect();
    let expected =
        ["LOCK_CLIENT", "LOCK_FENCING_TOKEN", "LOCK_KEY", "LOCK_LEASE_MS", "LOCK_NAMESPACE"];
    assert_eq!(names, expected);
    assert_eq!((found["LOCK_KEY"], found["LOCK_NAMESPACE"]), ("order:7", "shop"));
    assert_eq!(found["LOCK_LEASE_MS"], lease().trim_end_matches("ms"));
    assert!(server.exists(&format!("lock_client:{}", found["LOCK_CLIENT"])));
    let token: u64 = found["LOCK_FENCING_TOKEN"].parse().expect("a number");
    let next = RunningProcess::start(run(&server, &options, &["order:7", "env"])).end();
    let next: u64 = variables(&next)["LOCK_FENCING_TOKEN"].parse().expect("a number");
    assert!(next > token, "{next} > {token}");
    assert!(!ended.output.contains("secret"), "{ended:?}");
}

#[test]
fn a_nested_run_has_the_environment_of_its_own_lock() {
    let server = RedisServer::start();
    let inner = [env!("CARGO_BIN_EXE_lockctl"), "run", "inner", "env"];
    let outer = run(&server, &["--pass-url"], &[&["outer"], &inner[..]].concat());
    let ended = RunningProcess::start(outer).end();
    let found = variables(&ended);
    assert_eq!((found["LOCK_KEY"], found["LOCK_LEASE_MS"]), ("inner", "30000"));
    assert!(!found.contains_key("LOCK_URL"), "{found:?}");
    // Without the option, the inner one has no store.
    let ended = RunningProcess::start(run(&server, &[], &[&["outer"], &inner[..]].concat())).end();
    assert_eq!(ended.code, Some(78), "{ended:?}");
}

#[test]
fn the_url_may_be_in_a_file() {
    let server = RedisServer::with(&["--requirepass", "secret"]);
    let file = server.directory().join("url");
    std::fs::write(&file, server.url() + "\n").expect("a temporary file");
    let file = file.to_str().expect("UTF-8");
    let mut command = lockctl("redis://127.0.0.1:1", &["run", "--url-file", file, "k", "true"]);
    assert_eq!(RunningProcess::start(command).end().code, Some(0));
    command = lockctl("", &["run", "--url-file", "/does/not/exist", "k", "true"]);
    let refused = RunningProcess::start(command).end();
    assert_eq!(refused.code, Some(78), "{refused:?}");
}
