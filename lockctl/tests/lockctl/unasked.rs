//! What operators see of stores whose clients cannot be asked.

use serde_json::Value;

use crate::support::{RunningProcess, lockctl, outcome, wait_until};

/// A lock in such a store is listed, shown, awaited and deleted. Another one, with the key `other`, is left. Returns the
/// holder, as `ls` has listed it, and its process.
pub(crate) fn assert_a_lock_is_seen_and_deleted(url: &str, other: &str) -> (Value, i32) {
    let is_anonymous = url.contains("application_name=");
    let run = |words: &[&str]| outcome(url, &[&["--namespace", "shop"], words].concat());
    let json = |words: &[&str]| -> Value {
        let shown = run(&[words, &["-o", "json"]].concat());
        assert_eq!((shown.code, &*shown.errors), (Some(0), ""), "{words:?}: {shown:?}");
        serde_json::from_str(&shown.output).expect("JSON")
    };
    let keys = |words: &[&str]| -> Vec<Value> {
        let locks = json(words)["locks"].take();
        locks.as_array().expect("a list").iter().map(|lock| lock["key"].clone()).collect()
    };
    assert_eq!(keys(&["ls"]), [] as [Value; 0]);
    assert!(run(&["who", "job"]).output.contains("not held"));
    let words =
        ["run", "--namespace", "shop", "--lease", "60s", "job", "sh", "-c", "echo held; read line"];
    let mut holder = RunningProcess::start(lockctl(url, &words));
    assert_eq!(holder.line(), "held");
    let elsewhere = outcome(url, &["run", "--min-hold", "60s", "--lease", "60s", other, "true"]);
    assert_eq!(elsewhere.code, Some(0), "{elsewhere:?}");

    // In etcd, the client writes who it is in the background.
    wait_until("the holder is known", || {
        !json(&["who", "job"])["holders"][0]["client"]["pid"].is_null() || is_anonymous
    });
    assert_eq!((keys(&["ls"]), keys(&["ls", "j?b"])), (vec!["job".into()], vec!["job".into()]));
    assert_eq!(keys(&["ls", "x*"]), [] as [Value; 0]);
    let all = outcome(url, &["ls"]);
    assert!(all.output.contains("shop:job") && all.output.contains(other), "{all:?}");
    let kept = outcome(url, &["delete", other, "--yes", "--token", "any"]);
    assert_eq!(kept.code, Some(75), "{kept:?}");
    assert!(kept.errors.contains("it has no holder"), "{kept:?}");
    let kept = outcome(url, &["who", other]).output;
    assert!(kept.contains("was released, and stays for its min_hold"), "{kept}");
    let listed = json(&["ls"])["locks"][0].take();
    assert_eq!((&listed["waiting"], &listed["layout"]), (&Value::Null, &"token".into()));
    let shown = json(&["who", "job"]);
    assert_eq!((&shown["held"], &shown["waiting"]), (&true.into(), &Value::Null));
    let hold = &shown["holders"][0];
    assert_eq!((&hold["token"], &hold["client"]), (&listed["token"], &listed["client"]));
    let left = hold["left_seconds"].as_f64().expect("a number");
    assert!((1.0..=62.0).contains(&left), "{left}");
    assert!(run(&["who", "job"]).output.contains("was not asked"));

    let token = hold["token"].as_str().expect("a token");
    assert_eq!(run(&["wait", "job", "-w", "0s"]).code, Some(75));
    let refused = run(&["delete", "job", "--yes", "--token", &token.to_uppercase()]);
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(run(&["wait", "job", "-w", "0s"]).code, Some(75), "it was not deleted");
    let deleted = run(&["delete", "job", "--yes", "--token", token]);
    assert_eq!(deleted.code, Some(0), "{deleted:?}");
    assert_eq!(run(&["wait", "job", "-w", "0s"]).code, Some(0));
    assert_eq!(run(&["run", "-n", "job", "true"]).code, Some(0));
    let measured = json(&["bench", "--count", "3"]);
    assert!(measured["costs"][1]["round_trips"].is_null(), "they are not counted: {measured}");
    let served = outcome(url, &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(served.code, Some(78), "{served:?}");
    assert!(served.errors.contains("cannot be asked: use `ls --watch`"), "{served:?}");
    (listed["client"].clone(), holder.id())
}
