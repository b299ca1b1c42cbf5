//! The export to the `metrics` facade.
//!
//! One thread per process exports the measurements of all its clients, every five seconds and when a
//! client is shut down. It looks every series up anew, because a handle that was made before the recorder,
//! or that was idle for too long, is dead. The recorder is user code. It may block or panic, and delays no
//! lock.
//!
//! As long as no recorder is installed, nothing is marked as exported, so a recorder that is installed
//! later gets all samples.

use std::slice;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::histogram::HistogramSnapshot;
use super::names::{self, METRICS, MetricKind};
use super::outcome::AcquisitionOutcome;
use super::renewals::{RenewalOutcome, SLACK_RATIOS};
use super::snapshot::{SiteSnapshot, Snapshot};
use super::totals::{NamespaceTotals, Totals};
use crate::user_code::contained;

/// The time between two exports.
const INTERVAL: Duration = Duration::from_secs(5);

/// A client whose measurements are exported.
pub(crate) trait MeasurementSource: Send + Sync {
    fn measurements(&self) -> Snapshot;
}

static EXPORTER: Exporter = Exporter {
    state: Mutex::new(ExporterState {
        sources: Vec::new(),
        ended: None,
        is_started: false,
        requested: 0,
        done: 0,
    }),
    changed: Condvar::new(),
};

struct Exporter {
    state: Mutex<ExporterState>,
    /// Notified when an export is requested.
    changed: Condvar,
}

struct ExporterState {
    sources: Vec<Weak<dyn MeasurementSource>>,
    /// The measurements of clients that have ended.
    ended: Option<Totals>,
    is_started: bool,
    /// The number of the last export that was requested, and of the last one that is complete.
    requested: u64,
    done: u64,
}

fn state() -> MutexGuard<'static, ExporterState> {
    EXPORTER.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Exports the measurements of a client from now on.
pub(crate) fn add(source: Weak<dyn MeasurementSource>) {
    let mut state = state();
    state.sources.retain(|source| source.strong_count() > 0);
    state.sources.push(source);
    if !state.is_started {
        let thread = std::thread::Builder::new().name("lock-metrics".into());
        // Without the thread, nothing is exported until the next client is made.
        state.is_started = thread.spawn(run).is_ok();
    }
}

/// Keeps the measurements of a client that has ended.
pub(crate) fn ended(snapshot: Snapshot) {
    state().ended.get_or_insert_default().add_ended(snapshot);
}

/// Requests an export. Returns its number.
pub(crate) fn request() -> u64 {
    let mut state = state();
    state.requested += 1;
    EXPORTER.changed.notify_one();
    state.requested
}

/// Whether this export is complete.
pub(crate) fn is_done(number: u64) -> bool {
    let state = state();
    state.done >= number || !state.is_started
}

/// Exports until the process ends.
fn run() {
    let mut exported = Totals::default();
    let mut is_described = false;
    loop {
        let (sources, mut totals, number) = {
            let waits = |state: &mut ExporterState| state.requested == state.done;
            let waited = EXPORTER.changed.wait_timeout_while(state(), INTERVAL, waits);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let sources: Vec<Arc<_>> = state.sources.iter().filter_map(Weak::upgrade).collect();
            (sources, state.ended.clone().unwrap_or_default(), state.requested)
        };
        if is_recorded() {
            for source in &sources {
                totals.add(source.measurements());
            }
            contained(|| {
                if !std::mem::replace(&mut is_described, true) {
                    describe();
                }
                export(&totals, &exported);
            });
            exported = totals;
        }
        // This may be the last reference to a client.
        drop(sources);
        state().done = number;
    }
}

/// Whether a recorder is installed. Until then, the facade has one without a size.
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
    for (bucket, count) in total.slack.counts.iter().enumerate() {
        let before = before.and_then(|before| before.slack.counts.get(bucket)).copied();
        let new = usize::try_from(count.saturating_sub(before.unwrap_or_default()));
        let value = SLACK_RATIOS.get(bucket).copied().unwrap_or(1.0);
        if let Ok(new @ 1..) = new {
            slack.record_many(value, new);
        }
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
