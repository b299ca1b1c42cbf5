//! The export to the `metrics` facade. The recorder belongs to the whole process, so this is a process of its
//! own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lock_runtime::telemetry::{DURATION_SUFFIX, METRICS, MetricKind, SECONDS, SLACK_RATIOS};
use lock_runtime::{LockClient, LockError, distributed_lock, with_client};
use lock_tests::RedisServer;
use lock_tests::support::{LEASE, until};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;

const NAMESPACE: &str = "shop";

/// How long the recorder keeps a series that is not exported. Shorter than the time between two exports.
const IDLE: Duration = Duration::from_secs(3);

#[distributed_lock(key = "order:<id>", wait = "0s")]
async fn pay(id: &str) -> Result<(), LockError> {
    Ok(())
}

async fn client(url: &str, namespace: &str) -> LockClient {
    let client = LockClient::builder().url(url).namespace(namespace).lease(LEASE);
    client.connect().await.expect("a store")
}

/// Has everything exported that was measured so far: a shutdown waits for it.
async fn export() {
    LockClient::memory().shutdown().await.expect("idle");
}

/// The samples by name and labels, without the version.
fn samples(handle: &PrometheusHandle) -> BTreeMap<String, f64> {
    let text = handle.render();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let samples = lines.map(|line| line.rsplit_once(' ').expect("a value"));
    samples.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect()
}

