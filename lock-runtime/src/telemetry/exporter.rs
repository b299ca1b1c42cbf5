//! The export of the measurements of all clients of this process.
//!
//! One thread exports them, every five seconds and when a client is shut down: to the `metrics` facade, and to
//! OpenTelemetry. What receives them is user code. It may block or panic, and delays no lock.
//!
//! As long as nobody receives them, nothing is marked as exported, so a recorder or a meter provider that is
//! installed later gets all samples. If it panics, some samples of this export are lost; counters are not,
//! because they are exported as totals.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::destination::ExportTarget;
#[cfg(feature = "metrics")]
use super::facade::Facade;
#[cfg(feature = "opentelemetry")]
use super::opentelemetry::GlobalProvider;
use super::snapshot::Snapshot;
use super::totals::Totals;
use crate::user_code::contained;

/// The time between two exports.
const INTERVAL: Duration = Duration::from_secs(5);

/// A client whose measurements are exported.
pub(crate) trait MeasurementSource: Send + Sync {
    fn measurements(&self) -> Snapshot;
}

static EXPORTER: Exporter = Exporter::new();

struct Exporter {
    state: Mutex<ExporterState>,
    /// Notified when an export is requested.
    changed: Condvar,
}

struct ExporterState {
    /// The clients that have not ended, by the numbers of their measurements.
    clients: BTreeMap<u64, ExportedClient>,
    /// The measurements of clients that have ended.
    ended: Totals,
    is_started: bool,
    /// The number of the last export that was requested, and of the last one that is complete.
    requested: u64,
    done: u64,
}

struct ExportedClient {
    source: Weak<dyn MeasurementSource>,
    /// What was measured at the last export. It stands for a client that is being dropped, whose last
    /// measurements are still to come.
    last: Option<Snapshot>,
}

