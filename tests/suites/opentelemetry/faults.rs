//! Meter providers, readers and exporters that panic or block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use lock_runtime::{LockClient, with_client};
use lock_tests::support::{LEASE, until};
use opentelemetry::metrics::AsyncInstrument;
use opentelemetry::{KeyValue, global};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider, Temporality};

use crate::collector::Collector;
use crate::faulty::{FaultyProvider, Gate, ProviderFault};
use crate::{NAMESPACE, alone, client, granted, pay, request_export};

/// An instrument of a reader.
struct Observer<F>(F);

impl<F: Fn(u64) + Send + Sync> AsyncInstrument<u64> for Observer<F> {
    fn observe(&self, value: u64, _: &[KeyValue]) {
        self.0(value);
    }
}

/// The sum of all counters that a reader gets: here, the number of calls.
fn observed(provider: &FaultyProvider) -> u64 {
    let sum = AtomicU64::new(0);
    provider.observe(&Observer(|value| {
        sum.fetch_add(value, Ordering::SeqCst);
    }));
    sum.into_inner()
}

/// A client that has measured one call.
async fn measured_client() -> LockClient {
    let client = client("memory:", NAMESPACE).await;
    with_client(client.clone(), pay("7")).await.expect("free");
    client
}

/// What the next export brings: the number of calls, and of their samples.
async fn exported(collector: &Collector) -> (f64, u64) {
    collector.export().await;
    granted(collector)
}

#[test]
fn a_provider_that_panics_ends_nothing() {
    alone(a_provider_that_panics_ends_nothing, async {
        let client = client("memory:", NAMESPACE).await;
        for fault in [ProviderFault::CreationPanics, ProviderFault::RecordingPanics] {
            with_client(client.clone(), pay("7")).await.expect("free");
            let faulty = FaultyProvider::new(fault);
            global::set_meter_provider(faulty.clone());
            request_export().await;
            assert!(until(LEASE * 60, || faulty.occurred() > 0).await.is_some(), "{fault:?}");
            // Totals are published before samples are recorded.
            let expected = if fault == ProviderFault::RecordingPanics { 2 } else { 0 };
            assert_eq!(observed(&faulty), expected, "{fault:?}");
        }
        let collector = Collector::installed();
        with_client(client.clone(), pay("7")).await.expect("free");
        assert_eq!(exported(&collector).await, (3.0, 1), "the samples of one export are lost");
    });
}

#[test]
fn samples_outlive_a_provider_that_cannot_make_instruments() {
    alone(samples_outlive_a_provider_that_cannot_make_instruments, async {
        let _client = measured_client().await;
        let faulty = FaultyProvider::new(ProviderFault::CreationPanics);
        global::set_meter_provider(faulty.clone());
        // Each export tries again.
        request_export().await;
        request_export().await;
        assert!(until(LEASE * 60, || faulty.occurred() > 1).await.is_some());
        faulty.observe(&Observer(|value| panic!("observes {value}")));
        let collector = Collector::installed();
        assert_eq!(exported(&collector).await, (1.0, 1));
    });
}

#[test]
fn a_provider_that_blocks_delays_no_lock() {
    alone(a_provider_that_blocks_delays_no_lock, async {
        let client = measured_client().await;
        let faulty = FaultyProvider::new(ProviderFault::RecordingBlocks);
        global::set_meter_provider(faulty.clone());
        request_export().await;
        assert!(until(LEASE * 60, || faulty.occurred() == 1).await.is_some());
        for _ in 0..100 {
            with_client(client.clone(), pay("7")).await.expect("free");
        }
        // A shutdown and the end of a client do not wait for it either.
        let other = self::client("memory:", "other").await;
        with_client(other.clone(), pay("7")).await.expect("free");
        other.shutdown().await.expect("idle");
        drop(other);
        assert_eq!((faulty.occurred(), faulty.recorded()), (1, 0), "it blocks all the time");

        let collector = Collector::installed();
        faulty.open();
        assert_eq!(exported(&collector).await, (101.0, 100), "the first sample has blocked");
    });
}

#[test]
fn a_reader_that_panics_or_blocks_delays_no_export() {
    alone(a_reader_that_panics_or_blocks_delays_no_export, async {
        let client = measured_client().await;
        let provider = FaultyProvider::new(ProviderFault::None);
        global::set_meter_provider(provider.clone());
        // The wait and the hold.
        request_export().await;
        assert!(until(LEASE * 60, || provider.recorded() == 2).await.is_some());
        let before = observed(&provider);
        assert!(before > 0);
        let panics = Observer(|_| panic!("as planned: no observation"));
        let panicked = catch_unwind(AssertUnwindSafe(|| provider.observe(&panics)));
        panicked.expect_err("the panic is that of the reader");
        assert_eq!(observed(&provider), before, "the panic has no effect");

        let (gate, (entered, is_in)) = (Arc::new(Gate::default()), mpsc::channel());
        let reader = {
            let (provider, gate) = (provider.clone(), Arc::clone(&gate));
            std::thread::spawn(move || {
                provider.observe(&Observer(move |_| {
                    let _ = entered.send(());
                    gate.pass();
                }));
            })
        };
        is_in.recv().expect("it observes");
        with_client(client.clone(), pay("7")).await.expect("free");
        request_export().await;
        assert!(until(LEASE * 60, || provider.recorded() == 4).await.is_some());
        assert!(!reader.is_finished(), "it blocks all the time");
        gate.open();
        reader.join().expect("no panic");
        assert_eq!(observed(&provider), before + 1);
    });
}

/// Panics instead of exporting.
struct PanickingExporter(Arc<AtomicU64>);

impl PushMetricExporter for PanickingExporter {
    async fn export(&self, _: &ResourceMetrics) -> OTelSdkResult {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("as planned: no export");
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

#[test]
fn an_exporter_of_the_sdk_that_panics_ends_itself_only() {
    alone(an_exporter_of_the_sdk_that_panics_ends_itself_only, async {
        let (panics, memory) = (Arc::new(AtomicU64::new(0)), InMemoryMetricExporter::default());
        let provider = SdkMeterProvider::builder()
            .with_periodic_exporter(PanickingExporter(Arc::clone(&panics)))
            .with_periodic_exporter(memory.clone())
            .build();
        global::set_meter_provider(provider.clone());
        let client = client("memory:", NAMESPACE).await;
        for calls in 1..=2 {
            with_client(client.clone(), pay("7")).await.expect("free");
            request_export().await;
            provider.force_flush().expect_err("one of two");
            let read = memory.get_finished_metrics().expect("it is running");
            assert_eq!(read.len(), calls);
        }
        assert_eq!(panics.load(Ordering::SeqCst), 1);
    });
}
