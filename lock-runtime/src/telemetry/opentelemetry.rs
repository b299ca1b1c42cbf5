//! The export to OpenTelemetry.
//!
//! Counters and gauges are observable instruments: the reader of the meter provider calls back, and gets what the
//! last export has published. There is no observable histogram, so each export records the new samples one by
//! one, with the means of their fine buckets.
//!
//! An instrument that was made before the meter provider was installed is dead. The instruments are therefore
//! made by the exporter, and made anew when another provider is installed. A callback cannot be removed from its
//! provider. Those of an earlier provider observe nothing any more, so nothing is exported twice.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use opentelemetry::metrics::{AsyncInstrument, Histogram, MeterProvider};
use opentelemetry::{InstrumentationScope, KeyValue, global};

use super::destination::Destination;
use super::names::{METRICS, MetricKind};
use super::series::{Series, SeriesValue, visit_all};
use super::totals::Totals;

type AnyProvider = dyn MeterProvider + Send + Sync;

/// The meter provider that is installed for this process.
#[derive(Default)]
pub(super) struct GlobalProvider {
    /// `None` until a provider is installed, and after one that could not make them.
    instruments: Option<Instruments>,
}

impl Destination for GlobalProvider {
    fn prepare(&mut self) -> bool {
        let provider = global::meter_provider();
        let is_known = |known: &Instruments| known.provider.ptr_eq(&Arc::downgrade(&provider));
        if !self.instruments.as_ref().is_some_and(is_known) {
            // The callbacks of the earlier provider end here, even if the new one panics.
            self.instruments = None;
            self.instruments = is_installed(&*provider).then(|| Instruments::new(&provider));
        }
        self.instruments.is_some()
    }

    fn export(&mut self, totals: &Totals, before: &Totals) {
        if let Some(instruments) = &self.instruments {
            instruments.export(totals, before);
        }
    }
}

/// Whether this is a provider of the program. Until there is one, the API has one without a size, and nothing
/// else tells the two apart.
fn is_installed(provider: &AnyProvider) -> bool {
    std::mem::size_of_val(provider) > 0
}

/// The instruments of one meter provider.
struct Instruments {
    /// The provider that made them. The reference is weak, because the SDK ends a provider when the program drops
    /// it. While the reference exists, no other provider has the same address.
    provider: Weak<AnyProvider>,
    /// By the names of their metrics.
    histograms: BTreeMap<&'static str, Histogram<f64>>,
    /// What the callbacks observe. Their references are weak, so they observe nothing after the instruments are
    /// dropped.
    published: Arc<Published>,
}

impl Instruments {
    fn new(provider: &Arc<AnyProvider>) -> Self {
        let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME"));
        let scope = scope.with_version(env!("CARGO_PKG_VERSION")).build();
        let meter = provider.meter_with_scope(scope);
        let published = Arc::default();
        let mut histograms = BTreeMap::new();
        for metric in METRICS {
            let (name, unit) = (metric.opentelemetry_name, metric.unit);
            match metric.kind {
                MetricKind::Counter => {
                    let callback = callback(name, |latest| &latest.counters, &published);
                    let builder = meter.u64_observable_counter(name).with_unit(unit);
                    builder.with_description(metric.help).with_callback(callback).build();
                }
                MetricKind::UpDownCounter => {
                    let callback = callback(name, |latest| &latest.up_down_counters, &published);
                    let builder = meter.i64_observable_up_down_counter(name).with_unit(unit);
                    builder.with_description(metric.help).with_callback(callback).build();
                }
                MetricKind::Gauge => {
                    let callback = callback(name, |latest| &latest.gauges, &published);
                    let builder = meter.f64_observable_gauge(name).with_unit(unit);
                    builder.with_description(metric.help).with_callback(callback).build();
                }
                MetricKind::Histogram => {
                    let builder = meter.f64_histogram(name).with_unit(unit);
                    let builder = builder.with_description(metric.help);
                    let histogram = builder.with_boundaries(metric.buckets().to_vec()).build();
                    histograms.insert(name, histogram);
                }
            }
        }
        Self { provider: Arc::downgrade(provider), histograms, published }
    }

    /// Publishes the totals, and then records the new samples, because recording may block or panic.
    fn export(&self, totals: &Totals, before: &Totals) {
        let mut latest = Observations::default();
        let mut samples = Vec::new();
        visit_all(totals, before, &mut |series| {
            let (name, attributes) = (series.metric.opentelemetry_name, attributes(series));
            match series.value {
                SeriesValue::Counter(total) => {
                    latest.counters.entry(name).or_default().push((total, attributes));
                }
                SeriesValue::UpDownCounter(sum) => {
                    let sum = i64::try_from(sum).unwrap_or(i64::MAX);
                    latest.up_down_counters.entry(name).or_default().push((sum, attributes));
                }
                SeriesValue::Gauge(value) => {
                    latest.gauges.entry(name).or_default().push((value, attributes));
                }
                SeriesValue::Histogram(ref means) => {
                    samples.push((name, attributes, means.clone()));
                }
            }
        });
        self.published.set(latest);
        for (name, attributes, means) in samples {
            let Some(histogram) = self.histograms.get(name) else { continue };
            for (mean, count) in means {
                (0..count).for_each(|_| histogram.record(mean, &attributes));
            }
        }
    }
}

fn attributes(series: &Series<'_>) -> Vec<KeyValue> {
    let values = series.labels.iter().map(|value| String::from(*value));
    let attributes = series.metric.attributes.iter().zip(values);
    attributes.map(|(name, value)| KeyValue::new(*name, value)).collect()
}

/// What the last export has published.
#[derive(Default)]
struct Published(Mutex<Arc<Observations>>);

impl Published {
    fn set(&self, latest: Observations) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(latest);
    }

    fn get(&self) -> Arc<Observations> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the callbacks observe.
#[derive(Default)]
struct Observations {
    counters: Observed<u64>,
    up_down_counters: Observed<i64>,
    gauges: Observed<f64>,
}

/// The values and the attributes of all series, by the names of their metrics.
type Observed<T> = BTreeMap<&'static str, Vec<(T, Vec<KeyValue>)>>;

/// A callback for the instrument with this name, which observes what is `published`. It calls the instrument
/// without a lock, because an instrument may block or panic.
fn callback<T: Copy + 'static>(
    name: &'static str,
    of: fn(&Observations) -> &Observed<T>,
    published: &Arc<Published>,
) -> impl Fn(&dyn AsyncInstrument<T>) + Send + Sync + 'static {
    let published = Arc::downgrade(published);
    move |instrument| {
        // Otherwise, another provider was installed.
        if let Some(published) = published.upgrade() {
            let latest = published.get();
            for (value, attributes) in of(&latest).get(name).into_iter().flatten() {
                instrument.observe(*value, attributes);
            }
        }
    }
}
