//! The names of the metrics that are exported.

/// The upper bounds in seconds of the buckets that suit the durations of locks. A recorder has to be told
/// them, because a library cannot set them: without buckets, `metrics-exporter-prometheus` renders summaries.
///
/// Use them for the names that end with [`DURATION_SUFFIX`].
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
    /// Rises and falls.
    Gauge,
    /// Samples, counted by size.
    Histogram,
}

/// A metric that is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricDescription {
    /// Its name in the form of Prometheus.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal)*) => {
        $(pub(super) const $constant: &str = $name;)*

        /// All metrics that are exported.
        pub const METRICS: &[MetricDescription] = &[$(MetricDescription {
            name: $name,
            kind: MetricKind::$kind,
            labels: &[$($label),*],
            help: $help,
        },)*];
    };
}

metrics! {
    ACQUISITIONS: Counter "distributed_lock_acquisitions_total" ["namespace", "template", "outcome"]
        "Calls for a lock, by how they ended."
    WAIT: Histogram "distributed_lock_wait_duration_seconds" ["namespace", "template", "outcome"]
        "From the beginning of a call to its result."
    HOLD: Histogram "distributed_lock_hold_duration_seconds" ["namespace", "template"]
        "From the grant of a lock to its release or loss."
    LOSSES: Counter "distributed_lock_losses_total" ["namespace", "template", "reason"]
        "Locks that were lost while they were held."
    HELD: Gauge "distributed_lock_held" ["namespace", "template"]
        "Locks that are held now."
    WAITING: Gauge "distributed_lock_waiting" ["namespace", "template"]
        "Calls of this process that wait now."
    OLDEST_HOLD: Gauge "distributed_lock_oldest_hold_seconds" ["namespace", "template"]
        "Age of the oldest hold; 0 without one."
    HANDOFF_LIMITS: Counter "distributed_lock_handoff_limits_total"
        ["namespace", "template", "outcome"]
        "How often consecutive hand-offs reached their limit, and continued or freed the lock."
    RENEWALS: Counter "distributed_lock_renewals_total" ["namespace", "outcome"]
        "Renewals of leases."
    SLACK: Histogram "distributed_lock_renewal_slack_ratio" ["namespace"]
        "Part of the lease that was left when a renewal succeeded; about two thirds is normal."
    REQUESTS: Histogram "distributed_lock_store_request_duration_seconds"
        ["namespace", "operation", "outcome"]
        "From sending a request to the store to its answer."
    RELEASING: Gauge "distributed_lock_releasing" ["namespace"]
        "Background releases in progress."
    STORE_UP: Gauge "distributed_lock_store_up" ["namespace"]
        "1 if the last request to the store was answered, or 0."
    BUILD_INFO: Gauge "distributed_lock_build_info" ["version"]
        "1 for the version of the library."
}
