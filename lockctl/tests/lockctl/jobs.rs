//! `lockctl run` as a job of a terminal that controls it, with the keys that send signals.

use std::process::Command;

use lock_tests::RedisServer;
use tempfile::TempDir;

use crate::support::{lockctl, wait_until, with_usual_signals};
use crate::terminal::AtTerminal;

const INTERRUPT: &str = "\u{3}";
const QUIT: &str = "\u{1c}";
const SUSPEND: &str = "\u{1a}";

/// The same, as the first process of a session that the terminal controls, and its foreground job.
fn in_session(command: &Command) -> Command {
    let mut leader = Command::new("setsid");
    leader.arg("--ctty").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => leader.env(name, value),
            None => leader.env_remove(name),
        };
    }
    leader
}

/// Runs a script under the lock `k`, until it says "started".
fn started(server: &RedisServer, script: &str) -> AtTerminal {
    let words = ["run", "--lease", "60s", "k", "sh", "-c", script];
    let mut running = AtTerminal::start(in_session(&lockctl(&server.url(), &words)));
    running.shows("started");
    running
}

/// An interactive shell that starts jobs.
struct JobShell {
    terminal: AtTerminal,
    /// Where the commands of its jobs are.
    directory: TempDir,
    /// The number of questions so far.
    asked: usize,
}

impl JobShell {
    fn start(server: &RedisServer) -> Self {
        let mut shell = with_usual_signals("sh");
        shell.arg("-i").env("LOCK_URL", server.url()).env("PS1", "").env_remove("ENV");
        let terminal = AtTerminal::start(in_session(&shell));
        let mut shell =
            Self { terminal, directory: tempfile::tempdir().expect("a directory"), asked: 0 };
        shell.answers();
        shell
    }

    /// Starts a script under the lock `k`, with these words after it, and waits until it says "started".
    fn run(&mut self, script: &str, rest: &str) {
        let file = self.directory.path().join("script");
        std::fs::write(&file, script).expect("a directory");
        let program = env!("CARGO_BIN_EXE_lockctl");
        let file = file.display();
        self.terminal.seen.clear();
        self.terminal.types(&format!("'{program}' run --lease 60s k sh '{file}' {rest}\n"));
        self.terminal.shows("started");
    }

    /// Waits until the shell itself reads the terminal: it answers a question. Returns the exit code of its last command.
    fn answers(&mut self) -> i32 {
        self.asked += 1;
        // The terminal also shows what is typed, where the number has no value yet.
        let start = format!("answer {} is ", self.asked);
        self.terminal.types(&format!("echo answer {} is $? end\n", self.asked));
        let code = |seen: &str| {
            let mut answers = seen.split(&*start).filter_map(|rest| rest.split_once(" end"));
            answers.find_map(|(code, _)| code.parse().ok())
        };
        self.terminal.reads_until(&start, |seen| code(seen).is_some());
        code(&self.terminal.seen).expect("it was read")
    }
}

/// The states of all processes with this text in their command lines: `T` if suspended.
fn states(script: &str) -> Vec<char> {
    let processes = std::fs::read_dir("/proc").expect("Linux");
    let mut states = Vec::new();
    for process in processes.filter_map(Result::ok) {
        let line = std::fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
        if line.contains(script) {
            let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            states.extend(stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()));
        }
    }
    states
}

#[test]
fn each_key_of_the_terminal_reaches_the_command_once() {
    let server = RedisServer::start();
    // A shell that waits handles each signal at once, so a second one would count.
    let script = "trap 'n=$((n + 1)); echo got $n.' INT; trap 'echo quit; kill $!; exit 7' QUIT; \
                  sleep 1000 & echo started; while :; do wait; done";
    let mut running = started(&server, script);
    for number in 1..=20 {
        running.types(INTERRUPT);
        running.shows(&format!("got {number}."));
    }
    assert!(server.exists("k"), "the command goes on");
    running.types(QUIT);
    running.shows("quit");
    let (code, screen) = running.end();
    assert_eq!(code, Some(7), "that of the command: {screen:?}");
    assert!(!screen.contains("got 21."), "lockctl does not pass them on as well: {screen:?}");
    assert!(!server.exists("k"), "the lock is released");
}

#[test]
fn a_command_that_a_key_ends_has_the_exit_code_of_shells() {
    let server = RedisServer::start();
    for (key, code) in [(INTERRUPT, 130), (QUIT, 131)] {
        let (found, screen) = {
            let mut running = started(&server, "ulimit -c 0; echo started; exec sleep 1000");
            running.types(key);
            running.end()
        };
        assert_eq!(found, Some(code), "{screen:?}");
        assert!(!server.exists("k"), "the lock is released");
    }
}

#[test]
fn a_key_ends_lockctl_while_it_waits() {
    let server = RedisServer::start();
    server.tell(&["SET", "k", "another", "PX", "600000"]);
    let words = ["run", "k", "echo", "ran"];
    let mut waiting = AtTerminal::start(in_session(&lockctl(&server.url(), &words)));
    wait_until("it waits", || server.queued("k") == 1);
    waiting.types(INTERRUPT);
    let (code, screen) = waiting.end();
    assert_eq!(code, Some(130), "{screen:?}");
    assert!(!screen.contains("ran"), "{screen:?}");
    assert_eq!(server.queued("k"), 0, "its place in the queue is gone");
}

/// With the terminal as input, the command is in the group of lockctl, and otherwise it has its own.
#[test]
fn a_job_that_is_suspended_gives_the_terminal_back_and_continues_with_fg() {
    let server = RedisServer::start();
    for (input, read) in [("", "read line; echo read $line;"), ("</dev/null", "")] {
        let mut shell = JobShell::start(&server);
        // It starts nothing later: a shell that is just starting a process cannot be suspended.
        let script = format!(
            "trap 'echo got; {read} kill $!; exit 7' INT; sleep 1000 & echo started; while :; do wait; done"
        );
        shell.run(&script, input);
        let name = shell.directory.path().join("script").display().to_string();
        wait_until("lockctl and the command run", || states(&name).len() == 2);
        shell.terminal.types(SUSPEND);
        wait_until("both are suspended", || states(&name) == ['T', 'T']);
        let code = shell.answers();
        assert!(code > 128, "{input:?}: the job was suspended: {code}");
        assert!(server.exists("k"), "the lease has not ended");
        shell.terminal.types("fg\n");
        wait_until("both continue", || !states(&name).contains(&'T'));
        shell.terminal.types(INTERRUPT);
        shell.terminal.shows("got");
        if !read.is_empty() {
            shell.terminal.types("a word\n");
            shell.terminal.shows("read a word");
        }
        assert_eq!(shell.answers(), 7, "{input:?}: that of the command");
        assert!(!server.exists("k"), "the lock is released");
        shell.terminal.types("exit\n");
        let (code, screen) = shell.terminal.end();
        assert_eq!(code, Some(0), "{input:?}: {screen:?}");
    }
}

#[test]
fn the_shell_has_the_terminal_again_after_a_command() {
    let server = RedisServer::start();
    let mut shell = JobShell::start(&server);
    for (input, code) in [("", 5), ("</dev/null", 6)] {
        shell.run(&format!("echo started; exit {code}"), input);
        assert_eq!(shell.answers(), code);
    }
}
