//! Libraries that replace functions of the system in a process.

use std::path::Path;
use std::process::Command;

/// Compiles a library for `LD_PRELOAD`. A C compiler is present, because Rust needs it for linking.
pub(crate) fn compile(source: &str, library: &Path) {
    let file = library.with_extension("c");
    std::fs::write(&file, source).expect("a temporary file");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(library).arg(&file);
    assert!(
        cc.status().expect("a C compiler, `cc`").success(),
        "{} does not compile",
        file.display()
    );
}
