//! The load generator of the fault suite and the soak.
//!
//! Its tasks lock random keys, write to a guarded register while they hold the lock, and record
//! each step with a [`Recorder`].

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{Lock, LockClient, LockError, LockGuard, LockMode};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult, Script};

use crate::{EventKind, Recorder, boot_nanos};

/// The message of a panic that the workload causes on purpose.
pub const PLANNED_PANIC: &str = "a body that panics, as planned";

/// The number of the next hold of this process.
static HOLDS: AtomicU64 = AtomicU64::new(1);

/// A hold whose events are recorded, from its grant until it is dropped.
#[derive(Debug)]
pub struct WorkloadHolder {
    recorder: Recorder,
    guard: LockGuard,
    hold: u64,
}

impl WorkloadHolder {
    /// Records the beginning of a hold.
    #[must_use]
    pub fn new(recorder: &Recorder, guard: LockGuard) -> Self {
        let hold = HOLDS.fetch_add(1, Ordering::Relaxed);
        let holder = Self { recorder: recorder.clone(), guard, hold };
        if holder.guard.mode() == Some(LockMode::Read) {
            holder.record(EventKind::Reads);
        }
        if let Some(permits) = holder.guard.permits() {
            let (count, limit) = (permits.count().into(), permits.limit().into());
            holder.record(EventKind::HasPermits { count, limit });
        }
        holder.record(EventKind::Acquired { deadline: holder.deadline() });
        holder
    }

    /// The guard of the hold.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// Runs `body` and records each of its polls.
    pub async fn watch<F: Future>(&self, body: F) -> F::Output {
        let mut body = pin!(body);
        poll_fn(|cx| {
            self.record(EventKind::Poll { deadline: self.deadline() });
            body.as_mut().poll(cx)
        })
        .await
    }

    /// Requests the fencing token.
    pub async fn fence(&self) -> Result<u64, LockError> {
        let token = self.guard.fencing_token().await?;
        self.record(EventKind::Fenced { token });
        Ok(token)
    }

    /// Writes once to the register without a fence, and once to the register that compares tokens.
    /// Returns whether the latter accepted the write.
    pub async fn write(&self, register: &Register, token: u64) -> RedisResult<bool> {
        let key = self.guard.key();
        let order = register.write(key).await?;
        self.record(EventKind::Wrote { order });
        let accepted = register.write_fenced(key, token).await?;
        if let Some(order) = accepted {
            self.record(EventKind::Accepted { order, token });
        }
        Ok(accepted.is_some())
    }

    fn record(&self, kind: EventKind) {
        self.recorder.record(self.guard.key(), self.hold, kind);
    }

    /// A lower bound of the deadline; zero once it has passed.
    fn deadline(&self) -> u64 {
        let now = boot_nanos();
        let left = self.guard.remaining();
        let left = u64::try_from(left.as_nanos()).expect("less than 500 years");
        if left == 0 { 0 } else { now + left }
    }
}

impl Drop for WorkloadHolder {
    fn drop(&mut self) {
        // The last poll may be long ago, so this is the first record of a later deadline.
        self.record(EventKind::Held { deadline: self.deadline() });
        self.record(EventKind::Ended);
    }
}

/// Runs `body` under the lock on `key`, and records the hold.
pub async fn run<T>(
    client: &LockClient,
    key: &str,
    recorder: &Recorder,
    body: impl AsyncFnOnce(&WorkloadHolder) -> T,
) -> Result<T, LockError> {
    run_under(&client.lock(key), recorder, body).await
}

/// Runs `body` under the lock, and records the hold.
pub async fn run_under<T>(
    lock: &Lock,
    recorder: &Recorder,
    body: impl AsyncFnOnce(&WorkloadHolder) -> T,
) -> Result<T, LockError> {
    lock.run(async {
        // A nested acquisition, which shares the enclosing hold.
        let Ok(guard) = lock.acquire().await else {
            // The hold is already lost, and this body is about to be dropped.
            return std::future::pending().await;
        };
        let holder = WorkloadHolder::new(recorder, guard);
        holder.watch(body(&holder)).await
    })
    .await
}

