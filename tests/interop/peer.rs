//! A peer: a program around a lock library of another language. `peers/README.md` describes its
//! line protocol.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_tests::within;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::clients::Client;

/// The time after which a program without output counts as hung.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A running program. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    pending: PendingCommands,
    sent: u64,
}

/// The commands without an answer, by their number. [`Peer::send`] inserts them, and the reader
/// thread removes them.
type PendingCommands = Arc<Mutex<HashMap<u64, oneshot::Sender<String>>>>;

impl Peer {
    /// Starts a program and waits until it is ready. If its library renews locks, it uses this
    /// lease instead of its default.
    pub(crate) async fn start(client: &Client, url: &str, lease: Option<Duration>) -> Self {
        let mut command = match client.language {
            "rust" => Command::new(example("rslock-peer")),
            language => {
                let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers/run");
                let mut command = Command::new(run);
                command.arg(language);
                command
            }
        };
        command.args([client.name, url]);
        if let Some(lease) = lease {
            command.env("PEER_LEASE", lease.as_millis().to_string());
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("scripts/interop builds the program");
        let input = child.stdin.take().expect("piped");
        let output = child.stdout.take().expect("piped");
        let pending = PendingCommands::default();
        let (ready, is_ready) = oneshot::channel();
        let peer = Self { child, input, pending: Arc::clone(&pending), sent: 0 };
        std::thread::spawn(move || read(output, ready, &pending));
        let line = within(TIMEOUT, is_ready).await.expect("the program becomes ready");
        let line = line.unwrap_or_else(|_| panic!("{} ended; see its output", client.name));
        let announced = format!("ready {} {} | ", client.name, client.version);
        assert!(line.starts_with(&announced), "{line:?} instead of {announced:?}");
        peer
    }

    /// Sends a command. The returned future waits for the answer.
    pub(crate) fn send(&mut self, command: &str) -> impl Future<Output = String> + Send + use<> {
        self.sent += 1;
        let (answer, answered) = oneshot::channel();
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(self.sent, answer);
        writeln!(self.input, "{} {command}", self.sent).expect("the program reads its input");
        let command = command.to_owned();
        async move {
            let answer = timeout(TIMEOUT, answered).await;
            let answer = answer.unwrap_or_else(|_| panic!("no answer to {command:?}"));
            answer.unwrap_or_else(|_| panic!("the program ended before it answered {command:?}"))
        }
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn ask(&mut self, command: &str) -> impl Future<Output = String> + use<> {
        self.send(command)
    }

    /// Sends a command and asserts that it succeeds.
    pub(crate) fn tell(&mut self, command: &str) -> impl Future<Output = ()> + use<> {
        let (answer, command) = (self.send(command), command.to_owned());
        async move { assert_eq!(answer.await, "ok", "{command}") }
    }

    /// Makes the program end at once, without releasing its locks.
    pub(crate) fn crash(mut self) {
        drop(self.send("crash"));
        let status = self.child.wait().expect("a child process");
        assert!(!status.success(), "a crash must not exit with success");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both calls fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of an example of this package.
fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("the path of this program");
    this.parent().expect("in `deps`").with_file_name("examples").join(name)
}

/// Passes each answer to its command, until the program ends.
fn read(output: ChildStdout, ready: oneshot::Sender<String>, pending: &PendingCommands) {
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    // Sending fails if the receiver was dropped; here and below.
    let _ = ready.send(first);
    for line in lines {
        let (number, answer) = line.split_once(' ').expect("a number and an answer");
        let number = number.parse().expect("a number");
        let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
        let command = pending.remove(&number).expect("an answer to a command");
        let _ = command.send(answer.to_owned());
    }
    pending.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
