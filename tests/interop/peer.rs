//! A program around a lock library of another language, and its line protocol: see `peers/README.md`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::clients::Client;

/// After which a program that says nothing has hung.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running program. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    open: Open,
    sent: u64,
}

/// The commands that are not answered yet, by their number. Commands put themselves in, the thread that
/// reads takes them out.
type Open = Arc<Mutex<HashMap<u64, oneshot::Sender<String>>>>;

impl Peer {
    /// Starts one and waits until it is ready. If its library renews, then with this lease instead of its
    /// own.
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
            .expect("scripts/interop builds it");
        let input = child.stdin.take().expect("piped");
        let output = child.stdout.take().expect("piped");
        let open = Open::default();
        let (ready, is_ready) = oneshot::channel();
        let peer = Self { child, input, open: Arc::clone(&open), sent: 0 };
        std::thread::spawn(move || read(output, ready, &open));
        let line = timeout(PATIENCE, is_ready).await.expect("it becomes ready");
        let line = line.unwrap_or_else(|_| panic!("{} ended; see its last words", client.name));
        let announced = format!("ready {} {} | ", client.name, client.version);
        assert!(line.starts_with(&announced), "{line:?} instead of {announced:?}");
        peer
    }

    /// Sends a command; what is returned waits for the answer.
    pub(crate) fn send(&mut self, command: &str) -> impl Future<Output = String> + Send + use<> {
        self.sent += 1;
        let (answer, answered) = oneshot::channel();
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(self.sent, answer);
        writeln!(self.input, "{} {command}", self.sent).expect("it listens");
        let command = command.to_owned();
        async move {
            let answer = timeout(PATIENCE, answered).await;
            let answer = answer.unwrap_or_else(|_| panic!("no answer to {command:?}"));
            answer.unwrap_or_else(|_| panic!("it ended before it answered {command:?}"))
        }
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn ask(&mut self, command: &str) -> impl Future<Output = String> + use<> {
        self.send(command)
    }

    /// Has a command done.
    pub(crate) fn tell(&mut self, command: &str) -> impl Future<Output = ()> + use<> {
        let (answer, command) = (self.send(command), command.to_owned());
        async move { assert_eq!(answer.await, "ok", "{command}") }
    }

    /// Has it end at once, with all that it holds.
    pub(crate) fn crash(mut self) {
        drop(self.send("crash"));
        let status = self.child.wait().expect("our own child");
        assert!(!status.success(), "a crash is no regular end");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Ended before, perhaps: then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that was built beside this one.
fn example(name: &str) -> PathBuf {
    let us = std::env::current_exe().expect("it runs");
    us.parent().expect("in `deps`").with_file_name("examples").join(name)
}

/// Gives each answer to its command, until the program ends.
fn read(output: ChildStdout, ready: oneshot::Sender<String>, open: &Open) {
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    // Whoever does not want to know any more has dropped it; here and below.
    let _ = ready.send(first);
    for line in lines {
        let (number, answer) = line.split_once(' ').expect("a number and an answer");
        let number = number.parse().expect("a number");
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = open.remove(&number).expect("an answer to a command");
        let _ = asked.send(answer.to_owned());
    }
    open.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