/// The calls of `pay` with this outcome.
fn calls(handle: &PrometheusHandle, outcome: &str) -> f64 {
    let labels =
        format!(r#"{{namespace="{NAMESPACE}",template="order:<id>",outcome="{outcome}"}}"#);
    let name = format!("distributed_lock_acquisitions_total{labels}");
    *samples(handle).get(&name).unwrap_or_else(|| panic!("{name} in {}", handle.render()))
}

/// The names of metrics that a page mentions.
fn mentioned(page: &str) -> BTreeSet<String> {
    let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words = words.filter(|word| word.starts_with("distributed_lock_"));
    words.map(str::to_owned).collect()
}

#[tokio::test]
async fn measurements_are_exported_whenever_the_recorder_is_installed() {
    let server = RedisServer::start();
    let before = client(&server.url(), NAMESPACE).await;
    // Nobody listens yet.
    let hostile = "a\n\"}<script>";
    with_client(before.clone(), pay(hostile)).await.expect("free");
    let fenced = before.lock("k").template("fenced").acquire().await.expect("free");
    fenced.fencing_token().await.expect("held");
    fenced.release().await.expect("held");
    export().await;

    let slack = Matcher::Full("distributed_lock_renewal_slack_ratio".to_owned());
    let durations = Matcher::Suffix(DURATION_SUFFIX.to_owned());
    let handle = &PrometheusBuilder::new()
        .set_buckets_for_metric(durations, &SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(slack, &SLACK_RATIOS))
        .expect("there are buckets")
        .idle_timeout(MetricKindMask::ALL, Some(IDLE))
        .install_recorder()
        .expect("there is no other one");
    export().await;
    assert_eq!((calls(handle, "granted"), calls(handle, "busy")), (1.0, 0.0));
    let waits = format!(
        r#"distributed_lock_wait_duration_seconds_count{{namespace="{NAMESPACE}",template="order:<id>",outcome="granted"}}"#
    );
    assert_eq!(samples(handle).get(&waits), Some(&1.0), "{}", handle.render());

    // A second client of the namespace, and one of another namespace.
    let after = client(&server.url(), NAMESPACE).await;
    let other = client("memory:", "other").await;
    with_client(after.clone(), pay("7")).await.expect("free");
    with_client(other.clone(), pay("7")).await.expect("free");
    let held = after.lock("order:8").acquire().await.expect("free");
    with_client(before.clone(), pay("8")).await.expect_err("busy");
    let renewed = || after.snapshot().renewal_slack.count() > 0;
    assert!(until(LEASE * 5, renewed).await.is_some());
    export().await;
    assert_eq!((calls(handle, "granted"), calls(handle, "busy")), (2.0, 1.0));
    let gauge = format!(r#"distributed_lock_held{{namespace="{NAMESPACE}",template="(none)"}}"#);
    assert_eq!(samples(handle).get(&gauge), Some(&1.0));
    held.release().await.expect("held");
    check_names(handle);

    // What a client has measured still counts when it has ended, and after a pause in which the recorder has
    // forgotten all series.
    drop((before, other));
    let is_forgotten = || {
        handle.run_upkeep();
        !handle.render().contains("distributed_lock_acquisitions_total{")
    };
    assert!(until(IDLE * 20, is_forgotten).await.is_some());
    with_client(after.clone(), pay("9")).await.expect("free");
    export().await;
    assert_eq!((calls(handle, "granted"), calls(handle, "busy")), (3.0, 1.0));
    assert_eq!(samples(handle).get(&gauge), Some(&0.0));
    assert!(!handle.render().contains("script"), "no label has a key");
    check_snapshot(handle).await;
}

/// Each metric that is described is exported, with its labels, and nothing else is. The documentation names
/// the same ones.
fn check_names(handle: &PrometheusHandle) {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in samples(handle).into_keys() {
        let (name, labels) = name.split_once('{').unwrap_or((&name, "}"));
        let of_histogram = |name: &str| {
            let suffixes = ["_bucket", "_sum", "_count"];
            let base = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            base.map(str::to_owned)
        };
        let is_histogram = |base: &String| {
            METRICS.iter().any(|it| it.kind == MetricKind::Histogram && it.name == base)
        };
        let base = of_histogram(name).filter(is_histogram).unwrap_or_else(|| name.to_owned());
        let labels = labels.trim_end_matches('}').split("\",");
        let labels = labels.filter_map(|label| label.split_once("=\"")).map(|(label, _)| label);
        let labels = labels.filter(|label| *label != "le").map(str::to_owned);
        found.entry(base).or_default().extend(labels);
    }
    let described: BTreeMap<String, BTreeSet<String>> = METRICS
        .iter()
        .map(|it| (it.name.to_owned(), it.labels.iter().map(|label| (*label).to_owned()).collect()))
        .collect();
    assert_eq!(found, described);
    let page = |name: &str| {
        let path = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("it is in the repository")
    };
    let all: BTreeSet<String> = found.into_keys().collect();
    assert_eq!(mentioned(&page("operations.md")), all);
    assert_eq!(queried(&page("monitoring/grafana-dashboard.json")), all, "the dashboard shows all");
    let alerts = queried(&page("monitoring/prometheus-rules.yml"));
    assert!(!alerts.is_empty() && alerts.is_subset(&all), "{alerts:?}");
}

/// The metrics that queries use. Those with a suffix of a histogram have to be histograms, and all labels
/// have to exist.
fn queried(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for series in mentioned(text) {
        let base = |suffix: &&str| series.strip_suffix(suffix);
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(base);
        let metric = METRICS.iter().find(|it| it.name == of_histogram.unwrap_or(&series));
        let metric = metric.unwrap_or_else(|| panic!("{series} does not exist"));
        assert_eq!(of_histogram.is_some(), metric.kind == MetricKind::Histogram, "{series}");
        for selector in text.split(&format!("{series}{{")).skip(1) {
            let selector = selector.split('}').next().unwrap_or_default();
            let labels = selector.split(',').filter_map(|label| label.split(['=', '!']).next());
            for label in labels {
                assert!(metric.labels.contains(&label), "{label} of {series}");
            }
        }
        names.insert(metric.name.to_owned());
    }
    names
}

/// What a few calls leave, without durations. The memory store has no requests.
async fn check_snapshot(handle: &PrometheusHandle) {
    let client = client("memory:", "snapshot").await;
    for id in 0..3 {
        with_client(client.clone(), pay(&id.to_string())).await.expect("free");
    }
    let guard = client.lock("order:7").template("report").acquire().await.expect("free");
    with_client(client.clone(), pay("7")).await.expect_err("busy");
    with_client(client.clone(), pay("")).await.expect_err("an empty value");
    let lost = client.lock("lost").template("report").lease(LEASE / 20).acquire().await;
    lost.expect("free").lost().await;
    guard.release().await.expect("held");
    // The loss is recorded on another thread.
    let recorded = || client.snapshot().site("report").is_some_and(|site| site.held == 0);
    assert!(until(LEASE, recorded).await.is_some());
    export().await;
    let text = handle.render();
    let of_run = text.lines().filter(|line| line.contains("\"snapshot\""));
    let mut lines: Vec<&str> =
        of_run.filter(|line| !line.contains("_bucket{") && !line.contains("_sum{")).collect();
    lines.sort_unstable();
    expect_test::expect_file!["metrics_snapshot.txt"].assert_eq(&(lines.join("\n") + "\n"));
}
