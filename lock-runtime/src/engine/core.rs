//! The state that all parts of one client's engine share.

use std::sync::Arc;
#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
use std::sync::Weak;
use std::time::Duration;

use tracing::Level;

use super::background::Background;
use super::fairness::limit::HandoffLimit;
use super::handoff::LocalQueues;
use super::local_queue::KeyStatus;
use super::outages::Outages;
use super::receivers::Receivers;
use super::shared_reads::SharedReads;
use crate::clock::BootInstant;
use crate::error::LockError;
use crate::events;
use crate::stats::ClientStats;
use crate::store::contract::Backend;
use crate::sync::Notify;
use crate::sync::atomic::{AtomicBool, Ordering};
#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
use crate::telemetry::exporter;
use crate::telemetry::{ClientMetrics, Snapshot};
use crate::timeout::Wait;

/// The checked settings of the engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    /// The longest time from sending a request to its answer.
    pub(crate) response_timeout: Duration,
    /// The longest time for which a request for a fencing token is repeated.
    pub(crate) wait: Wait,
    pub(crate) handoff_limit: HandoffLimit,
    /// No lease may be longer.
    pub(crate) quarantine: Option<Duration>,
    /// The longest outage of the store that calls tolerate.
    pub(crate) unavailable_after: Option<Duration>,
}

/// One client's engine.
pub(crate) struct Engine {
    config: Config,
    queues: Arc<LocalQueues>,
    background: Background,
    reads: SharedReads,
    receivers: Arc<Receivers>,
    outages: Outages,
    /// Set once, at shutdown. No lock is granted from then on.
    closed: AtomicBool,
    /// Notified when `closed` is set.
    closing: Notify,
    /// Whether a key in another layout has been logged.
    logged_wrong_format: AtomicBool,
    metrics: Arc<ClientMetrics>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { config, closed, .. } = self;
        f.debug_struct("Engine")
            .field("config", config)
            .field("stats", &self.stats())
            .field("closed", closed)
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn start(
        config: Config,
        backend: &dyn Backend,
        metrics: Arc<ClientMetrics>,
    ) -> Arc<Self> {
        let queues = Arc::new(LocalQueues::new(config.response_timeout));
        let background = Background::start(backend, Arc::clone(&queues), Arc::clone(&metrics));
        let (closed, logged_wrong_format) = (AtomicBool::new(false), AtomicBool::new(false));
        let closing = Notify::new();
        let (reads, receivers) = (SharedReads::default(), Arc::default());
        let outages = Outages::new(config.unavailable_after);
        let engine = Arc::new(Self {
            config,
            queues,
            background,
            reads,
            receivers,
            outages,
            closed,
            closing,
            logged_wrong_format,
            metrics,
        });
        #[cfg(any(feature = "metrics", feature = "opentelemetry"))]
        {
            let source: Weak<Self> = Arc::downgrade(&engine);
            exporter::add(engine.metrics.id(), source);
        }
        engine
    }

    pub(crate) fn metrics(&self) -> &Arc<ClientMetrics> {
        &self.metrics
    }

    /// All measurements at this moment.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let held = self.background.held();
        let now = BootInstant::now();
        let held = held.iter().filter_map(|lease| lease.held_at());
        let held = held.map(|(site, granted)| (site, now.since(granted)));
        self.metrics.snapshot(held, self.stats())
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn queues(&self) -> &Arc<LocalQueues> {
        &self.queues
    }

    pub(super) fn reads(&self) -> &SharedReads {
        &self.reads
    }

    pub(super) fn receivers(&self) -> &Arc<Receivers> {
        &self.receivers
    }

    pub(super) fn outages(&self) -> &Outages {
        &self.outages
    }

    pub(crate) fn background(&self) -> &Background {
        &self.background
    }

    pub(crate) fn stats(&self) -> ClientStats {
        ClientStats {
            held: self.background.held_count().saturating_sub(self.queues.lingering()),
            lingering: self.queues.lingering(),
            keys: self.queues.keys(),
            queued: self.queues.queued(),
            releasing: self.background.releasing(),
            lost: self.background.lost(),
            dropped_events: events::dropped(),
        }
    }

    /// Ends all waits. No lock is granted from now on.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closing.notify_waiters();
        self.queues.close();
    }

    /// Resolves when the engine is closed.
    pub(super) async fn closing(&self) {
        let closing = self.closing.notified();
        if !self.closed.load(Ordering::Acquire) {
            closing.await;
        }
    }

    /// The last known status of a key that this process uses.
    pub(crate) fn key_status(&self, key: &str) -> KeyStatus {
        self.queues.status(&Arc::from(key))
    }

    /// Checks whether locks can be acquired.
    pub(crate) fn admit(&self, key: &str) -> Result<(), LockError> {
        self.check_open(Some(key))
    }

    /// The same for a call that may have no key.
    pub(crate) fn check_open(&self, key: Option<&str>) -> Result<(), LockError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(LockError::ShutDown);
        }
        self.check_background(key)
    }

    /// Checks whether the background thread runs. `key` is the key of the call.
    pub(crate) fn check_background(&self, key: Option<&str>) -> Result<(), LockError> {
        self.background.failure().map_or(Ok(()), |failure| {
            let (key, waited) = (key.map(ToOwned::to_owned), Duration::ZERO);
            Err(LockError::unavailable(key, waited, failure))
        })
    }

    /// The error for a key that holds something other than a lock of the layout. The first such
    /// error is logged, because the configuration is wrong and callers may treat the error like a
    /// busy lock.
    pub(crate) fn wrong_format(
        &self,
        key: String,
        expected: &'static str,
        found: String,
    ) -> LockError {
        let error = LockError::wrong_format(key, expected, found);
        if !self.logged_wrong_format.swap(true, Ordering::Relaxed) {
            let error = error.clone();
            events::emit(Level::WARN, move || {
                tracing::warn!(%error, "a key is locked in different formats");
            });
        }
        error
    }
}

#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
impl exporter::MeasurementSource for Engine {
    fn measurements(&self) -> Snapshot {
        self.snapshot()
    }
}
