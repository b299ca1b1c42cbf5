//! Commands under locks in etcd.

use lock_tests::EtcdCluster;

use crate::support::{RunningProcess, lockctl, outcome};
use crate::unasked::assert_a_lock_is_seen_and_deleted;

/// A run of a command that holds its lock until its input ends.
fn holder(etcd: &EtcdCluster) -> RunningProcess {
    let script = "echo token $LOCK_FENCING_TOKEN; read line; exit 3";
    let words = ["run", "job", "--", "sh", "-c", script];
    RunningProcess::start(lockctl(&etcd.url(), &words))
}

fn token(line: &str) -> u64 {
    let token = line.strip_prefix("token ").and_then(|token| token.parse().ok());
    token.unwrap_or_else(|| panic!("no token: {line:?}"))
}

#[test]
fn commands_run_under_locks_one_at_a_time_and_with_rising_tokens() {
    let mut etcd = EtcdCluster::single();
    let url = etcd.url();
    let mut first = holder(&etcd);
    let before = token(&first.line());
    assert_eq!(etcd.keys("job").len(), 1);
    let refused = outcome(&url, &["run", "-n", "job", "--", "echo", "ran"]);
    assert_eq!((refused.code, &*refused.output), (Some(75), ""), "{refused:?}");
    assert!(refused.errors.contains("lock \"job\" is busy"), "{refused:?}");
    // The control: another lock is free.
    let other = outcome(&url, &["run", "-n", "other", "--", "echo", "ran"]);
    assert_eq!((other.code, &*other.output), (Some(0), "ran\n"), "{other:?}");
    let mut second = holder(&etcd);
    let ended = first.end();
    assert_eq!((ended.code, &*ended.errors), (Some(3), ""));
    assert!(token(&second.line()) > before, "the token rises");
    assert_eq!(second.end().code, Some(3));
    assert_eq!(etcd.keys("job"), Vec::<String>::new(), "nothing is left");
    etcd.kill(0);
    let down = outcome(&url, &["run", "--lease", "1s", "job", "--", "echo", "ran"]);
    assert_eq!((down.code, &*down.output), (Some(69), ""), "{down:?}");
}

#[test]
fn what_etcd_does_not_have_is_refused_by_its_name() {
    let etcd = EtcdCluster::single();
    let url = etcd.url();
    for (words, expected) in [
        (&["revoke", "job"][..], "the store `etcd` has no clients"),
        (&["clients"], "the store `etcd` has no clients"),
        (&["ls", "--waiting"], "for which keys calls wait"),
        (&["ls", "--scan", "--all", "--stale"], "which holders are connected"),
    ] {
        let refused = outcome(&url, words);
        assert_eq!((refused.code, &*refused.output), (Some(78), ""), "{words:?}: {refused:?}");
        assert!(refused.errors.contains(expected), "{words:?}: {refused:?}");
    }
    // The control: what works is not refused.
    let healthy = outcome(&url, &["doctor"]);
    assert_eq!((healthy.code, &*healthy.errors), (Some(0), ""), "{healthy:?}");
    for words in ["acquired, fenced and released", "`ls` and `who` show what the store knows"] {
        assert!(healthy.output.contains(words), "{healthy:?}");
    }
    let measured = outcome(&url, &["bench", "--count", "5"]);
    assert_eq!(measured.code, Some(0), "{measured:?}");
    assert!(measured.output.contains("release"), "{measured:?}");
}

#[test]
fn operators_see_locks_in_etcd_with_their_processes_and_delete_one() {
    let etcd = EtcdCluster::single();
    let (client, process) = assert_a_lock_is_seen_and_deleted(&etcd.url(), "other");
    assert_eq!((&client["pid"], &client["service"]), (&process.into(), &"lockctl".into()));
    assert_eq!(etcd.keys("shop:"), Vec::<String>::new(), "nothing is left");
}
