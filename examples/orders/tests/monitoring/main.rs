//! Evaluates the alerts in `docs/monitoring` on what two services measure. Needs promtool: `scripts/monitoring` installs
//! it, and runs this.

#[path = "../service/mod.rs"]
mod service;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lock_runtime::LockClient;
use lock_tests::RedisServer;
use serde_json::json;

use crate::service::Service;

/// The lease of the services.
const LEASE: Duration = Duration::from_secs(30);

/// A value of the measurements is at most this old.
const EXPORTED: Duration = Duration::from_secs(6);

const RULES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/monitoring/prometheus-rules.yml");

/// The samples of a service: its name, and for each time the page of its measurements, if it answered.
struct Scrapes {
    instance: &'static str,
    pages: Vec<Option<String>>,
}

impl Scrapes {
    fn new(instance: &'static str) -> Self {
        Self { instance, pages: Vec::new() }
    }

    /// The series in the notation of promtool.
    fn series(&self) -> String {
        let names = self.pages.iter().flatten().flat_map(|page| page.lines());
        let names: BTreeSet<&str> =
            names.filter(|line| !line.starts_with('#')).filter_map(name).collect();
        let mut text = String::new();
        for series in names {
            let values = self.pages.iter().map(|page| {
                let found = page.as_ref().and_then(|page| {
                    page.lines().find(|line| name(line) == Some(series))?.rsplit_once(' ')
                });
                found.map_or("_", |(_, value)| value)
            });
            let values: Vec<&str> = values.collect();
            let (metric, labels) = series.split_once('{').unwrap_or((series, "}"));
            let instance = self.instance;
            let comma = if labels == "}" { "" } else { "," };
            writeln!(text, "      - series: '{metric}{{instance=\"{instance}\"{comma}{labels}'")
                .expect("a string");
            writeln!(text, "        values: {}", values.join(" ")).expect("a string");
        }
        text
    }
}

/// The name and the labels of a sample.
fn name(line: &str) -> Option<&str> {
    line.rsplit_once(' ').map(|(name, _)| name)
}

/// Asserts that exactly these alerts fire at the last scrape.
fn assert_firing(scrapes: &[&Scrapes], expected: &[(&str, &str)]) {
    let count = scrapes[0].pages.len();
    let mut text = format!(
        "rule_files: ['{RULES}']\nevaluation_interval: 15s\ntests:\n  - interval: 15s\n    \
         input_series:\n"
    );
    for one in scrapes {
        text.push_str(&one.series());
    }
    let at = 15 * (count - 1);
    write!(
        text,
        "    promql_expr_test:\n      - expr: count by (alertname, instance) \
         (ALERTS{{alertstate=\"firing\"}})\n        eval_time: {at}s\n        exp_samples:\n"
    )
    .expect("a string");
    for (alert, instance) in expected {
        writeln!(
            text,
            "          - labels: '{{alertname=\"{alert}\", instance=\"{instance}\"}}'\n            \
             value: 1"
        )
        .expect("a string");
    }
    let file = tempfile::Builder::new().suffix(".yml").tempfile().expect("a directory for it");
    std::fs::write(file.path(), text).expect("writable");
    let run = Command::new("promtool").args(["test", "rules"]).arg(file.path()).output();
    let run = run.expect("promtool is a part of Prometheus: `scripts/monitoring` installs it");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stdout));
}

fn signal(service: &Service, name: &str) {
    let told = Command::new("kill").args([name, &service.id().to_string()]).status();
    assert!(told.expect("`kill` runs").success());
}

/// The service that was suspended for longer than its lease alerts, and no other one.
#[test]
fn a_suspended_service_fires_the_alert_for_lost_locks() {
    let server = RedisServer::start();
    let services = [Service::start(&server.url()), Service::start(&server.url())];
    let mut scrapes = [Scrapes::new("suspended"), Scrapes::new("other")];
    services[0].set_stock("pen", 1000);
    let mut orders = 0..;
    let mut load = |service: &Service| {
        for order in orders.by_ref().take(50) {
            let body = json!({ "item": "pen", "units": 1 });
            assert_eq!(service.post(&format!("/orders/{order}/pay"), &body), 200);
        }
    };
    services.iter().for_each(&mut load);
    thread::sleep(EXPORTED);
    for (scrapes, service) in scrapes.iter_mut().zip(&services) {
        scrapes.pages.push(Some(service.page("/metrics").1));
    }
    assert_firing(&scrapes.each_ref(), &[]);

    // The body of an order holds its lock, and waits for that of the stock.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = LockClient::builder().url(server.url()).namespace("shop");
    let client = runtime.block_on(client.connect()).expect("up");
    let stock = runtime.block_on(client.lock("stock:pen").acquire()).expect("free");
    thread::scope(|scope| {
        let suspended = &services[0];
        let body = json!({ "item": "pen", "units": 1 });
        let paying = scope.spawn(move || suspended.post("/orders/100000/pay", &body));
        let began = Instant::now();
        while !server.exists("shop:order:100000") || server.queued("shop:stock:pen") == 0 {
            assert!(began.elapsed() < LEASE, "the service waits for the stock");
            thread::sleep(Duration::from_millis(10));
        }
        signal(suspended, "-STOP");
        runtime.block_on(stock.release()).expect("held");
        let began = Instant::now();
        while server.exists("shop:order:100000") {
            assert!(began.elapsed() < LEASE * 2, "the lease ends");
            // The other service continues, and the suspended one does not answer.
            load(&services[1]);
            thread::sleep(EXPORTED);
            scrapes[0].pages.push(None);
            scrapes[1].pages.push(Some(services[1].page("/metrics").1));
        }
        signal(suspended, "-CONT");
        assert_eq!(paying.join().expect("no panic"), 503, "the lock was lost");
    });
    thread::sleep(EXPORTED);
    for (scrapes, service) in scrapes.iter_mut().zip(&services) {
        scrapes.pages.push(Some(service.page("/metrics").1));
    }
    assert_firing(&scrapes.each_ref(), &[("DistributedLockLost", "suspended")]);
}
