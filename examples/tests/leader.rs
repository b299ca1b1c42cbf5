//! One of two processes leads, and the other one takes over.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use lock_tests::RedisServer;

/// The lease of the example.
const LEASE: Duration = Duration::from_secs(2);

/// A process that is killed when it is dropped.
struct LeaderProcess {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl LeaderProcess {
    fn start(server: &RedisServer) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leader"));
        command.env("LOCK_URL", server.url()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("built with the tests");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines }
    }

    /// Waits for a line that ends a wait for the leadership. Returns the term.
    fn leads(&mut self) -> u64 {
        let name = format!("process {} leads in term ", self.child.id());
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).expect("text") > 0, "the process has ended");
            if let Some(term) = line.strip_prefix(&name) {
                return term.trim().parse().expect("a number");
            }
        }
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("a command").success());
    }
}

impl Drop for LeaderProcess {
    fn drop(&mut self) {
        // Both calls fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_other_process_leads_when_the_leader_is_killed_or_resigns() {
    let server = RedisServer::start();
    let mut leader = LeaderProcess::start(&server);
    let first = leader.leads();
    let mut next = LeaderProcess::start(&server);
    let killed = Instant::now();
    leader.signal("-KILL");
    let second = next.leads();
    assert!(second > first && killed.elapsed() < LEASE * 3, "{:?}", killed.elapsed());

    let mut last = LeaderProcess::start(&server);
    // The candidate must have registered before the leader resigns.
    while server.queued("reports") == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let interrupted = Instant::now();
    next.signal("-INT");
    let third = last.leads();
    assert!(third > second && interrupted.elapsed() < LEASE / 2, "{:?}", interrupted.elapsed());
    assert!(next.child.wait().expect("a child process").success(), "it shuts down");
}

#[test]
fn two_candidates_in_one_process_take_turns() {
    let output = Command::new(env!("CARGO_BIN_EXE_leader")).output().expect("built with the tests");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    let led: Vec<&str> =
        said.lines().filter_map(|line| line.split_once(" leads")).map(|(name, _)| name).collect();
    assert_eq!(led, ["ada", "bob", "ada", "bob"]);
    assert!(said.contains("the leader is bob"), "{said}");
}
