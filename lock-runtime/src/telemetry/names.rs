//! The names of the metrics that are exported.

#[cfg(feature = "opentelemetry")]
use super::renewals::SLACK_RATIOS;

/// The upper bounds in seconds of the buckets that suit the durations of locks.
///
/// OpenTelemetry gets them from the library. A recorder of the `metrics` facade has to be told them, because a
/// library cannot set them: without buckets, `metrics-exporter-prometheus` renders summaries. Use them for the
/// names that end with [`DURATION_SUFFIX`].
pub const SECONDS: [f64; 16] = [
    0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// The end of the names of all histograms of durations.
pub const DURATION_SUFFIX: &str = "_duration_seconds";

/// What kind of metric it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetricKind {
    /// Only rises.
    Counter,
    /// Rises and falls, and adds up over processes. The `metrics` facade and Prometheus call it a gauge.
    UpDownCounter,
    /// Rises and falls, and does not add up.
    Gauge,
    /// Samples, counted by size.
    Histogram,
}

/// A metric that is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricDescription {
    /// Its name in the form of Prometheus, for the `metrics` facade.
    pub name: &'static str,
    /// Its name in the form of OpenTelemetry.
    pub opentelemetry_name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// Its unit in UCUM, such as `s` or `{lock}`.
    pub unit: &'static str,
    /// Its labels, for the `metrics` facade.
    pub labels: &'static [&'static str],
    /// Its attributes in OpenTelemetry, in the order of the labels.
    pub attributes: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

/// The unit of durations.
const SECOND: &str = "s";

impl MetricDescription {
    /// Whether its values are durations.
    pub(super) fn is_in_seconds(&self) -> bool {
        self.unit == SECOND
    }

    /// The upper bounds of the buckets, if it is a histogram.
    #[cfg(feature = "opentelemetry")]
    pub(super) fn buckets(&self) -> &'static [f64] {
        if self.is_in_seconds() { &SECONDS } else { &SLACK_RATIOS }
    }
}

macro_rules! metrics {
    ($(
        $constant:ident: $kind:ident $name:literal $opentelemetry_name:literal $unit:literal
            [$($label:literal),*] $help:literal
    )*) => {
        $(pub(super) const $constant: MetricDescription = MetricDescription {
            name: $name,
            opentelemetry_name: $opentelemetry_name,
            kind: MetricKind::$kind,
            unit: $unit,
            labels: &[$($label),*],
            attributes: &[$(concat!("distributed_lock.", $label)),*],
            help: $help,
        };)*

        /// All metrics that are exported.
        pub const METRICS: &[MetricDescription] = &[$($constant),*];
    };
}

metrics! {
    ACQUISITIONS: Counter "distributed_lock_acquisitions_total" "distributed_lock.acquisitions" "{call}"
        ["namespace", "template", "outcome"]
        "Calls for a lock, by how they ended."
    WAIT: Histogram "distributed_lock_wait_duration_seconds" "distributed_lock.wait.duration" "s"
        ["namespace", "template", "outcome"]
        "From the beginning of a call to its result."
    HOLD: Histogram "distributed_lock_hold_duration_seconds" "distributed_lock.hold.duration" "s"
        ["namespace", "template"]
        "From the grant of a lock to its release or loss."
    LOSSES: Counter "distributed_lock_losses_total" "distributed_lock.losses" "{lock}"
        ["namespace", "template", "reason"]
        "Locks that were lost while they were held."
    HELD: UpDownCounter "distributed_lock_held" "distributed_lock.held" "{lock}"
        ["namespace", "template"]
        "Locks that are held now."
    WAITING: UpDownCounter "distributed_lock_waiting" "distributed_lock.waiting" "{call}"
        ["namespace", "template"]
        "Calls of this process that wait now."
    OLDEST_HOLD: Gauge "distributed_lock_oldest_hold_seconds" "distributed_lock.oldest_hold" "s"
        ["namespace", "template"]
        "Age of the oldest hold; 0 without one."
    HANDOFF_LIMITS: Counter "distributed_lock_handoff_limits_total" "distributed_lock.handoff_limits"
        "{handoff}" ["namespace", "template", "outcome"]
        "How often consecutive hand-offs reached their limit, and continued or freed the lock."
    RENEWALS: Counter "distributed_lock_renewals_total" "distributed_lock.renewals" "{renewal}"
        ["namespace", "outcome"]
        "Renewals of leases."
    SLACK: Histogram "distributed_lock_renewal_slack_ratio" "distributed_lock.renewal.slack" "1"
        ["namespace"]
        "Part of the lease that was left when a renewal succeeded; about two thirds is normal."
    REQUESTS: Histogram "distributed_lock_store_request_duration_seconds"
        "distributed_lock.store.request.duration" "s" ["namespace", "operation", "outcome"]
        "From sending a request to the store to its answer."
    RELEASING: UpDownCounter "distributed_lock_releasing" "distributed_lock.releasing" "{lock}"
        ["namespace"]
        "Background releases in progress."
    STORE_UP: Gauge "distributed_lock_store_up" "distributed_lock.store.up" "1" ["namespace"]
        "1 if the last request to the store was answered, or 0."
    BUILD_INFO: Gauge "distributed_lock_build_info" "distributed_lock.build_info" "1" ["version"]
        "1 for the version of the library."
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules of OpenTelemetry: lower case with dots, no unit and no `_total`.
    #[test]
    fn the_names_for_opentelemetry_follow_from_those_for_prometheus() {
        for metric in METRICS {
            let name = metric.name.strip_suffix("_total").unwrap_or(metric.name);
            let name = ["_seconds", "_ratio"]
                .iter()
                .find_map(|unit| name.strip_suffix(unit))
                .unwrap_or(name);
            assert_eq!(metric.opentelemetry_name.replace('.', "_"), name);
            assert!(metric.opentelemetry_name.starts_with("distributed_lock."), "{name}");
            assert_eq!(metric.is_in_seconds(), metric.name.ends_with("_seconds"), "{name}");
            assert_eq!(
                metric.kind == MetricKind::Counter,
                metric.name.ends_with("_total"),
                "{name}"
            );
            let is_annotation = metric.unit.starts_with('{') && metric.unit.ends_with('}');
            assert!(is_annotation || ["s", "1"].contains(&metric.unit), "{name}");
            let labels = metric.attributes.iter().map(|it| it.strip_prefix("distributed_lock."));
            assert!(labels.eq(metric.labels.iter().copied().map(Some)), "{name}");
        }
    }
}
