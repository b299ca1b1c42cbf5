//! The compile errors for misuse of the attribute.
//!
//! The attribute itself rejects the files in `fail`, and the compiler rejects those in `rustc`. The
//! compiler's messages differ between versions, so the test compares them only with the version
//! that produced the expected messages. `TRYBUILD=overwrite cargo test -p lock-ui-tests`
//! updates the expected messages of both folders. Code that has to compile is no case here: with such a case, all others
//! would be built instead of checked.

use std::process::Command;

/// The compiler version that produced the expected messages in `rustc`. The workflow uses the same one.
const EXPECTED_FROM: &str = "rustc 1.95.";

#[test]
fn misuse_is_explained() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("fail/*.rs");
    let version = Command::new("rustc").arg("--version").output().expect("cargo runs it too");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if version.starts_with(EXPECTED_FROM) {
        cases.compile_fail("rustc/*.rs");
    } else {
        eprintln!(
            "tests/ui/rustc is skipped: its messages are those of {EXPECTED_FROM}*, and this is {version}"
        );
    }
}
