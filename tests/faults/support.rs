//! Helpers shared by the fault tests.

use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LockGuard};
use lock_tests::workload::{Register, WorkloadHolder};
use lock_tests::{
    EventKind, Expected, Helper, HoldEvent, Recorder, RedisServer, Violation, boot_nanos, within,
};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

pub(crate) use lock_tests::support::{LEASE, client, milliseconds, polled, until, until_idle};

/// The command that makes the user of locks `k`, with the documented permissions.
pub(crate) const LOCKER: &str = "ACL SETUSER locker on >c4nary resetkeys ~k ~lock_client:* ~lock_queue:* ~lock_fence:* ~lock_leader:* ~lock_run:* \
     resetchannels &lock_client:* &lock_ask: &lock_answer:{lock_ask:}:* -@all +set +get +getrange +del +exists +pexpire +pttl +type +time \
     +hset +hmget +zadd +zpopmin +zrem +zrange +zrank +zscore +zcount +info +publish +subscribe +unsubscribe +pubsub|numsub +eval +evalsha +script|load +ping +hello \
     +select";

/// Locked by each test whose client logs that it cannot subscribe to questions: the line names no server, and the tests of a
/// process share their log.
pub(crate) static MISSING_PERMISSION: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A call of `acquire`.
pub(crate) type AcquireFuture = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send>>;

/// A client with this lease, whose calls wait for longer than any test takes.
pub(crate) async fn client_with_lease(url: &str, lease: Duration) -> LockClient {
    let builder = LockClient::builder().url(url).lease(lease).wait(LEASE * 60);
    builder.connect().await.expect("the server is up")
}

/// The same without reports of the server about changed keys, for tests of what happens without them.
pub(crate) async fn client_without_reports(url: &str, lease: Duration) -> LockClient {
    let builder = LockClient::builder().url(url).lease(lease).wait(LEASE * 60).tracking(false);
    builder.connect().await.expect("the server is up")
}

/// Acquires this many locks, on `k0`, `k1`, and so on.
pub(crate) async fn acquire_many(client: &LockClient, count: usize) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for n in 0..count {
        guards.push(client.lock(format!("k{n}")).acquire().await.expect("free"));
    }
    guards
}

/// Asserts that no lock was lost.
pub(crate) fn assert_all_held(guards: &[LockGuard]) {
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    assert_eq!(lost, 0, "locks of {} were lost", guards.len());
}

/// A server for the locks, a server for the guarded register, and the records of the lock holders.
#[derive(Debug)]
pub(crate) struct FaultFixture {
    pub(crate) server: RedisServer,
    pub(crate) recorder: Recorder,
    pub(crate) register: Register,
    guarded: RedisServer,
    directory: TempDir,
    files: Vec<PathBuf>,
}

impl FaultFixture {
    pub(crate) async fn new() -> Self {
        Self::on(RedisServer::start()).await
    }

    pub(crate) async fn on(server: RedisServer) -> Self {
        let guarded = RedisServer::start();
        let register = Register::open(&guarded.plain_url()).await.expect("the server is up");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (recorder, files) = (Recorder::default(), Vec::new());
        Self { server, recorder, register, guarded, directory, files }
    }

    /// A file for the recording of a process, which may be killed before it opens the file.
    fn recording(&mut self) -> String {
        let file = self.directory.path().join(self.files.len().to_string());
        std::fs::write(&file, "").expect("a temporary file");
        let recording = file.to_str().expect("a path in UTF-8").to_owned();
        self.files.push(file);
        recording
    }

    /// Starts a process that holds the lock on `k` until it loses the lock. Returns the process and
    /// its fencing token.
    pub(crate) fn keeper(&mut self, url: &str) -> (Helper, u64) {
        let recording = self.recording();
        let (register, lease) = (self.guarded.plain_url(), milliseconds(LEASE));
        let args = ["keep", url, &register, "k", &lease, &recording];
        let mut process = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args);
        let line = process.line();
        let token = line.strip_prefix("held ").and_then(|token| token.parse().ok());
        (process, token.unwrap_or_else(|| panic!("{line}")))
    }

    /// Starts a process whose tasks read and write under the read-write lock on `k`.
    pub(crate) fn sharer(&mut self) -> Helper {
        let recording = self.recording();
        let (url, register) = (self.server.url(), self.guarded.plain_url());
        let args = ["share", &url, &register, "k", &milliseconds(LEASE), &recording];
        Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args)
    }

    /// Starts a process that acquires permits of the semaphore `k` all the time.
    pub(crate) fn permit_sharer(&mut self) -> Helper {
        let recording = self.recording();
        let args = ["share-permits", &self.server.url(), "k", &milliseconds(LEASE), &recording];
        Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args)
    }

    /// Starts three processes that share a lock, and kills and suspends them at random. A write
    /// that began before its process was suspended arrives late; only the fence refuses it.
    pub(crate) async fn assert_sharing_holds(&mut self, start: fn(&mut Self) -> Helper) {
        let mut processes: Vec<Helper> = (0..3).map(|_| start(self)).collect();
        for process in &mut processes {
            assert_eq!(process.line(), "shares");
        }
        for round in 0..number("LOCK_SHARE_ROUNDS", 12) {
            let process = &mut processes[fastrand::usize(..3)];
            if round % 3 == 0 {
                self.kill(process);
                *process = start(self);
                process.line();
            } else {
                process.freeze();
                sleep(LEASE.mul_f64(fastrand::f64() * 2.0)).await;
                process.thaw();
            }
            sleep(LEASE.mul_f64(fastrand::f64())).await;
        }
        for process in &mut processes {
            self.kill(process);
        }
        self.assert_history(Expected { exclusion: true, no_stale_write: false });
    }

    /// Starts a process that campaigns for the leadership of `k`, and is known by its number.
    pub(crate) fn candidate(&mut self) -> Helper {
        let recording = self.recording();
        let (url, register) = (self.server.url(), self.guarded.plain_url());
        let args = ["lead", &url, &register, "k", &milliseconds(LEASE), &recording];
        Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args)
    }

    /// Kills a process, and records the end of its holds.
    pub(crate) fn kill(&self, process: &mut Helper) {
        let id = process.id();
        process.kill();
        let (at, key) = (boot_nanos(), "k".into());
        self.recorder.add(HoldEvent { at, process: id, key, hold: 0, kind: EventKind::Killed });
    }

    /// The violations of the expected properties in the recorded history.
    pub(crate) fn violations(&self, expected: Expected) -> Vec<Violation> {
        let history = self.recorder.history_with(&self.files).expect("valid recordings");
        assert!(history.grants() > 0, "the lock was granted at least once");
        history.violations(expected)
    }

    /// Asserts that the recorded history has the expected properties.
    pub(crate) fn assert_history(&self, expected: Expected) {
        let violations = self.violations(expected);
        let first: Vec<String> = violations.iter().take(3).map(ToString::to_string).collect();
        assert!(violations.is_empty(), "{} violations, such as {first:?}", violations.len());
    }
}

