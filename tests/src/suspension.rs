//! Suspending child processes.

use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// How long the threads of a process may take to stop.
const LIMIT: Duration = Duration::from_secs(20);

/// Suspends a child process with SIGSTOP, and waits until all its threads have stopped.
///
/// # Panics
///
/// If the process does not stop.
pub(crate) fn suspend(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).expect("a child process");
    // The state is only looked at, so that the process can be waited for later.
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let end = Instant::now() + LIMIT;
    while waitid(WaitId::Pid(pid), options).expect("a child process").is_none() {
        assert!(Instant::now() < end, "the process does not stop");
        sleep(Duration::from_millis(1));
    }
}

/// Resumes a child process with SIGCONT.
pub(crate) fn resume(child: &Child) {
    kill_process(Pid::from_child(child), Signal::CONT).expect("a child process");
}