impl Exporter {
    const fn new() -> Self {
        let state = ExporterState {
            clients: BTreeMap::new(),
            ended: Totals::new(),
            is_started: false,
            requested: 0,
            done: 0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, ExporterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exports the measurements of a client from now on.
    fn add(&self, id: u64, source: Weak<dyn MeasurementSource>) {
        self.state().clients.insert(id, ExportedClient { source, last: None });
    }

    /// Keeps the last measurements of a client, if it was added.
    fn ended(&self, id: u64, last: impl FnOnce() -> Snapshot) {
        let mut state = self.state();
        if state.clients.remove(&id).is_some() {
            state.ended.add_ended(last());
        }
    }

    /// The totals of all clients. No counter is smaller than in the previous totals.
    fn totals(&self) -> Totals {
        let of_client =
            |(id, client): (&u64, &ExportedClient)| Some((*id, client.source.upgrade()?));
        let sources: Vec<_> = self.state().clients.iter().filter_map(of_client).collect();
        let measure =
            |(id, source): &(u64, Arc<dyn MeasurementSource>)| (*id, source.measurements());
        let measured: Vec<_> = sources.iter().map(measure).collect();
        // These may be the last references to clients.
        contained(|| drop(sources));
        let mut state = self.state();
        for (id, snapshot) in measured {
            // Otherwise, it has ended in the meantime, and is a part of `ended`.
            if let Some(client) = state.clients.get_mut(&id) {
                client.last = Some(snapshot);
            }
        }
        let mut totals = state.ended.clone();
        for client in state.clients.values() {
            if let Some(last) = &client.last {
                totals.add(last.clone());
            }
        }
        totals
    }
}

/// Exports the measurements of a client from now on, until it has [`ended`].
pub(crate) fn add(id: u64, source: Weak<dyn MeasurementSource>) {
    EXPORTER.add(id, source);
    let mut state = EXPORTER.state();
    if !state.is_started {
        let thread = std::thread::Builder::new().name("lock-metrics".into());
        // Without the thread, nothing is exported until the next client is made.
        state.is_started = thread.spawn(run).is_ok();
    }
}

/// Keeps the last measurements of a client that has ended. `last` is called while the exporter is locked.
pub(super) fn ended(id: u64, last: impl FnOnce() -> Snapshot) {
    EXPORTER.ended(id, last);
}

/// Requests an export. Returns its number.
pub(crate) fn request() -> u64 {
    let mut state = EXPORTER.state();
    state.requested += 1;
    EXPORTER.changed.notify_one();
    state.requested
}

/// Whether this export is complete.
pub(crate) fn is_done(number: u64) -> bool {
    let state = EXPORTER.state();
    state.done >= number || !state.is_started
}

/// Exports until the process ends.
fn run() {
    let mut targets = [
        #[cfg(feature = "metrics")]
        ExportTarget::new(Facade::default()),
        #[cfg(feature = "opentelemetry")]
        ExportTarget::new(GlobalProvider::default()),
    ];
    loop {
        let waits = |state: &mut ExporterState| state.requested == state.done;
        let waited = EXPORTER.changed.wait_timeout_while(EXPORTER.state(), INTERVAL, waits);
        let number = waited.unwrap_or_else(PoisonError::into_inner).0.requested;
        let ready: Vec<_> = targets.iter_mut().filter_map(ExportTarget::if_ready).collect();
        if !ready.is_empty() {
            let totals = Arc::new(EXPORTER.totals());
            for target in ready {
                target.export(&totals);
            }
        }
        EXPORTER.state().done = number;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::stats::ClientStats;
    use crate::telemetry::{AcquisitionOutcome, ClientMetrics, ObservedCall, SiteSnapshot};

    /// A client without an engine, which may end while it is measured.
    struct MeasuredClient {
        exporter: Arc<Exporter>,
        metrics: OnceLock<Arc<ClientMetrics>>,
        ends: AtomicBool,
    }

    impl MeasuredClient {
        fn new(exporter: &Arc<Exporter>) -> Arc<Self> {
            let metrics = OnceLock::from(Arc::new(ClientMetrics::default()));
            let exporter = Arc::clone(exporter);
            let source = Arc::new(Self { exporter, metrics, ends: AtomicBool::new(false) });
            let weak: Weak<Self> = Arc::downgrade(&source);
            source.exporter.add(0, weak);
            source
        }

        fn metrics(&self) -> &ClientMetrics {
            self.metrics.get().expect("it was made")
        }

        /// A call that is cancelled.
        fn call(&self) {
            drop(ObservedCall::new(
                self.metrics().without_template(),
                crate::clock::BootInstant::PAST,
            ));
        }
    }

    impl MeasurementSource for MeasuredClient {
        fn measurements(&self) -> Snapshot {
            let snapshot = || self.metrics().snapshot(std::iter::empty(), ClientStats::default());
            let measured = snapshot();
            if self.ends.load(Ordering::Relaxed) {
                self.call();
                self.exporter.ended(0, snapshot);
            }
            measured
        }
    }

    fn cancelled(totals: &Totals) -> u64 {
        let calls = |site: &SiteSnapshot| site.acquisitions(AcquisitionOutcome::Cancelled);
        totals.namespaces.values().flat_map(|total| total.sites.values()).map(calls).sum()
    }

    #[test]
    fn a_client_that_ends_during_an_export_counts_once() {
        let exporter = Arc::new(Exporter::new());
        let source = MeasuredClient::new(&exporter);
        source.call();
        assert_eq!(cancelled(&exporter.totals()), 1);
        source.ends.store(true, Ordering::Relaxed);
        assert_eq!(cancelled(&exporter.totals()), 2, "with the last call");
        assert_eq!(cancelled(&exporter.totals()), 2);
    }

    #[test]
    fn a_client_that_is_being_dropped_counts_with_what_it_had() {
        let exporter = Arc::new(Exporter::new());
        let source = MeasuredClient::new(&exporter);
        source.call();
        assert_eq!(cancelled(&exporter.totals()), 1);
        let metrics = Arc::clone(source.metrics.get().expect("it was made"));
        source.call();
        drop(source);
        assert_eq!(cancelled(&exporter.totals()), 1, "no counter falls");
        exporter.ended(0, || metrics.snapshot(std::iter::empty(), ClientStats::default()));
        assert_eq!(cancelled(&exporter.totals()), 2, "with its last measurements");
        assert!(exporter.state().clients.is_empty());
    }
}
