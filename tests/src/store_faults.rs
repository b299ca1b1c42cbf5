//! Random faults of any store, and of the processes that use it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::workload::Outcomes;
use crate::{Expected, ProcessPlan, TestedStore, Violation, WorkloadProcesses};

const PROCESSES: usize = 3;

/// Processes that work under locks of a store, while faults are injected.
#[derive(Debug)]
pub struct StoreFaults {
    store: TestedStore,
    lease: Duration,
    processes: WorkloadProcesses,
    rng: Rng,
}

impl StoreFaults {
    /// Starts the processes. `program` is the path of `lock-helper`.
    #[must_use]
    pub fn start(program: &str, store: TestedStore, lease: Duration, rng: Rng) -> Self {
        let (keys, tasks, work, wait) = (4, 4, lease / 20, lease * 5);
        let plan = ProcessPlan { lease, keys, tasks, work, wait, setting: "plain" };
        let urls = (0..PROCESSES).map(|_| store.url());
        let processes = WorkloadProcesses::of(program, plan, urls);
        Self { store, lease, processes, rng }
    }

    /// Injects faults one after the other for this time: a process or the store is suspended for up to one and a half leases, a
    /// process is killed, or all servers of the store are killed, if it keeps its locks.
    pub async fn inject(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            tokio::time::sleep(self.lease.mul_f64(self.rng.f64())).await;
            let process = self.rng.usize(..PROCESSES);
            let lasts = self.lease.mul_f64(self.rng.f64() * 1.5);
            match self.rng.u32(..4) {
                0 => self.processes.replace(process, &self.store.url()),
                1 => {
                    self.processes.freeze(process);
                    tokio::time::sleep(lasts).await;
                    self.processes.thaw(process);
                }
                2 if self.store.is_durable() => {
                    self.store.kill();
                    tokio::time::sleep(lasts).await;
                    self.store.restart();
                }
                _ => {
                    self.store.freeze();
                    tokio::time::sleep(lasts).await;
                    self.store.thaw();
                }
            }
        }
    }

    /// Ends the processes. Returns what they did, and where a promise was broken.
    #[must_use]
    pub fn stop(mut self) -> (FaultyRun, Vec<Violation>) {
        let outcomes = Outcomes::default();
        let history = self.processes.stop(self.lease * 30, &outcomes);
        // A write that was in flight when its lock was lost arrives late.
        let violations = history.violations(Expected { exclusion: true, no_stale_write: false });
        if !violations.is_empty() {
            println!("the recordings are in {}", self.processes.keep().display());
        }
        (FaultyRun { grants: history.grants(), outcomes }, violations)
    }
}

/// What the processes did.
#[derive(Debug)]
pub struct FaultyRun {
    /// The number of times that a lock was granted.
    pub grants: usize,
    /// The outcomes of the calls.
    pub outcomes: Outcomes,
}

impl FaultyRun {
    /// The number of calls with an outcome that is not expected.
    #[must_use]
    pub fn unexpected(&self) -> u64 {
        self.outcomes.unexpected.load(Ordering::Relaxed)
    }
}
