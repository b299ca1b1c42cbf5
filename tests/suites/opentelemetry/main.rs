//! The export to OpenTelemetry. The meter provider belongs to the whole process, so each test has a process of
//! its own.

mod collector;
mod descriptions;
mod faults;
mod faulty;
mod installation;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use lock_runtime::telemetry::Snapshot;
use lock_runtime::{Identity, LockClient, LockError, distributed_lock, with_client};
use lock_tests::support::{LEASE, until};

use crate::collector::{Collector, Point, expected, series_name};

const NAMESPACE: &str = "shop";

/// Is set in the process of a test.
const ALONE: &str = "LOCK_TEST_ALONE";

#[distributed_lock(key = "order:<id>", wait = "0s")]
async fn pay(id: &str) -> Result<(), LockError> {
    Ok(())
}

/// Runs a test in a process of its own, in which its function is called again.
fn alone<F: Fn()>(_: F, test: impl Future<Output = ()>) {
    if std::env::var_os(ALONE).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        return runtime.expect("a runtime").block_on(test);
    }
    let (_, name) = std::any::type_name::<F>().split_once("::").expect("a path in this program");
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).args([name, "--exact"]).env(ALONE, "1").output();
    let output = output.expect("a process");
    let printed = String::from_utf8_lossy(&output.stdout);
    let is_passed = output.status.success() && printed.contains("1 passed");
    assert!(is_passed, "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
}

async fn client(url: &str, namespace: &str) -> LockClient {
    let client = LockClient::builder().url(url).namespace(namespace).lease(LEASE);
    client.identity(Identity::none()).connect().await.expect("a store")
}

/// Has everything exported that was measured so far: a shutdown waits for it, but not for long. See also
/// [`Collector::export`].
async fn request_export() {
    LockClient::memory().shutdown().await.expect("idle");
}

/// Some calls, of which none is left.
async fn script(client: &LockClient) {
    // No attribute may contain this.
    let hostile = "a\n\"}<script>";
    with_client(client.clone(), pay(hostile)).await.expect("free");
    let guard = client.lock("order:7").template("report").acquire().await.expect("free");
    with_client(client.clone(), pay("7")).await.expect_err("busy");
    with_client(client.clone(), pay("")).await.expect_err("an empty value");
    guard.fencing_token().await.expect("held");
    let lost = client.lock("lost").template("report").lease(LEASE / 20).acquire().await;
    lost.expect("free").lost().await;
    let renewed = || client.snapshot().renewal_slack.count() > 0;
    assert!(until(LEASE * 20, renewed).await.is_some());
    guard.release().await.expect("held");
    // The loss is recorded on another thread.
    let is_over = || client.snapshot().site("report").is_some_and(|site| site.held == 0);
    assert!(until(LEASE * 20, is_over).await.is_some());
}

/// Asserts that the only client of its namespace has measured what was read.
fn assert_measured(snapshot: &Snapshot, mut read: BTreeMap<String, Point>) {
    let own = format!("distributed_lock.namespace={}", snapshot.namespace);
    read.retain(|name, _| name.split(['{', ',', '}']).any(|attribute| attribute == own));
    assert_same(&read, &expected(snapshot));
}

/// Names the series that differ.
fn assert_same(left: &BTreeMap<String, Point>, right: &BTreeMap<String, Point>) {
    let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let both = names.into_iter().map(|name| (name, left.get(name), right.get(name)));
    let different: Vec<_> = both.filter(|(_, left, right)| left != right).collect();
    assert!(different.is_empty(), "{different:#?}");
    assert!(left.len() > 40, "{left:#?}");
}

fn acquisitions(template: &str, outcome: &str) -> String {
    let attributes = [("namespace", NAMESPACE), ("template", template), ("outcome", outcome)];
    series_name("distributed_lock.acquisitions", &attributes)
}

fn waits(outcome: &str) -> String {
    let attributes = [("namespace", NAMESPACE), ("template", "order:<id>"), ("outcome", outcome)];
    series_name("distributed_lock.wait.duration", &attributes)
}

/// The calls of `pay` that were granted, and the durations of their waits.
fn granted(collector: &Collector) -> (f64, u64) {
    let series = collector.series();
    let waits = series.get(&waits("granted")).map_or(0, |waits| waits.count());
    let calls = series.get(&acquisitions("order:<id>", "granted"));
    (calls.map_or(0.0, |calls| calls.value()), waits)
}
