//! What the fault tests have in common.

use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use lock_runtime::{LockClient, LockError};
use lock_tests::worker::{Holder, Register};
use lock_tests::{Diary, Event, Expected, Helper, RedisServer, What, boot_nanos};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::time::timeout;

pub(crate) use lock_tests::support::{LEASE, client, milliseconds, until, until_at_rest};

/// A server for the locks, one for what they guard, and the diaries of those who hold them.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) server: RedisServer,
    pub(crate) diary: Diary,
    pub(crate) register: Register,
    guarded: RedisServer,
    directory: TempDir,
    files: Vec<PathBuf>,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::on(RedisServer::start()).await
    }

    pub(crate) async fn on(server: RedisServer) -> Self {
        let guarded = RedisServer::start();
        let register = Register::open(&guarded.url()).await.expect("the server is up");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (diary, files) = (Diary::default(), Vec::new());
        Self { server, diary, register, guarded, directory, files }
    }

    /// A process that holds the lock on `k` until it loses it, and its fencing token.
    pub(crate) fn keeper(&mut self, url: &str) -> (Helper, u64) {
        let file = self.directory.path().join(self.files.len().to_string());
        let diary = file.to_str().expect("a plain path").to_owned();
        self.files.push(file);
        let (register, lease) = (self.guarded.url(), milliseconds(LEASE));
        let args = ["keep", url, &register, "k", &lease, &diary];
        let mut process = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args);
        let line = process.line();
        let token = line.strip_prefix("held ").and_then(|token| token.parse().ok());
        (process, token.unwrap_or_else(|| panic!("{line}")))
    }

    /// Kills a process, and notes that it believes nothing any more.
    pub(crate) fn kill(&self, process: &mut Helper) {
        let id = process.id();
        process.kill();
        let (at, key) = (boot_nanos(), "k".into());
        self.diary.add(Event { at, process: id, key, hold: 0, what: What::Killed });
    }

    /// Holds all diaries against what is expected.
    pub(crate) fn assert_history(&self, expected: Expected) {
        let history = self.diary.history_with(&self.files).expect("our own files");
        assert!(history.grants() > 0, "somebody had the lock");
        let violations = history.violations(expected);
        let first: Vec<String> = violations.iter().take(3).map(ToString::to_string).collect();
        assert!(violations.is_empty(), "{} violations, such as {first:?}", violations.len());
    }
}

/// Holds the lock on `k` for as long as it is let, and returns what became of that. `held` is told
/// the fencing token.
pub(crate) async fn keep(
    client: LockClient,
    scene_diary: Diary,
    register: Register,
    held: tokio::sync::oneshot::Sender<u64>,
) -> Result<(), LockError> {
    let body = async |holder: &Holder| {
        let token = holder.fence().await?;
        let _ = held.send(token);
        loop {
            holder.write(&register, token).await.expect("the register is up");
            tokio::time::sleep(LEASE / 100).await;
        }
    };
    lock_tests::worker::run(&client, "k", &scene_diary, body).await?
}

/// Takes the lock on `k` and is given its fencing token.
pub(crate) async fn take(client: &LockClient, scene: &Scene) -> Result<u64, LockError> {
    let body = async |holder: &Holder| {
        let token = holder.fence().await?;
        holder.write(&scene.register, token).await.expect("the register is up");
        Ok(token)
    };
    lock_tests::worker::run(client, "k", &scene.diary, body).await?
}

/// Polls a future so many times, each time when it has asked for it, and drops it. Returns whether
/// it was done before that; `None` if it did not ask again for so long.
pub(crate) async fn polled<F: Future>(future: F, times: usize, patience: Duration) -> Option<bool> {
    let woken = Arc::new(Woken(Notify::new()));
    let waker = Waker::from(Arc::clone(&woken));
    let mut future = pin!(future);
    for _ in 0..times {
        let done = poll_fn(|_| {
            Poll::Ready(future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready())
        });
        if done.await {
            return Some(true);
        }
        if timeout(patience, woken.0.notified()).await.is_err() {
            return None;
        }
    }
    Some(false)
}

struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}
