//! Two processes never hold the same lock at once.

use lock_tests::{Helper, RedisServer};

use crate::support::helper;

const TASKS: u64 = 1000;

fn count(server: &RedisServer, how: &str) -> u64 {
    let (url, counter) = (server.url(), server.plain_url());
    let args = ["count", &url, &counter, "hot", &TASKS.to_string(), how];
    let mut processes: Vec<Helper> = (0..2).map(|_| helper(&args)).collect();
    for process in &mut processes {
        assert_eq!(process.line(), "ready");
    }
    for process in &mut processes {
        process.tell("go");
    }
    for process in &mut processes {
        assert_eq!(process.line(), "done");
    }
    server.command(&["GET", "n"])
}

#[test]
fn two_processes_of_a_thousand_tasks_count_exactly() {
    let server = RedisServer::start();
    assert_eq!(count(&server, "locked"), 2 * TASKS);
    assert!(!server.exists("hot"));
}

/// The control of the test above: the counter is not safe without the lock.
#[test]
fn without_the_lock_the_count_is_wrong() {
    let server = RedisServer::start();
    assert!(count(&server, "unlocked") < 2 * TASKS);
}
