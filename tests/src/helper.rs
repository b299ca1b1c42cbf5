//! Another process that uses locks.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A running `lock-helper`. It speaks in lines; ends when dropped.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts `program`, which is `env!("CARGO_BIN_EXE_lock-helper")` in a suite.
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

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next line that it prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the helper talks");
        line.trim().to_owned()
    }

    /// Tells it something.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the helper listens");
    }

    /// Ends it at once: SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    /// Freezes it.
    pub fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("our own child");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("our own child");
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Ended before, perhaps: then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
