//! A meter provider of the SDK that keeps what it is given, and what a client expects it to have.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use lock_runtime::telemetry::{AcquisitionOutcome, HistogramSnapshot, Snapshot};
use lock_tests::support::{LEASE, until};
use opentelemetry::{KeyValue, global};
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, MetricData, ResourceMetrics, ScopeMetrics,
};
use opentelemetry_sdk::metrics::{
    InMemoryMetricExporter, InMemoryMetricExporterBuilder, SdkMeterProvider, Temporality,
};

use crate::client;

/// A meter provider and what it has exported.
pub(crate) struct Collector {
    pub(crate) provider: SdkMeterProvider,
    exporter: InMemoryMetricExporter,
}

impl Collector {
    pub(crate) fn new() -> Self {
        Self::with_temporality(Temporality::Cumulative)
    }

    pub(crate) fn with_temporality(temporality: Temporality) -> Self {
        let exporter = InMemoryMetricExporterBuilder::new().with_temporality(temporality).build();
        let provider = SdkMeterProvider::builder().with_periodic_exporter(exporter.clone()).build();
        Self { provider, exporter }
    }

    /// One that is the provider of this process.
    pub(crate) fn installed() -> Self {
        let collector = Self::new();
        collector.install();
        collector
    }

    pub(crate) fn install(&self) {
        global::set_meter_provider(self.provider.clone());
    }

    /// Has everything exported that was measured so far, and waits for it.
    pub(crate) async fn export(&self) {
        static EXPORTS: AtomicU64 = AtomicU64::new(0);
        // Samples are recorded after the totals are published, so only the next export tells that one is over.
        for _ in 0..2 {
            let namespace = format!("export-{}", EXPORTS.fetch_add(1, Ordering::Relaxed));
            let marker = client("memory:", &namespace).await;
            marker.shutdown().await.expect("idle");
            let up = series_name("distributed_lock.store.up", &[("namespace", &namespace)]);
            assert!(until(LEASE * 60, || self.series().contains_key(&up)).await.is_some());
        }
    }

    /// Has the metrics read now.
    pub(crate) fn read(&self) -> ResourceMetrics {
        self.exporter.reset();
        self.provider.force_flush().expect("it is running");
        let metrics = self.exporter.get_finished_metrics().expect("it is running");
        metrics.into_iter().next_back().unwrap_or_default()
    }

    /// The series that are read now, by name and attributes.
    pub(crate) fn series(&self) -> BTreeMap<String, Point> {
        series(&self.read()).collect()
    }
}

/// The series of an export, by name and attributes.
pub(crate) fn series(exported: &ResourceMetrics) -> impl Iterator<Item = (String, Point)> {
    let metrics = exported.scope_metrics().flat_map(ScopeMetrics::metrics);
    metrics.flat_map(|metric| points(metric.name(), metric.data()))
}

/// What a series has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Point {
    Value(f64),
    Samples { count: u64, sum: f64 },
}

/// The exporter records means, so a sum is exact but for rounding.
impl PartialEq for Point {
    fn eq(&self, other: &Self) -> bool {
        let is_close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(1.0);
        match (*self, *other) {
            (Self::Value(value), Self::Value(other)) => is_close(value, other),
            (Self::Samples { count, sum }, Self::Samples { count: others, sum: of_others }) => {
                count == others && is_close(sum, of_others)
            }
            _ => false,
        }
    }
}

impl Point {
    pub(crate) fn value(self) -> f64 {
        match self {
            Self::Value(value) => value,
            Self::Samples { .. } => panic!("{self:?} has samples"),
        }
    }

    pub(crate) fn count(self) -> u64 {
        match self {
            Self::Samples { count, .. } => count,
            Self::Value(_) => panic!("{self:?} has no samples"),
        }
    }
}

/// The name of a series.
pub(crate) fn series_name(name: &str, attributes: &[(&str, &str)]) -> String {
    let mut attributes: Vec<String> = attributes
        .iter()
        .map(|(attribute, value)| format!("distributed_lock.{attribute}={value}"))
        .collect();
    attributes.sort_unstable();
    format!("{name}{{{}}}", attributes.join(","))
}

