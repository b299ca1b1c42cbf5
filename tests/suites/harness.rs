//! What the suites themselves rely on.

use std::time::Duration;

use crate::support::{LEASE, helper};

#[test]
fn time_in_which_a_process_was_suspended_is_no_running_time() {
    let mut process = helper(&["stand-still"]);
    assert_eq!(process.line(), "ready");
    process.freeze();
    std::thread::sleep(LEASE / 2);
    process.thaw();
    process.tell("tell");
    let line = process.line();
    let times = line.split(' ').map(|time| Duration::from_millis(time.parse().expect("a number")));
    let [all, running] = times.collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert!(all >= LEASE / 2, "{all:?}");
    assert!(running < LEASE / 4, "{running:?} of {all:?}");
}
