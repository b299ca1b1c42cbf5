//! What the suites themselves rely on.

use std::time::Duration;

use crate::support::{LEASE, helper};

/// All time and the running time of a process, in which it is suspended or not.
fn times(pause: Duration, is_suspended: bool) -> [Duration; 2] {
    let mut process = helper(&["stand-still"]);
    assert_eq!(process.line(), "ready");
    if is_suspended {
        process.freeze();
    }
    std::thread::sleep(pause);
    process.thaw();
    process.tell("tell");
    let line = process.line();
    let times = line.split(' ').map(|time| Duration::from_millis(time.parse().expect("a number")));
    let times: Vec<_> = times.collect();
    times.try_into().unwrap_or_else(|times| panic!("{times:?}"))
}

#[test]
fn time_in_which_a_process_was_suspended_is_no_running_time() {
    let [all, running] = times(LEASE / 2, true);
    assert!(all >= LEASE / 2, "{all:?}");
    assert!(running < all * 2 / 5, "{running:?} of {all:?}");
}

/// The control.
#[test]
fn other_time_is_running_time() {
    // A busy machine seldom runs a process for longer without a stall.
    let is_most = |[all, running]: [Duration; 2]| running > all * 4 / 5;
    assert!((0..100).any(|_| is_most(times(LEASE / 20, false))), "no running time is measured");
}
