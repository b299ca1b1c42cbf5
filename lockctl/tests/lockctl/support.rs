//! Running `lockctl`, and watching what it runs.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use lock_tests::support::LEASE;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The usual lease of these tests. A busy machine renews it in time, and delays no signal by the margin before its
/// end.
pub(crate) const LONG: Duration = LEASE.saturating_mul(5);

/// The same, as an option.
pub(crate) fn lease() -> String {
    milliseconds(LONG)
}

pub(crate) fn milliseconds(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

/// A program that is started with the usual effects of signals. Those who run the tests may ignore some, as `nohup` and
/// background jobs do, and a program would inherit that.
pub(crate) fn with_usual_signals(program: &str) -> Command {
    // `SIGPIPE` has its usual effect in all children.
    const PIPE: u64 = 1 << 12;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    if ignored.is_none_or(|mask| mask & !PIPE == 0) {
        return Command::new(program);
    }
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    command
}

/// A `lockctl` that is to be started.
pub(crate) fn lockctl(url: &str, words: &[&str]) -> Command {
    let mut command = with_usual_signals(env!("CARGO_BIN_EXE_lockctl"));
    for name in ["LOCK_NAMESPACE", "LOCK_KEY", "NO_COLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command.env("LOCK_URL", url).args(words);
    command
}

/// What a process has printed, and its exit code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FinishedRun {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    pub(crate) errors: String,
}

/// Runs `lockctl` to its end, with an empty input.
pub(crate) fn outcome(url: &str, words: &[&str]) -> FinishedRun {
    RunningProcess::start(lockctl(url, words)).end()
}

/// Runs a command that asks all clients, until they have answered: they may be late on a busy machine, and answer
/// ten questions a second at most.
pub(crate) fn answered(url: &str, words: &[&str]) -> FinishedRun {
    let mut asked = outcome(url, words);
    wait_until("all clients answer", || {
        let is_late = asked.errors.contains("not answered");
        if is_late {
            asked = outcome(url, words);
        }
        !is_late
    });
    assert_eq!((asked.code, &*asked.errors), (Some(0), ""), "{words:?}: {asked:?}");
    asked
}

/// A process that runs. It reads what the test does not [close](Self::close_input). Killed when dropped.
#[derive(Debug)]
pub(crate) struct RunningProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines,
    errors: Lines,
}

impl RunningProcess {
    pub(crate) fn start(command: Command) -> Self {
        Self::start_with_errors(command, Stdio::piped())
    }

    /// With another stderr, from which nothing is read.
    pub(crate) fn start_with_errors(mut command: Command, errors: impl Into<Stdio>) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().expect("it was built with the tests");
        let input = child.stdin.take();
        let output = Lines::of(child.stdout.take().expect("piped"));
        let errors = child.stderr.take().map_or_else(Lines::none, Lines::of);
        Self { child, input, output, errors }
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        self.output.next().expect("a line")
    }

    /// The next line on stderr.
    pub(crate) fn error_line(&mut self) -> String {
        self.errors.next().expect("a line")
    }

    pub(crate) fn id(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child process");
    }

    /// Ends commands that read a line.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    /// Closes the input, and waits for the end.
    pub(crate) fn end(mut self) -> FinishedRun {
        self.close_input();
        let output = self.output.rest();
        let errors = self.errors.rest();
        let status = self.child.wait().expect("a child process");
        FinishedRun { code: status.code(), output, errors }
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // Both calls fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a pipe, which a thread reads.
#[derive(Debug)]
struct Lines(Receiver<String>);

impl Lines {
    fn none() -> Self {
        Self(mpsc::channel().1)
    }

    fn of(pipe: impl Read + Send + 'static) -> Self {
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines() {
                let Ok(line) = line else { return };
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Self(lines)
    }

    /// The next line, or `None` when all writers have ended.
    fn next(&self) -> Option<String> {
        match self.0.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("nothing was written for {PATIENCE:?}"),
        }
    }

    fn rest(&self) -> String {
        std::iter::from_fn(|| self.next()).map(|line| line + "\n").collect()
    }
}

/// A pipe into which nothing more can be written, and which nobody reads.
pub(crate) struct FullPipe {
    /// Keeps the pipe open.
    _reader: std::io::PipeReader,
    writer: std::io::PipeWriter,
}

impl FullPipe {
    pub(crate) fn new() -> Self {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let flags = rustix::fs::fcntl_getfl(&writer).expect("a pipe");
        rustix::fs::fcntl_setfl(&writer, flags | OFlags::NONBLOCK).expect("a pipe");
        // First in large parts, and then what is left.
        for part in [&[b'.'; 4096][..], b"."] {
            while rustix::io::write(&writer, part).is_ok() {}
        }
        rustix::fs::fcntl_setfl(&writer, flags).expect("a pipe");
        Self { _reader: reader, writer }
    }

    /// The end into which a process writes.
    pub(crate) fn writer(&self) -> Stdio {
        self.writer.try_clone().expect("a pipe").into()
    }
}

/// A named pipe on which the commands of a test report. It tells when the last of them has ended, even if nobody
/// knows their process ids. `lockctl` itself does not have it open.
#[derive(Debug)]
pub(crate) struct Witness {
    directory: TempDir,
    lines: Option<Lines>,
}

impl Witness {
    pub(crate) fn new() -> Self {
        let witness = Self { directory: tempfile::tempdir().expect("a directory"), lines: None };
        let made = Command::new("mkfifo").arg(witness.path()).status().expect("it is installed");
        assert!(made.success());
        witness
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("pipe")
    }

    /// A shell script whose output is the pipe.
    pub(crate) fn script(&self, rest: &str) -> String {
        format!("exec >'{}'; {rest}", self.path().display())
    }

    /// Waits until a script says "started": it does so when it has set its traps.
    pub(crate) fn started(&mut self) {
        let (send, opened) = mpsc::channel();
        let path = self.path();
        // Blocks until somebody writes.
        std::thread::spawn(move || send.send(File::open(path)));
        let pipe = opened.recv_timeout(PATIENCE).expect("it is opened").expect("a pipe");
        self.lines = Some(Lines::of(pipe));
        assert_eq!(self.line().as_deref(), Some("started"));
    }

    /// The next line, or `None` when all commands have ended.
    pub(crate) fn line(&self) -> Option<String> {
        self.lines.as_ref().expect("started").next()
    }

    /// Waits until all commands have ended.
    pub(crate) fn ended(&self) {
        assert_eq!(self.line(), None);
    }

    /// Whether a line comes within this time, or the end.
    pub(crate) fn line_within(&self, limit: Duration) -> Result<Option<String>, ()> {
        match self.lines.as_ref().expect("started").0.recv_timeout(limit) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(()),
        }
    }
}

/// Waits until the condition is true.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
