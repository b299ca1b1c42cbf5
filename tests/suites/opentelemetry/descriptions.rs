//! The names, kinds, units and attributes of the metrics, and what the documentation says of them.

use std::collections::BTreeSet;

use lock_runtime::telemetry::{METRICS, MetricDescription, MetricKind, SECONDS, SLACK_RATIOS};
use lock_tests::RedisServer;
use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};

use crate::collector::Collector;
use crate::{NAMESPACE, alone, client, script};

#[test]
fn each_metric_is_exported_as_it_is_described_and_documented() {
    alone(each_metric_is_exported_as_it_is_described_and_documented, async {
        let collector = Collector::installed();
        let server = RedisServer::start();
        // The measurements of a client that is being dropped are exported later.
        let client = client(&server.url(), NAMESPACE).await;
        script(&client).await;
        collector.export().await;
        let read = collector.read();
        let scopes: Vec<_> = read.scope_metrics().collect();
        assert_eq!(scopes.len(), 1, "{scopes:?}");
        assert_eq!(scopes[0].scope().name(), "lock-runtime");
        assert!(scopes[0].scope().version().is_some());
        let page = include_str!("../../../docs/operations.md");
        let mut found = BTreeSet::new();
        for metric in scopes[0].metrics() {
            let described = METRICS.iter().find(|it| it.opentelemetry_name == metric.name());
            let described =
                described.unwrap_or_else(|| panic!("{} is not described", metric.name()));
            assert!(found.insert(described.opentelemetry_name), "{described:?}");
            assert_eq!((metric.unit(), metric.description()), (described.unit, described.help));
            let (kind, attributes) = shape(metric.data());
            assert_eq!(kind, described.kind, "{described:?}");
            let names = described.attributes.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(attributes, names, "{described:?}");
            assert!(page.contains(&row(described)), "the page has no row {}", row(described));
        }
        let all: BTreeSet<&str> = METRICS.iter().map(|it| it.opentelemetry_name).collect();
        assert_eq!(found, all);
        let rows = page.lines().filter(|line| line.starts_with("| `distributed_lock."));
        assert_eq!(rows.count(), all.len(), "the page has other metrics");
    });
}

/// The row of a metric in the documentation.
fn row(metric: &MetricDescription) -> String {
    let kind = match metric.kind {
        MetricKind::Counter => "counter",
        MetricKind::UpDownCounter => "up-down counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram => "histogram",
        _ => panic!("a new kind"),
    };
    let labels = metric.labels.iter().map(|label| format!("`{label}`"));
    let labels: Vec<String> = labels.collect();
    let (name, unit) = (metric.opentelemetry_name, metric.unit);
    format!("| `{name}` | {kind} | `{unit}` | {} |", labels.join(", "))
}

/// The kind of a metric, and the names of its attributes. A histogram has the buckets of its unit.
fn shape(data: &AggregatedMetrics) -> (MetricKind, BTreeSet<String>) {
    fn names<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> Vec<String> {
        attributes.map(|attribute| attribute.key.to_string()).collect()
    }
    fn of<T: Copy>(data: &MetricData<T>) -> (MetricKind, BTreeSet<String>) {
        match data {
            MetricData::Sum(sum) => {
                let names = sum.data_points().flat_map(|point| names(point.attributes()));
                let kind = if sum.is_monotonic() {
                    MetricKind::Counter
                } else {
                    MetricKind::UpDownCounter
                };
                (kind, names.collect())
            }
            MetricData::Gauge(gauge) => {
                let names = gauge.data_points().flat_map(|point| names(point.attributes()));
                (MetricKind::Gauge, names.collect())
            }
            MetricData::Histogram(histogram) => {
                for point in histogram.data_points() {
                    let bounds: Vec<f64> = point.bounds().collect();
                    assert!(bounds == SECONDS || bounds == SLACK_RATIOS, "{bounds:?}");
                }
                let names = histogram.data_points().flat_map(|point| names(point.attributes()));
                (MetricKind::Histogram, names.collect())
            }
            MetricData::ExponentialHistogram(_) => panic!("it has bounds"),
        }
    }
    match data {
        AggregatedMetrics::F64(data) => of(data),
        AggregatedMetrics::U64(data) => of(data),
        AggregatedMetrics::I64(data) => of(data),
    }
}
