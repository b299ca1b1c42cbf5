//! What the attribute says to those who misuse it.
//!
//! Each file in `fail` is a misuse with the attribute's own message beside it. Those in `rustc` are
//! told by the compiler, in words that change with its version, so they are compared on the version
//! that they were written with only. `TRYBUILD=overwrite cargo test -p lock-tests --test ui` writes
//! the messages anew.

use std::process::Command;

/// The compiler that worded the messages in `rustc`.
const WORDED_BY: &str = "rustc 1.95.";

#[test]
fn misuse_is_explained() {
    let cases = trybuild::TestCases::new();
    cases.pass("ui/pass/*.rs");
    cases.compile_fail("ui/fail/*.rs");
    let version = Command::new("rustc").arg("--version").output().expect("cargo runs it too");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if version.starts_with(WORDED_BY) {
        cases.compile_fail("ui/rustc/*.rs");
    } else {
        eprintln!("ui/rustc is not compared: it was worded by {WORDED_BY}*, this is {version}");
    }
}
