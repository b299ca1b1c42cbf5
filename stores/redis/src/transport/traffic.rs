//! The traffic of a connection: what tells a slow server from a silent one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use lock_core::store::contract::StoreError;

/// The traffic of a connection. The socket records what arrives, and its users record their
/// requests.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// The number of requests in flight.
    requests: AtomicUsize,
    /// The time of the last arrival, in milliseconds since `began`.
    arrived: AtomicU64,
    began: Instant,
    /// A problem that the server has reported outside of the Redis protocol.
    problem: OnceLock<StoreError>,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            requests: AtomicUsize::new(0),
            arrived: AtomicU64::new(0),
            began: Instant::now(),
            problem: OnceLock::new(),
        }
    }
}

impl Traffic {
    /// A request is in flight from now on.
    pub(crate) fn begin(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// A request is not in flight any more.
    pub(crate) fn end(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }

    /// The time since the last arrival.
    pub(crate) fn silence(&self) -> Duration {
        let arrived = Duration::from_millis(self.arrived.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(arrived)
    }

    /// A problem that the server has reported outside of the Redis protocol.
    pub(crate) fn problem(&self) -> Option<StoreError> {
        self.problem.get().cloned()
    }

    /// Records a problem. Only the first one is kept.
    #[cfg(feature = "tls")]
    pub(crate) fn report(&self, problem: StoreError) {
        let _ = self.problem.set(problem);
    }

    /// The number of requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Data has arrived.
    pub(crate) fn arrival(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.arrived.store(since, Ordering::Relaxed);
    }
}
