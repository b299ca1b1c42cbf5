//! Negative controls: a test that keeps a protection has to fail without it.
//!
//! A control runs one test of its own program in another process, in which the protection is off, and
//! looks at how it fails. A test that passes without its protection would prove nothing. Protections
//! can be switched off in builds with `--cfg lock_controls` only.

use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// After which a test that neither passes nor fails has hung, which is no way to fail.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs this test without this protection, and fails unless it fails in these words.
pub fn assert_fails(name: &str, protection: &str, seen: &str) {
    let (passed, output) = run(protection, name);
    assert!(!passed, "{name} passes without {protection}");
    assert!(
        output.contains(seen),
        "{name} fails without {protection}, and for another reason: {output}"
    );
}

/// Whether the test passes without the protection, and what was printed.
fn run(protection: &str, name: &str) -> (bool, String) {
    let program = std::env::current_exe().expect("it runs");
    let mut printed = tempfile::tempfile().expect("a temporary file");
    let to_file = || printed.try_clone().expect("a temporary file");
    let mut child = Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env("LOCK_WITHOUT", protection)
        .stdin(Stdio::null())
        .stdout(to_file())
        .stderr(to_file())
        .spawn()
        .expect("this program");
    let end = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            break status;
        }
        if Instant::now() > end {
            child.kill().expect("our own child");
            panic!("without {protection}, {name} neither passes nor fails");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut output = String::new();
    printed.rewind().and_then(|()| printed.read_to_string(&mut output)).expect("text");
    assert!(output.contains("running 1 test"), "there is no test {name}: {output}");
    (status.success(), output)
}

/// Makes a test of each line.
#[macro_export]
macro_rules! controls {
    ($($name:ident: $test:literal without $protection:literal seeing $seen:literal;)*) => {
        $(
            #[test]
            fn $name() {
                $crate::controls::assert_fails($test, $protection, $seen);
            }
        )*
    };
}