fn points(name: &str, data: &AggregatedMetrics) -> Vec<(String, Point)> {
    /// The points of a sum or a gauge.
    fn values<T: Copy>(
        (name, data): (&str, &MetricData<T>),
        value: impl Fn(T) -> f64,
    ) -> Vec<(String, Point)> {
        let point = |attributes, it: T| (named(name, attributes), Point::Value(value(it)));
        match data {
            MetricData::Sum(sum) => {
                sum.data_points().map(|it| point(it.attributes().collect(), it.value())).collect()
            }
            MetricData::Gauge(gauge) => {
                gauge.data_points().map(|it| point(it.attributes().collect(), it.value())).collect()
            }
            _ => panic!("{name} is a histogram"),
        }
    }
    match data {
        AggregatedMetrics::F64(MetricData::Histogram(histogram)) => histogram
            .data_points()
            .map(|it| {
                let point = Point::Samples { count: it.count(), sum: it.sum() };
                (named(name, it.attributes().collect()), point)
            })
            .collect(),
        AggregatedMetrics::F64(data) => values((name, data), |value| value),
        #[allow(clippy::cast_precision_loss)]
        AggregatedMetrics::U64(data) => values((name, data), |value| value as f64),
        #[allow(clippy::cast_precision_loss)]
        AggregatedMetrics::I64(data) => values((name, data), |value| value as f64),
    }
}

fn named(name: &str, attributes: Vec<&KeyValue>) -> String {
    let attributes = attributes.into_iter().map(|it| format!("{}={}", it.key, it.value));
    let mut attributes: Vec<String> = attributes.collect();
    attributes.sort_unstable();
    format!("{name}{{{}}}", attributes.join(","))
}

/// The series that a client with these measurements has, if it is the only one of its namespace. A histogram
/// without samples has none.
pub(crate) fn expected(snapshot: &Snapshot) -> BTreeMap<String, Point> {
    let mut all = BTreeMap::new();
    let namespace = ("namespace", &*snapshot.namespace);
    let mut add = |name: &str, attributes: &[(&str, &str)], point: Point| {
        let is_empty = matches!(point, Point::Samples { count: 0, .. });
        if !is_empty {
            let name = series_name(&format!("distributed_lock.{name}"), attributes);
            assert_eq!(all.insert(name, point), None, "a template of one site");
        }
    };
    for site in &snapshot.sites {
        let (template, held) =
            (("template", site.template), [namespace, ("template", site.template)]);
        for outcome in AcquisitionOutcome::ALL {
            let attributes = &[namespace, template, ("outcome", outcome.as_str())];
            add("acquisitions", attributes, number(site.acquisitions(outcome)));
            if let Some(waits) = site.wait(outcome) {
                add("wait.duration", attributes, samples(waits));
            }
        }
        add("hold.duration", &held, samples(&site.hold));
        for (reason, losses) in &site.losses {
            let attributes = &[namespace, template, ("reason", reason.as_str())];
            add("losses", attributes, number(*losses));
        }
        let limits = site.handoff_limits;
        for (outcome, count) in [("continued", limits.continued), ("freed", limits.freed)] {
            let attributes = &[namespace, template, ("outcome", outcome)];
            add("handoff_limits", attributes, number(count));
        }
        add("held", &held, number(site.held));
        add("waiting", &held, number(site.waiting));
        let age = site.oldest_hold.unwrap_or_default().as_secs_f64();
        add("oldest_hold", &held, Point::Value(age));
    }
    for (outcome, count) in &snapshot.renewals {
        add("renewals", &[namespace, ("outcome", outcome.as_str())], number(*count));
    }
    let slack = &snapshot.renewal_slack;
    let slack = Point::Samples { count: slack.count(), sum: slack.sum };
    add("renewal.slack", &[namespace], slack);
    for (operation, outcome, durations) in &snapshot.requests {
        let of = [("operation", operation.as_str()), ("outcome", outcome.as_str())];
        add("store.request.duration", &[namespace, of[0], of[1]], samples(durations));
    }
    add("releasing", &[namespace], number(snapshot.stats.releasing as u64));
    add("store.up", &[namespace], number(snapshot.store_up.into()));
    all
}

fn number(count: u64) -> Point {
    #[allow(clippy::cast_precision_loss)]
    Point::Value(count as f64)
}

fn samples(histogram: &HistogramSnapshot) -> Point {
    Point::Samples { count: histogram.count(), sum: histogram.sum().as_secs_f64() }
}
