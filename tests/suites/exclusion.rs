//! Two processes never hold the same lock at once.

use lock_tests::RedisServer;
use lock_tests::support::count_by_processes;

const TASKS: u64 = 1000;

fn count(server: &RedisServer, tasks: u64, how: &str) -> u64 {
    count_by_processes(env!("CARGO_BIN_EXE_lock-helper"), (&server.url(), server), tasks, how)
}

#[test]
fn two_processes_of_a_thousand_tasks_count_exactly() {
    let server = RedisServer::start();
    assert_eq!(count(&server, TASKS, "plain"), 2 * TASKS);
    assert!(!server.exists("hot"));
}

#[test]
fn two_processes_count_exactly_with_locks_of_each_kind() {
    let tasks = TASKS / 4;
    for how in ["fair", "write", "permits", "set"] {
        let server = RedisServer::start();
        assert_eq!(count(&server, tasks, how), 2 * tasks, "{how}");
    }
}

/// The control of the test above: the counter is not safe without the lock.
#[test]
fn without_the_lock_the_count_is_wrong() {
    let server = RedisServer::start();
    assert!(count(&server, TASKS, "none") < 2 * TASKS);
}
