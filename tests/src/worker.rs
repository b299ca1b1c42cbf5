//! A service that works under locks, for the fault suite and the soak: its tasks take random keys,
//! write to a guarded register while they hold them, and keep a [`Diary`].

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LockGuard};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult, Script};

use crate::{Diary, What, boot_nanos};

/// What bodies say that panic as planned.
pub const PLANNED_PANIC: &str = "a body that panics, as planned";

/// Numbers the holds of this process.
static HOLDS: AtomicU64 = AtomicU64::new(1);

/// A hold that keeps a diary, from its grant until it is dropped.
#[derive(Debug)]
pub struct Holder {
    diary: Diary,
    guard: LockGuard,
    hold: u64,
}

impl Holder {
    /// Begins the diary of a hold.
    #[must_use]
    pub fn new(diary: &Diary, guard: LockGuard) -> Self {
        let hold = HOLDS.fetch_add(1, Ordering::Relaxed);
        let holder = Self { diary: diary.clone(), guard, hold };
        holder.note(What::Acquired { deadline: holder.deadline() });
        holder
    }

    /// The guard of the hold.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// The same future, every poll of which is written down.
    pub async fn watch<F: Future>(&self, body: F) -> F::Output {
        let mut body = pin!(body);
        poll_fn(|cx| {
            self.note(What::Poll { deadline: self.deadline() });
            body.as_mut().poll(cx)
        })
        .await
    }

    /// Asks for the fencing token.
    pub async fn fence(&self) -> Result<u64, LockError> {
        let token = self.guard.fencing_token().await?;
        self.note(What::Fenced { token });
        Ok(token)
    }

    /// One write to the register that looks at the token, and one to that which does not. Returns
    /// whether the first accepted it.
    pub async fn write(&self, register: &Register, token: u64) -> RedisResult<bool> {
        let key = self.guard.key();
        let order = register.write(key).await?;
        self.note(What::Wrote { order });
        let accepted = register.write_fenced(key, token).await?;
        if let Some(order) = accepted {
            self.note(What::Accepted { order, token });
        }
        Ok(accepted.is_some())
    }

    fn note(&self, what: What) {
        self.diary.note(self.guard.key(), self.hold, what);
    }

    /// No later than the true one; zero when there is none any more.
    fn deadline(&self) -> u64 {
        let now = boot_nanos();
        let left = self.guard.remaining();
        let left = u64::try_from(left.as_nanos()).expect("not for ages");
        if left == 0 { 0 } else { now + left }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may not have been polled for a while.
        self.note(What::Held { deadline: self.deadline() });
        self.note(What::Ended);
    }
}

/// Runs `body` under the lock on `key`, with a diary.
pub async fn run<T>(
    client: &LockClient,
    key: &str,
    diary: &Diary,
    body: impl AsyncFnOnce(&Holder) -> T,
) -> Result<T, LockError> {
    let lock = client.lock(key);
    lock.run(async {
        // Shares the hold around it.
        let Ok(guard) = client.lock(key).acquire().await else {
            // Lost before it began; this body is about to be dropped.
            return std::future::pending().await;
        };
        let holder = Holder::new(diary, guard);
        holder.watch(body(&holder)).await
    })
    .await
}

/// What is guarded: per key a register that takes every write, and one that refuses lower tokens than
/// the highest it has seen. On a server of its own, which no fault befalls.
#[derive(Debug, Clone)]
pub struct Register {
    server: MultiplexedConnection,
}

impl Register {
    /// On the server at this URL.
    pub async fn open(url: &str) -> RedisResult<Self> {
        // A process that was frozen in the middle of a write hears of it when it goes on, however late.
        let patient = AsyncConnectionConfig::new().set_response_timeout(None);
        let server = redis::Client::open(url)?;
        let server = server.get_multiplexed_async_connection_with_config(&patient).await?;
        Ok(Self { server })
    }

    /// A write without a token; returns its place among all writes.
    async fn write(&self, key: &str) -> RedisResult<u64> {
        let mut server = self.server.clone();
        redis::cmd("INCR").arg(format!("writes:{key}")).query_async(&mut server).await
    }

    /// A write with a token; returns its place among those that were accepted.
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

/// What a worker is to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many keys there are.
    pub keys: u32,
    /// How many tasks.
    pub tasks: u32,
    /// How long a body works at the most; a rough one now and then forty times as long.
    pub work: Duration,
    /// How long to wait for a lock.
    pub wait: Duration,
    /// Whether bodies also panic, block their thread, and are cut off, and some take very long.
    pub rough: bool,
}

