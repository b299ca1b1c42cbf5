//! The measurements of requests to a remote store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::histogram::{HistogramSnapshot, LazyHistogram};
use super::shards::{SHARDS, current};

/// What a request to the store is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreOperation {
    /// Acquiring a lock, or several.
    Acquire,
    /// Renewing leases.
    Renew,
    /// Releasing locks.
    Release,
    /// Issuing a fencing token.
    Fence,
    /// Everything else about locks, such as a change of the mode.
    Others,
}

impl StoreOperation {
    /// All operations.
    pub const ALL: [Self; 5] =
        [Self::Acquire, Self::Renew, Self::Release, Self::Fence, Self::Others];

    /// Returns a word for metrics and alerts, which is stable across versions.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Fence => "fence",
            Self::Others => "others",
        }
    }
}

/// What came of a request to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreOutcome {
    /// It was answered. A lock that is busy is an answer too.
    Ok,
    /// The store refused it, or it was not sent. It had no effect.
    Refused,
    /// There was no answer in time. It may have had an effect.
    Unknown,
}

impl StoreOutcome {
    /// All outcomes.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Refused, Self::Unknown];

    /// Returns a word for metrics and alerts, which is stable across versions.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// What a request has told about the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreHealth {
    /// It does its work.
    Up,
    /// It did not answer, or refuses to work.
    Down,
    /// Nothing.
    Unchanged,
}

/// The measurements of the requests of a client.
pub struct StoreMetrics {
    operations: [OperationMetrics; StoreOperation::ALL.len()],
    /// Whether the last request that told something was not answered.
    is_down: Arc<AtomicBool>,
}

/// The measurements of the requests of one kind. The memory store has no requests.
#[derive(Debug)]
pub struct OperationMetrics {
    /// Made when a thread first uses them.
    shards: [OnceLock<Box<OperationShard>>; SHARDS],
    /// The same as that of all operations.
    is_down: Arc<AtomicBool>,
}

/// The part of the measurements that some threads record: how long requests took, by outcome.
type OperationShard = [LazyHistogram; StoreOutcome::ALL.len()];

impl Default for StoreMetrics {
    fn default() -> Self {
        let is_down = Arc::default();
        let operations = StoreOperation::ALL.map(|_| OperationMetrics {
            shards: [const { OnceLock::new() }; SHARDS],
            is_down: Arc::clone(&is_down),
        });
        Self { operations, is_down }
    }
}

impl OperationMetrics {
    /// A request has ended after this time.
    pub fn ended(&self, outcome: StoreOutcome, duration: Duration, health: StoreHealth) {
        let shard = self.shards[current()].get_or_init(Box::default);
        shard[outcome as usize].record(duration);
        let is_down = health == StoreHealth::Down;
        // Usually nothing changes, and a write would take the cache line from other threads.
        let is_changed = self.is_down.load(Ordering::Relaxed) != is_down;
        if health != StoreHealth::Unchanged && is_changed {
            self.is_down.store(is_down, Ordering::Relaxed);
        }
    }
}

impl StoreMetrics {
    pub fn of(&self, operation: StoreOperation) -> &OperationMetrics {
        &self.operations[operation as usize]
    }

    pub fn is_up(&self) -> bool {
        !self.is_down.load(Ordering::Relaxed)
    }

    pub fn durations(&self) -> Vec<(StoreOperation, StoreOutcome, HistogramSnapshot)> {
        let of = |operation: StoreOperation, outcome: StoreOutcome| {
            let mut total = HistogramSnapshot::default();
            for shard in self.of(operation).shards.iter().filter_map(OnceLock::get) {
                shard[outcome as usize].add_to(&mut total);
            }
            total
        };
        StoreOperation::ALL
            .into_iter()
            .flat_map(|operation| StoreOutcome::ALL.map(|outcome| (operation, outcome)))
            .map(|(operation, outcome)| (operation, outcome, of(operation, outcome)))
            .collect()
    }
}

impl std::fmt::Debug for StoreMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreMetrics").field("is_up", &self.is_up()).finish_non_exhaustive()
    }
}
