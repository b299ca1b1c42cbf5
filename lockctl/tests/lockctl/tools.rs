//! `bench`, `completions` and `man`.

use lock_tests::RedisServer;
use serde_json::Value;

use crate::support::outcome;

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
        assert_eq!(cost["round_trips"].as_f64(), Some(1.0), "{cost}");
    }
    let ended = outcome("memory:", &["bench", "--count", "20", "-o", "json"]);
    let found: Value = serde_json::from_str(&ended.output).expect("JSON");
    assert_eq!(found["costs"][1]["round_trips"].as_f64(), Some(0.0), "they are counted: {found}");
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
