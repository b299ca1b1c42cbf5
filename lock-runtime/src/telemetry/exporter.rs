//! The export to the `metrics` facade.
//!
//! One thread per process exports the measurements of all its clients, every five seconds and when a
//! client is shut down. It looks every series up anew, because a handle that was made before the recorder,
//! or that was idle for too long, is dead. The recorder is user code. It may block or panic, and delays no
//! lock.
//!
//! As long as no recorder is installed, nothing is marked as exported, so a recorder that is installed
//! later gets all samples. If a recorder panics, some samples of this export are lost; counters are not,
//! because they are exported as totals.

use std::collections::BTreeMap;
use std::slice;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::histogram::HistogramSnapshot;
use super::names::{self, METRICS, MetricKind};
use super::outcome::AcquisitionOutcome;
use super::renewals::RenewalOutcome;
use super::snapshot::{SiteSnapshot, Snapshot};
use super::totals::{NamespaceTotals, Totals};
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
    let mut exported = Totals::default();
    let mut is_described = false;
    loop {
        let waits = |state: &mut ExporterState| state.requested == state.done;
        let waited = EXPORTER.changed.wait_timeout_while(EXPORTER.state(), INTERVAL, waits);
        let number = waited.unwrap_or_else(PoisonError::into_inner).0.requested;
        if is_recorded() {
            let totals = EXPORTER.totals();
            contained(|| {
                if !is_described {
                    describe();
                    is_described = true;
                }
                export(&totals, &exported);
            });
            exported = totals;
        }
        EXPORTER.state().done = number;
    }
}

/// Whether a recorder is installed. Until then, the facade has one without a size, and nothing else tells the
/// two apart.
fn is_recorded() -> bool {
    metrics::with_recorder(|recorder| std::mem::size_of_val(recorder) > 0)
}

fn describe() {
    for metric in METRICS {
        let unit = if metric.name.ends_with("_seconds") { Unit::Seconds } else { Unit::Count };
        match metric.kind {
            MetricKind::Counter => describe_counter!(metric.name, unit, metric.help),
            MetricKind::Gauge => describe_gauge!(metric.name, unit, metric.help),
            MetricKind::Histogram => describe_histogram!(metric.name, unit, metric.help),
        }
    }
}

/// Exports all totals. `before` are those of the last export.
fn export(totals: &Totals, before: &Totals) {
    gauge!(names::BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    for (namespace, total) in &totals.namespaces {
        let before = before.namespaces.get(namespace);
        for (template, site) in &total.sites {
            export_site(namespace, site, before.and_then(|before| before.sites.get(template)));
        }
        export_client(namespace, total, before);
    }
}

fn export_site(namespace: &str, site: &SiteSnapshot, before: Option<&SiteSnapshot>) {
    let labels = [("namespace", namespace.to_owned()), ("template", site.template.to_owned())];
    let with = |name: &'static str, value: &'static str| {
        let [namespace, template] = labels.clone();
        [namespace, template, (name, value.to_owned())]
    };
    for outcome in AcquisitionOutcome::ALL {
        let labels = with("outcome", outcome.as_str());
        counter!(names::ACQUISITIONS, &labels).absolute(site.acquisitions(outcome));
        if let Some(waits) = site.wait(outcome) {
            let before = before.and_then(|before| before.wait(outcome));
            record(&histogram!(names::WAIT, &labels), waits, before);
        }
    }
    record(&histogram!(names::HOLD, &labels), &site.hold, before.map(|before| &before.hold));
    for (reason, count) in &site.losses {
        counter!(names::LOSSES, &with("reason", reason.as_str())).absolute(*count);
    }
    let limits = site.handoff_limits;
    for (outcome, count) in [("continued", limits.continued), ("freed", limits.freed)] {
        counter!(names::HANDOFF_LIMITS, &with("outcome", outcome)).absolute(count);
    }
    #[allow(clippy::cast_precision_loss)]
    let (held, waiting) = (site.held as f64, site.waiting as f64);
    gauge!(names::HELD, &labels).set(held);
    gauge!(names::WAITING, &labels).set(waiting);
    gauge!(names::OLDEST_HOLD, &labels).set(site.oldest_hold.unwrap_or_default().as_secs_f64());
}

fn export_client(namespace: &str, total: &NamespaceTotals, before: Option<&NamespaceTotals>) {
    let label = ("namespace", namespace.to_owned());
    for outcome in RenewalOutcome::ALL {
        let labels = [label.clone(), ("outcome", outcome.as_str().to_owned())];
        counter!(names::RENEWALS, &labels).absolute(total.renewals[outcome as usize]);
    }
    let slack = histogram!(names::SLACK, slice::from_ref(&label));
    for (mean, count) in total.slack.means_since(before.map(|before| &before.slack)) {
        slack.record_many(mean, usize::try_from(count).unwrap_or(usize::MAX));
    }
    for (at, (operation, outcome, durations)) in total.requests.iter().enumerate() {
        let before = before.and_then(|before| before.requests.get(at)).map(|(_, _, known)| known);
        let labels = [
            label.clone(),
            ("operation", operation.as_str().to_owned()),
            ("outcome", outcome.as_str().to_owned()),
        ];
        record(&histogram!(names::REQUESTS, &labels), durations, before);
    }
    #[allow(clippy::cast_precision_loss)]
    gauge!(names::RELEASING, slice::from_ref(&label)).set(total.releasing as f64);
    gauge!(names::STORE_UP, &[label]).set(if total.is_down { 0.0 } else { 1.0 });
}

/// Records the samples that are new.
fn record(
    handle: &metrics::Histogram,
    total: &HistogramSnapshot,
    before: Option<&HistogramSnapshot>,
) {
    let new = before.map_or_else(|| total.clone(), |before| total.since(before));
    for (mean, count) in new.means() {
        handle.record_many(mean, usize::try_from(count).unwrap_or(usize::MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::stats::ClientStats;
    use crate::telemetry::{ClientMetrics, ObservedCall};

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
