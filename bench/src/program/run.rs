//! The loops that acquire locks and record the grants.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow};
use futures_timer::Delay;
use tokio::sync::{Barrier, Semaphore};
use tokio::task::coop::consume_budget;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};

use super::keys::{Locks, RunKeys};
use super::library::Library;
use crate::record::{Record, now};

/// How long waiting tasks continue after the end of a run. Their grants do not count.
const RUN_OUT: Duration = Duration::from_millis(200);
/// How long a task pauses after a failure. Without a pause, a server that is down would get requests in a tight loop.
const AFTER_FAILURE: Duration = Duration::from_millis(10);
/// How many locks `hold` acquires or releases at a time.
const AT_ONCE: usize = 500;

/// The end of a run, on both clocks.
#[derive(Clone, Copy)]
struct End {
    timer: Instant,
    clock: u64,
}

impl End {
    fn after(time: Duration) -> Self {
        Self { timer: Instant::now() + time, clock: now() + time.as_nanos() as u64 }
    }
}

/// The number of failures of a run, and the first of them.
#[derive(Default)]
pub(super) struct RunFailures {
    first: Option<anyhow::Error>,
    count: usize,
}

impl RunFailures {
    fn add(&mut self, error: anyhow::Error) {
        self.count += 1;
        self.first.get_or_insert(error);
    }

    /// An error if there were failures.
    pub(super) fn check(self) -> Result<()> {
        let count = self.count;
        self.first.map_or(Ok(()), |first| Err(anyhow!("{count} failed, the first: {first:#}")))
    }
}

/// Runs `tasks` tasks that acquire and release locks for `time`, and hold each lock for `work`. A task continues after a
/// failure.
pub(super) async fn run<L: Library>(
    library: &L,
    tasks: u32,
    time: Duration,
    work: Duration,
    keys: &RunKeys,
) -> Result<(Vec<Record>, RunFailures)> {
    let failures = Arc::new(Mutex::new(RunFailures::default()));
    let start = Arc::new(Barrier::new(tasks as usize));
    // The first task sets the end for all tasks. On two cores, the last task may start much later.
    let end = Arc::new(OnceLock::new());
    let mut all = JoinSet::new();
    for task in 0..tasks {
        let (start, end, locks) = (Arc::clone(&start), Arc::clone(&end), keys.locks(library, task));
        let failures = Arc::clone(&failures);
        all.spawn(async move {
            start.wait().await;
            let end = *end.get_or_init(|| End::after(time));
            let mut records = Vec::with_capacity(1024);
            let rounds = async {
                while let Err(error) = repeat(&locks, task, end, work, &mut records).await {
                    failures.lock().unwrap_or_else(PoisonError::into_inner).add(error);
                    sleep(AFTER_FAILURE).await;
                }
            };
            // One timer for the whole loop, instead of one per call. Tasks that still wait then have not failed.
            let _ = timeout_at(end.timer + RUN_OUT, rounds).await;
            records
        });
    }
    let mut records = Vec::new();
    while let Some(task) = all.join_next().await {
        records.append(&mut task?);
    }
    let failures = std::mem::take(&mut *failures.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((records, failures))
}

/// Repeats until the end, or until a failure.
async fn repeat<L: Library>(
    locks: &Locks<L>,
    task: u32,
    end: End,
    work: Duration,
    records: &mut Vec<Record>,
) -> Result<()> {
    loop {
        // Yields like any task that also waits for other things. A lock that is free at once must
        // not keep other tasks from running.
        consume_budget().await;
        let drawn;
        let (lock, key) = match locks {
            Locks::One { lock, key } => (lock, *key),
            Locks::Drawn { library, zipf } => {
                let (name, key) = zipf.draw();
                drawn = library.lock(name);
                (&drawn, key)
            }
        };
        let requested = now();
        if requested >= end.clock {
            return Ok(());
        }
        let (granted, released, release) = hold_once::<L>(lock, work).await?;
        records.push(Record { requested, granted, released, task, key });
        release?;
    }
}

/// Acquires a lock, holds it for `work`, and releases it. Returns the times of the grant and of the
/// release, and the outcome of the release.
pub(super) async fn hold_once<L: Library>(
    lock: &L::Lock,
    work: Duration,
) -> Result<(u64, u64, Result<()>)> {
    let guard = L::acquire(lock).await?;
    let granted = now();
    if !work.is_zero() {
        Delay::new(work).await;
    }
    let released = now();
    Ok((granted, released, L::release(guard).await))
}

/// Acquires the keys `h0` to `h<count - 1>`, holds them for `time`, and releases them.
pub(super) async fn hold<L: Library>(library: &L, count: usize, time: Duration) -> Result<()> {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut taking = Vec::with_capacity(count);
    for key in 0..count {
        let permit = Arc::clone(&permits).acquire_owned().await?;
        let lock = library.lock(&format!("h{key}"));
        taking.push(tokio::spawn(async move {
            let guard = L::acquire(&lock).await;
            drop(permit);
            guard
        }));
    }
    let mut guards = Vec::with_capacity(count);
    for taken in taking {
        guards.push(taken.await??);
    }
    sleep(time).await;
    let mut releasing = JoinSet::new();
    for guard in guards {
        let permit = Arc::clone(&permits).acquire_owned().await?;
        releasing.spawn(async move {
            let released = L::release(guard).await;
            drop(permit);
            released
        });
    }
    while let Some(released) = releasing.join_next().await {
        released??;
    }
    Ok(())
}

/// Tasks that wait for one key.
pub(super) struct WaitingTasks(Vec<JoinHandle<Result<Record>>>);

impl WaitingTasks {
    /// Starts the waiters, and returns when all of them have requested the lock.
    pub(super) async fn start<L: Library>(library: &L, key: &str, count: u32) -> Result<Self> {
        let requested = Arc::new(Semaphore::new(0));
        let start = |task| {
            let (lock, asking) = (library.lock(key), Arc::clone(&requested));
            tokio::spawn(async move {
                let requested = now();
                asking.add_permits(1);
                drop(asking);
                let guard = L::acquire(&lock).await?;
                let granted = now();
                let released = now();
                L::release(guard).await?;
                Ok(Record { requested, granted, released, task, key: 0 })
            })
        };
        let waiters = (0..count).map(start).collect();
        drop(requested.acquire_many(count).await?);
        Ok(Self(waiters))
    }

    /// Waits until each waiter has had the lock.
    pub(super) async fn drain(self) -> Result<Vec<Record>> {
        let mut records = Vec::with_capacity(self.0.len());
        for waiter in self.0 {
            records.push(waiter.await??);
        }
        Ok(records)
    }
}
