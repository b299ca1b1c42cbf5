//! Negative controls: a test of a safeguard must fail without that safeguard.
//!
//! A control runs one test of its own binary in a child process with the safeguard disabled, and
//! checks how the test fails. A test that passes without its safeguard proves nothing. Safeguards
//! can be disabled only in builds with `--cfg lock_controls`.

use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// The time after which a test counts as hung. A hang is not an accepted failure.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The number of runs in which a violation has to be seen. Without its safeguard, a race may decide whether
/// a test sees the violation, and in which of its assertions.
const MOST_RUNS: usize = 5;

/// Runs the test `name` without `safeguard`, and asserts that it fails with output that contains
/// `seen`.
pub fn assert_fails(name: &str, safeguard: &str, seen: &str) {
    for run_number in 1..=MOST_RUNS {
        let (passed, output) = run(safeguard, name);
        if !passed && output.contains(seen) {
            return;
        }
        let problem = if passed { "passes" } else { "fails for another reason" };
        eprintln!("run {run_number} of {name}: it {problem} without {safeguard}: {output}");
    }
    panic!("{name} does not fail without {safeguard} as it should: see the output of its runs");
}

/// Returns whether the test passes without the safeguard, and its output.
fn run(safeguard: &str, name: &str) -> (bool, String) {
    let program = std::env::current_exe().expect("the path of this program");
    let mut printed = tempfile::tempfile().expect("a temporary file");
    let to_file = || printed.try_clone().expect("a temporary file");
    let mut child = Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env("LOCK_WITHOUT", safeguard)
        // With the servers that it starts.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(to_file())
        .stderr(to_file())
        .spawn()
        .expect("this program");
    let end = Instant::now() + TIMEOUT;
    let status = loop {
        let status = child.try_wait().expect("a child process");
        if status.is_some() || Instant::now() > end {
            break status;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // A test that hangs or aborts leaves its servers behind. Usually, the group is gone.
    let group = Pid::from_child(&child);
    let _ = kill_process_group(group, Signal::KILL);
    let Some(status) = status else {
        child.wait().expect("a child process");
        return (false, format!("it neither passes nor fails within {TIMEOUT:?}"));
    };
    let mut output = String::new();
    printed.rewind().and_then(|()| printed.read_to_string(&mut output)).expect("text");
    assert!(output.contains("running 1 test"), "there is no test {name}: {output}");
    (status.success(), output)
}

/// Generates one test per line.
#[macro_export]
macro_rules! controls {
    ($($name:ident: $test:literal without $safeguard:literal seeing $seen:literal;)*) => {
        $(
            #[test]
            fn $name() {
                $crate::controls::assert_fails($test, $safeguard, $seen);
            }
        )*
    };
}
