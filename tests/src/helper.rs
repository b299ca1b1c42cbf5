//! A child process that uses locks.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::suspension::{resume, suspend};

/// A running `lock-helper` that reads and writes lines of text. Killed when dropped.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts `program`. In a test suite this is `env!("CARGO_BIN_EXE_lock-helper")`.
    #[must_use]
    pub fn start(program: &str, args: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the helper was built with the tests");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next line that the process prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the helper's output is readable");
        line.trim().to_owned()
    }

    /// Sends a line to the process.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the helper reads its input");
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child process");
        self.child.wait().expect("a child process");
    }

    /// Suspends the process with SIGSTOP.
    pub fn freeze(&self) {
        suspend(&self.child);
    }

    /// Resumes the process with SIGCONT.
    pub fn thaw(&self) {
        resume(&self.child);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Both calls fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