/// Leads on `key` until `body` completes, and records each term.
pub async fn lead<T>(
    client: &LockClient,
    key: &str,
    recorder: &Recorder,
    body: impl AsyncFn(&WorkloadHolder) -> T,
) -> Result<T, LockError> {
    let (client, body) = (client.clone(), &body);
    let leadership = client.leadership(key);
    leadership
        .run(async |_term| {
            let Ok(guard) = client.lock(key).acquire().await else {
                return std::future::pending().await;
            };
            let holder = WorkloadHolder::new(recorder, guard);
            holder.watch(body(&holder)).await
        })
        .await
}

/// The guarded resource. Each key has a register that takes every write, and a register that
/// refuses tokens lower than the highest it has seen. It has a server of its own, into which no
/// faults are injected.
#[derive(Debug, Clone)]
pub struct Register {
    server: MultiplexedConnection,
}

/// A connection without a response timeout, because a slow machine is not a failure of what is tested.
pub async fn patient_connection(url: &str) -> RedisResult<MultiplexedConnection> {
    let no_timeout = AsyncConnectionConfig::new().set_response_timeout(None);
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&no_timeout).await
}

impl Register {
    /// Connects to the server at this URL.
    pub async fn open(url: &str) -> RedisResult<Self> {
        // A process that is suspended during a write must see the reply when it resumes, however
        // late.
        Ok(Self { server: patient_connection(url).await? })
    }

    /// Writes without a token. Returns the position of the write among all writes.
    async fn write(&self, key: &str) -> RedisResult<u64> {
        let mut server = self.server.clone();
        redis::cmd("INCR").arg(format!("writes:{key}")).query_async(&mut server).await
    }

    /// Writes with a token. Returns the position of the write among the accepted ones.
    async fn write_fenced(&self, key: &str, token: u64) -> RedisResult<Option<u64>> {
        let script = Script::new(
            "local highest = tonumber(redis.call('hget', KEYS[1], 'token') or '0')
            if tonumber(ARGV[1]) < highest then return nil end
            redis.call('hset', KEYS[1], 'token', ARGV[1])
            return redis.call('hincrby', KEYS[1], 'writes', 1)",
        );
        let mut server = self.server.clone();
        script.key(format!("fenced:{key}")).arg(token).invoke_async(&mut server).await
    }
}

/// The parameters of a workload.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The number of keys.
    pub keys: u32,
    /// The number of tasks.
    pub tasks: u32,
    /// The longest time that a body works. With `faulty_bodies`, some work forty times as long.
    pub work: Duration,
    /// How long to wait for a lock.
    pub wait: Duration,
    /// Whether some bodies panic, block their thread, are cancelled, or take very long.
    pub faulty_bodies: bool,
}

/// The number of calls by their outcome.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// Calls whose body completed.
    pub done: AtomicU64,
    /// Calls that the caller cancelled while they waited or while the body ran.
    pub cancelled: AtomicU64,
    /// [`LockError::Busy`].
    pub busy: AtomicU64,
    /// [`LockError::Unavailable`].
    pub unavailable: AtomicU64,
    /// [`LockError::Lost`].
    pub lost: AtomicU64,
    /// Writes that the register refused because of their token.
    pub refused: AtomicU64,
    /// All other outcomes, none of which is expected.
    pub unexpected: AtomicU64,
}

