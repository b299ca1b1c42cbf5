//! When the meter provider is installed.

use std::collections::BTreeMap;
use std::error::Error;

use lock_runtime::{LockClient, with_client};
use lock_tests::RedisServer;
use lock_tests::support::{LEASE, until};
use opentelemetry::global;
use opentelemetry::metrics::NoopMeterProvider;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider, Temporality};

use crate::collector::{Collector, Point, series};
use crate::faulty::{FaultyProvider, ProviderFault};
use crate::{
    NAMESPACE, alone, assert_measured, client, granted, pay, request_export, script, waits,
};

#[test]
fn samples_are_kept_until_a_provider_is_installed() {
    alone(samples_are_kept_until_a_provider_is_installed, async {
        let server = RedisServer::start();
        let client = client(&server.url(), NAMESPACE).await;
        script(&client).await;
        // There is no provider, so nothing is exported, and a shutdown does not wait for it.
        request_export().await;
        let collector = Collector::installed();
        // The exporter finds it without a request.
        let is_found = || !collector.series().is_empty();
        assert!(until(LEASE * 60, is_found).await.is_some());
        collector.export().await;
        assert_measured(&client.snapshot(), collector.series());
    });
}

async fn measure_all(
    client: LockClient,
    exporter: InMemoryMetricExporter,
) -> Result<(), Box<dyn Error>> {
    let provider = SdkMeterProvider::builder().with_periodic_exporter(exporter).build();
    opentelemetry::global::set_meter_provider(provider.clone());
    with_client(client.clone(), pay("7")).await?;
    // At the end of the program:
    client.shutdown().await?; // exports what was measured last
    provider.shutdown()?;
    Ok(())
}

#[test]
fn the_end_of_a_program_exports_what_was_measured_last() {
    alone(the_end_of_a_program_exports_what_was_measured_last, async {
        let export = async || {
            let exporter = InMemoryMetricExporter::default();
            let client = client("memory:", NAMESPACE).await;
            measure_all(client, exporter.clone()).await.expect("it ends");
            let ended = exporter.get_finished_metrics().expect("it has ended");
            let series: BTreeMap<String, Point> = ended.iter().flat_map(series).collect();
            series.get(&waits("granted")).map_or(0, |waits| waits.count())
        };
        // A shutdown waits only half a second for the export, and the machine may be stalled.
        for _ in 0..10 {
            if export().await > 0 {
                return;
            }
        }
        panic!("nothing was exported");
    });
}

#[test]
fn a_new_provider_gets_totals_and_new_samples_and_the_earlier_one_nothing() {
    alone(a_new_provider_gets_totals_and_new_samples_and_the_earlier_one_nothing, async {
        let client = client("memory:", NAMESPACE).await;
        let call = || with_client(client.clone(), pay("7"));
        let first = Collector::installed();
        call().await.expect("free");
        first.export().await;
        assert_eq!(granted(&first), (1.0, 1));

        let second = Collector::installed();
        call().await.expect("free");
        call().await.expect("free");
        second.export().await;
        assert_eq!(granted(&second), (3.0, 2), "each sample is exported once");
        let left = first.series();
        let is_histogram = |name: &String| name.contains(".duration{");
        assert!(left.keys().all(is_histogram), "nobody observes: {left:?}");
        assert_eq!(left.get(&waits("granted")).map(|waits| waits.count()), Some(1));

        // Without a provider, samples are kept again.
        global::set_meter_provider(NoopMeterProvider::new());
        call().await.expect("free");
        let is_left = || second.series().keys().all(is_histogram);
        request_export().await;
        assert!(until(LEASE * 60, is_left).await.is_some());
        second.install();
        second.export().await;
        assert_eq!(granted(&second), (4.0, 3));
    });
}

#[test]
fn a_provider_that_is_installed_twice_counts_nothing_twice() {
    alone(a_provider_that_is_installed_twice_counts_nothing_twice, async {
        let client = client("memory:", NAMESPACE).await;
        let collector = Collector::with_temporality(Temporality::Delta);
        let mut total = (0.0, 0);
        for calls in 1..=3 {
            collector.install();
            with_client(client.clone(), pay("7")).await.expect("free");
            request_export().await;
            // With this temporality, a reading has the difference to the last one.
            let are_read = || {
                let (added, waits) = granted(&collector);
                total = (total.0 + added, total.1 + waits);
                total.1 >= calls
            };
            assert!(until(LEASE * 60, are_read).await.is_some());
        }
        // The exporter finds nothing more.
        request_export().await;
        let (added, waits) = granted(&collector);
        assert_eq!((total.0 + added, total.1 + waits), (3.0, 3));
    });
}

#[test]
fn a_provider_that_the_program_drops_ends() {
    alone(a_provider_that_the_program_drops_ends, async {
        let client = client("memory:", NAMESPACE).await;
        // The exporter may be looking at a provider just when the program drops it.
        for _ in 0..10 {
            with_client(client.clone(), pay("7")).await.expect("free");
            let provider = FaultyProvider::new(ProviderFault::None);
            global::set_meter_provider(provider.clone());
            request_export().await;
            assert!(until(LEASE * 60, || provider.recorded() == 2).await.is_some());
            assert!(!provider.is_free());
            global::set_meter_provider(NoopMeterProvider::new());
            if provider.is_free() {
                return;
            }
        }
        panic!("the exporter keeps it until its next export");
    });
}