/// Holds the lock on `k` until the lock is lost or the task is aborted, and returns the outcome.
/// Sends the fencing token to `held`.
pub(crate) async fn keep(
    client: LockClient,
    recorder: Recorder,
    register: Register,
    held: oneshot::Sender<u64>,
) -> Result<(), LockError> {
    let body = async |holder: &WorkloadHolder| {
        let token = holder.fence().await?;
        let _ = held.send(token);
        loop {
            holder.write(&register, token).await.expect("the register is up");
            tokio::time::sleep(LEASE / 100).await;
        }
    };
    lock_tests::workload::run(&client, "k", &recorder, body).await?
}

/// Kills a process that waits for a lock, and waits until the server knows that it is gone.
pub(crate) async fn kill_waiting(process: &mut Helper, server: &RedisServer) {
    let channels = || server.channels("lock_client:*");
    let before = channels();
    process.kill();
    // Other clients may subscribe meanwhile.
    let is_left = |channel: &String| channels().contains(channel);
    let is_gone = until(LEASE * 20, || !before.iter().all(is_left)).await;
    assert!(is_gone.is_some(), "the server still has the subscription of a killed process");
}

/// The number that an environment variable sets, for longer runs.
pub(crate) fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |number| {
        number.parse().unwrap_or_else(|_| panic!("`{variable}` is a number"))
    })
}

/// Starts a task that holds `k` until it loses the lock. Returns the task and its fencing token.
pub(crate) async fn start_keeper(
    client: &LockClient,
    fixture: &FaultFixture,
) -> (JoinHandle<Result<(), LockError>>, u64) {
    let (held, token) = oneshot::channel();
    let (recorder, register) = (fixture.recorder.clone(), fixture.register.clone());
    let keeper = tokio::spawn(keep(client.clone(), recorder, register, held));
    (keeper, within(LEASE * 5, token).await.expect("free").expect("the task has the lock"))
}

/// Takes the lock on `k` once, and returns the fencing token.
pub(crate) async fn take(client: &LockClient, fixture: &FaultFixture) -> Result<u64, LockError> {
    let body = async |holder: &WorkloadHolder| {
        let token = holder.fence().await?;
        holder.write(&fixture.register, token).await.expect("the register is up");
        Ok(token)
    };
    lock_tests::workload::run(client, "k", &fixture.recorder, body).await?
}

/// A client that holds `k`, and another one that waits for it.
pub(crate) struct Contention {
    pub(crate) holder: LockClient,
    pub(crate) waiter: LockClient,
    fixture: FaultFixture,
    keeper: JoinHandle<Result<(), LockError>>,
    first: u64,
}

impl Contention {
    /// Connects both clients. The holder has the lock.
    pub(crate) async fn start(url: &str, lease: Duration) -> Self {
        let fixture = FaultFixture::new().await;
        let holder = client_with_lease(url, lease).await;
        let waiter = client_with_lease(url, lease).await;
        let (keeper, first) = start_keeper(&holder, &fixture).await;
        Self { holder, waiter, fixture, keeper, first }
    }

    /// Asserts that the lock stays with the holder during `fault`, and that the waiter gets it
    /// within `limit` when the holder gives it up after that.
    pub(crate) async fn outlasts(self, fault: impl Future<Output = ()>, limit: Duration) {
        let Self { holder, waiter, fixture, keeper, first } = self;
        {
            let mut waiting = Box::pin(take(&waiter, &fixture));
            tokio::select! {
                token = &mut waiting => panic!("granted although it is held: {token:?}"),
                () = fault => {}
            }
            assert!(!keeper.is_finished(), "the lock is still held");
            keeper.abort();
            let second = within(limit, waiting).await.expect("the waiter is served");
            let second = second.expect("released");
            assert!(second > first, "{second} after {first}");
        }
        assert_eq!(holder.stats().lost + waiter.stats().lost, 0);
        fixture.assert_history(Expected::EVERYTHING);
    }
}