impl Outcomes {
    fn counts(&self) -> [(&'static str, &AtomicU64); 7] {
        let Self { done, cancelled, busy, unavailable, lost, refused, unexpected } = self;
        [
            ("done", done),
            ("cancelled", cancelled),
            ("busy", busy),
            ("unavailable", unavailable),
            ("lost", lost),
            ("refused", refused),
            ("unexpected", unexpected),
        ]
    }

    /// Adds the outcomes that a workload process has printed. Returns `None` if `line` is
    /// malformed.
    pub fn add(&self, line: &str) -> Option<()> {
        for pair in line.split(' ') {
            let (name, more) = pair.split_once('=')?;
            let counts = self.counts();
            let (_, count) = counts.iter().find(|(known, _)| *known == name)?;
            count.fetch_add(more.parse().ok()?, Ordering::Relaxed);
        }
        Some(())
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = self.counts().map(|(name, n)| format!("{name}={}", n.load(Ordering::Relaxed)));
        f.write_str(&pairs.join(" "))
    }
}

/// Runs the workload until `stop` is set.
pub async fn work(
    client: LockClient,
    register: Register,
    recorder: Recorder,
    plan: Plan,
    stop: Arc<AtomicBool>,
) -> Arc<Outcomes> {
    let outcomes = Arc::new(Outcomes::default());
    let mut tasks = Vec::new();
    for _ in 0..plan.tasks {
        let generator = LoadGenerator {
            client: client.clone(),
            register: register.clone(),
            recorder: recorder.clone(),
            plan: plan.clone(),
            outcomes: Arc::clone(&outcomes),
        };
        let stop = Arc::clone(&stop);
        tasks.push(async move {
            while !stop.load(Ordering::Relaxed) {
                let generator = generator.clone();
                // Each call is a task of its own, because some calls panic.
                let _ = tokio::spawn(async move { generator.call().await }).await;
            }
        });
    }
    let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
    for task in tasks {
        task.await.expect("only the inner tasks panic");
    }
    outcomes
}

#[derive(Debug, Clone)]
struct LoadGenerator {
    client: LockClient,
    register: Register,
    recorder: Recorder,
    plan: Plan,
    outcomes: Arc<Outcomes>,
}

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkloadEnding {
    Return,
    Panic,
    Block,
    Cancel,
}

impl LoadGenerator {
    /// Makes one call with a random key and a random ending, and counts its outcome.
    async fn call(&self) {
        let key = format!("work:{}", fastrand::u32(0..self.plan.keys));
        let ending = match fastrand::u32(0..20) {
            0 if self.plan.faulty_bodies => WorkloadEnding::Panic,
            1 if self.plan.faulty_bodies => WorkloadEnding::Block,
            2 | 3 if self.plan.faulty_bodies => WorkloadEnding::Cancel,
            _ => WorkloadEnding::Return,
        };
        let body = async |holder: &WorkloadHolder| self.body(holder, ending).await;
        let lock = self.client.clone();
        let running = run(&lock, &key, &self.recorder, body);
        let limit = match ending {
            WorkloadEnding::Cancel => self.plan.work.mul_f64(fastrand::f64()),
            _ => self.plan.wait * 10,
        };
        let outcome = tokio::time::timeout(limit, running).await;
        let count = match outcome {
            Err(_) => &self.outcomes.cancelled,
            Ok(Ok(())) => &self.outcomes.done,
            Ok(Err(LockError::Busy { .. })) => &self.outcomes.busy,
            Ok(Err(LockError::Unavailable { .. })) => &self.outcomes.unavailable,
            Ok(Err(LockError::Lost { .. })) => &self.outcomes.lost,
            Ok(Err(error)) => {
                eprintln!("unexpected error: {error}");
                &self.outcomes.unexpected
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    async fn body(&self, holder: &WorkloadHolder, ending: WorkloadEnding) {
        let Ok(token) = holder.fence().await else { return };
        // Some bodies run for longer than the injected faults last.
        let long = self.plan.faulty_bodies && fastrand::u32(0..20) == 0;
        let work = if long { self.plan.work * 40 } else { self.plan.work };
        let steps = if long { 40 } else { fastrand::u32(1..6) };
        for _ in 0..steps {
            match holder.write(&self.register, token).await {
                Ok(true) => {}
                Ok(false) => {
                    self.outcomes.refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => panic!("the register must not fail: {error}"),
            }
            tokio::time::sleep(work.mul_f64(fastrand::f64()) / steps).await;
        }
        match ending {
            WorkloadEnding::Return | WorkloadEnding::Cancel => {}
            WorkloadEnding::Panic => panic!("{PLANNED_PANIC}"),
            WorkloadEnding::Block => std::thread::sleep(self.plan.work),
        }
    }
}
