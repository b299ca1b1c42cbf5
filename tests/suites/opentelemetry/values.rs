//! What is exported.

use std::collections::BTreeMap;

use lock_runtime::telemetry::{DURATION_SUFFIX, METRICS, SECONDS, SLACK_RATIOS};
use lock_runtime::with_client;
use lock_tests::RedisServer;
use lock_tests::support::{LEASE, until};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use opentelemetry::global;

use crate::collector::{Collector, Point, series_name};
use crate::faulty::{FaultyProvider, ProviderFault};
use crate::{
    NAMESPACE, acquisitions, alone, assert_measured, assert_same, client, granted, pay,
    request_export, script,
};

#[test]
fn all_values_are_those_of_the_snapshot() {
    alone(all_values_are_those_of_the_snapshot, async {
        let collector = Collector::installed();
        let server = RedisServer::start();
        for url in [&server.url(), "memory:"] {
            let namespace = if url == "memory:" { "memory" } else { "redis" };
            let client = client(url, namespace).await;
            script(&client).await;
            collector.export().await;
            let read = collector.series();
            assert_measured(&client.snapshot(), read.clone());
            assert!(read.keys().all(|name| !name.contains("script")), "no attribute has a key");
            let attributes =
                [("namespace", namespace), ("template", "report"), ("reason", "lease_over")];
            let losses = series_name("distributed_lock.losses", &attributes);
            assert_eq!(read.get(&losses), Some(&Point::Value(1.0)), "the script has an effect");
        }
    });
}

#[test]
fn a_series_begins_at_zero_and_gauges_follow_the_holds() {
    alone(a_series_begins_at_zero_and_gauges_follow_the_holds, async {
        let collector = Collector::installed();
        let client = client("memory:", NAMESPACE).await;
        let lock = || client.lock("k").template("report").lease(LEASE * 600);
        let held = lock().acquire().await.expect("free");
        let busy = tokio::spawn(lock().wait(LEASE * 600).acquire());
        let waits = || client.snapshot().site("report").is_some_and(|site| site.waiting == 1);
        assert!(until(LEASE * 20, waits).await.is_some());
        collector.export().await;
        let place = [("namespace", NAMESPACE), ("template", "report")];
        let level = |name: &str| {
            let name = series_name(&format!("distributed_lock.{name}"), &place);
            collector.series().get(&name).unwrap_or_else(|| panic!("{name}")).value()
        };
        assert_eq!((level("held"), level("waiting")), (1.0, 1.0));
        assert!(level("oldest_hold") > 0.0);
        let denied = acquisitions("report", "denied");
        assert_eq!(collector.series().get(&denied), Some(&Point::Value(0.0)));
        held.release().await.expect("held");
        busy.await.expect("no panic").expect("free").release().await.expect("held");
        collector.export().await;
        assert_eq!((level("held"), level("waiting"), level("oldest_hold")), (0.0, 0.0, 0.0));
    });
}

#[test]
fn clients_of_a_namespace_are_added_up_and_count_after_their_end() {
    alone(clients_of_a_namespace_are_added_up_and_count_after_their_end, async {
        let collector = Collector::installed();
        let one = client("memory:", NAMESPACE).await;
        let two = client("memory:", NAMESPACE).await;
        let other = client("memory:", "other").await;
        for client in [&one, &two, &other] {
            with_client(client.clone(), pay("7")).await.expect("free");
        }
        let held = one.lock("k").template("report").acquire().await.expect("free");
        collector.export().await;
        assert_eq!(granted(&collector), (2.0, 2));
        held.release().await.expect("held");
        drop((one, other));
        with_client(two.clone(), pay("7")).await.expect("free");
        collector.export().await;
        assert_eq!(granted(&collector), (3.0, 3));
        let place = [("namespace", NAMESPACE), ("template", "report")];
        let held = series_name("distributed_lock.held", &place);
        assert_eq!(collector.series().get(&held), Some(&Point::Value(0.0)));
    });
}

/// The samples of the `metrics` facade, under the names of OpenTelemetry. Without buckets and without the
/// labels of the version.
fn of_facade(handle: &PrometheusHandle) -> BTreeMap<String, Point> {
    let text = handle.render();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let values: BTreeMap<&str, f64> = lines
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name, value.parse().expect("a number")))
        .collect();
    let mut points = BTreeMap::new();
    for (series, value) in &values {
        let (name, labels) = series.split_once('{').expect("each has labels");
        let labels = labels.strip_suffix("\"}").expect("the end of the labels").split("\",");
        let labels = labels.filter_map(|label| label.split_once("=\""));
        let labels: Vec<_> = labels.collect();
        let metric = |name: &str| METRICS.iter().find(|it| it.name == name);
        let (metric, point) = match (metric(name), name.strip_suffix("_count").and_then(metric)) {
            (Some(metric), _) => (metric, Point::Value(*value)),
            (None, Some(histogram)) if *value > 0.0 => {
                let sum = series.replace("_count{", "_sum{");
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let count = *value as u64;
                (histogram, Point::Samples { count, sum: values[&*sum] })
            }
            _ => continue,
        };
        points.insert(series_name(metric.opentelemetry_name, &labels), point);
    }
    points
}

#[test]
fn both_features_export_the_same() {
    alone(both_features_export_the_same, async {
        let slack = Matcher::Full("distributed_lock_renewal_slack_ratio".to_owned());
        let durations = Matcher::Suffix(DURATION_SUFFIX.to_owned());
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(durations, &SECONDS)
            .and_then(|builder| builder.set_buckets_for_metric(slack, &SLACK_RATIOS))
            .expect("there are buckets")
            .install_recorder()
            .expect("there is no other one");
        let server = RedisServer::start();
        let client = client(&server.url(), NAMESPACE).await;
        script(&client).await;
        // The recorder has had these samples when the provider is installed.
        let calls = acquisitions("order:<id>", "granted");
        let is_recorded = || of_facade(&handle).contains_key(&calls);
        request_export().await;
        assert!(until(LEASE * 60, is_recorded).await.is_some());
        let collector = Collector::installed();
        with_client(client.clone(), pay("7")).await.expect("free");
        collector.export().await;
        let (facade, read) = (of_facade(&handle), collector.series());
        assert_same(&facade, &read);

        // A provider that panics does not end the export to the facade.
        let faulty = FaultyProvider::new(ProviderFault::RecordingPanics);
        global::set_meter_provider(faulty.clone());
        with_client(client.clone(), pay("7")).await.expect("free");
        request_export().await;
        assert!(until(LEASE * 60, || faulty.occurred() > 0).await.is_some());
        with_client(client.clone(), pay("7")).await.expect("free");
        let added = || of_facade(&handle)[&calls].value() - facade[&calls].value();
        request_export().await;
        assert!(until(LEASE * 60, || added() > 1.5).await.is_some());
    });
}