/// What became of the tasks' tries.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// Bodies that ended by themselves.
    pub done: AtomicU64,
    /// Given up by the caller, while waiting or in the body.
    pub cut: AtomicU64,
    /// [`LockError::Busy`].
    pub busy: AtomicU64,
    /// [`LockError::Unavailable`].
    pub unavailable: AtomicU64,
    /// [`LockError::Lost`].
    pub lost: AtomicU64,
    /// Writes that the register refused because of their token.
    pub refused: AtomicU64,
    /// Everything else, which should not be.
    pub strange: AtomicU64,
}

impl Outcomes {
    fn counts(&self) -> [(&'static str, &AtomicU64); 7] {
        let Self { done, cut, busy, unavailable, lost, refused, strange } = self;
        [
            ("done", done),
            ("cut", cut),
            ("busy", busy),
            ("unavailable", unavailable),
            ("lost", lost),
            ("refused", refused),
            ("strange", strange),
        ]
    }

    /// Adds those that a worker has printed.
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

/// Works until `stop` is set.
pub async fn work(
    client: LockClient,
    register: Register,
    diary: Diary,
    plan: Plan,
    stop: Arc<AtomicBool>,
) -> Arc<Outcomes> {
    let outcomes = Arc::new(Outcomes::default());
    let mut tasks = Vec::new();
    for _ in 0..plan.tasks {
        let worker = Worker {
            client: client.clone(),
            register: register.clone(),
            diary: diary.clone(),
            plan: plan.clone(),
            outcomes: Arc::clone(&outcomes),
        };
        let stop = Arc::clone(&stop);
        tasks.push(async move {
            while !stop.load(Ordering::Relaxed) {
                let once = worker.clone();
                // A task of its own, because some of them end in a panic.
                let _ = tokio::spawn(async move { once.once().await }).await;
            }
        });
    }
    let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
    for task in tasks {
        task.await.expect("it catches what is in it");
    }
    outcomes
}

#[derive(Debug, Clone)]
struct Worker {
    client: LockClient,
    register: Register,
    diary: Diary,
    plan: Plan,
    outcomes: Arc<Outcomes>,
}

/// What a rough body does at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Return,
    Panic,
    Block,
    Cut,
}

impl Worker {
    async fn once(&self) {
        let key = format!("work:{}", fastrand::u32(0..self.plan.keys));
        let ending = match fastrand::u32(0..20) {
            0 if self.plan.rough => Ending::Panic,
            1 if self.plan.rough => Ending::Block,
            2 | 3 if self.plan.rough => Ending::Cut,
            _ => Ending::Return,
        };
        let body = async |holder: &Holder| self.body(holder, ending).await;
        let lock = self.client.clone();
        let running = run(&lock, &key, &self.diary, body);
        let patience = match ending {
            Ending::Cut => self.plan.work.mul_f64(fastrand::f64()),
            _ => self.plan.wait * 10,
        };
        let outcome = tokio::time::timeout(patience, running).await;
        let count = match outcome {
            Err(_) => &self.outcomes.cut,
            Ok(Ok(())) => &self.outcomes.done,
            Ok(Err(LockError::Busy { .. })) => &self.outcomes.busy,
            Ok(Err(LockError::Unavailable { .. })) => &self.outcomes.unavailable,
            Ok(Err(LockError::Lost { .. })) => &self.outcomes.lost,
            Ok(Err(error)) => {
                eprintln!("strange: {error}");
                &self.outcomes.strange
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    async fn body(&self, holder: &Holder, ending: Ending) {
        let Ok(token) = holder.fence().await else { return };
        // Some outlast whatever goes wrong meanwhile.
        let long = self.plan.rough && fastrand::u32(0..20) == 0;
        let work = if long { self.plan.work * 40 } else { self.plan.work };
        let steps = if long { 40 } else { fastrand::u32(1..6) };
        for _ in 0..steps {
            match holder.write(&self.register, token).await {
                Ok(true) => {}
                Ok(false) => {
                    self.outcomes.refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => panic!("the register is not to fail: {error}"),
            }
            tokio::time::sleep(work.mul_f64(fastrand::f64()) / steps).await;
        }
        match ending {
            Ending::Return | Ending::Cut => {}
            Ending::Panic => panic!("{PLANNED_PANIC}"),
            Ending::Block => std::thread::sleep(self.plan.work),
        }
    }
}
