//! The export to the `metrics` facade.
//!
//! Each export looks every series up anew, because a handle that was made before the recorder, or that was idle
//! for too long, is dead.

use metrics::{
    Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::destination::Destination;
use super::names::{METRICS, MetricKind};
use super::series::{Series, SeriesValue, visit_all};
use super::totals::Totals;

/// The recorder that is installed.
#[derive(Default)]
pub(super) struct Facade {
    is_described: bool,
}

impl Destination for Facade {
    fn prepare(&mut self) -> bool {
        if !is_recorded() {
            return false;
        }
        if !self.is_described {
            describe();
            self.is_described = true;
        }
        true
    }

    fn export(&mut self, totals: &Totals, before: &Totals) {
        visit_all(totals, before, &mut record);
    }
}

/// Whether a recorder is installed. Until then, the facade has one without a size, and nothing else tells the
/// two apart.
fn is_recorded() -> bool {
    metrics::with_recorder(|recorder| std::mem::size_of_val(recorder) > 0)
}

fn describe() {
    for metric in METRICS {
        let unit = if metric.is_in_seconds() { Unit::Seconds } else { Unit::Count };
        match metric.kind {
            MetricKind::Counter => describe_counter!(metric.name, unit, metric.help),
            MetricKind::UpDownCounter | MetricKind::Gauge => {
                describe_gauge!(metric.name, unit, metric.help);
            }
            MetricKind::Histogram => describe_histogram!(metric.name, unit, metric.help),
        }
    }
}

fn record(series: &Series<'_>) {
    let Series { metric, labels, value } = series;
    let values = labels.iter().map(|value| String::from(*value));
    let labels = metric.labels.iter().zip(values).map(|(name, value)| Label::new(*name, value));
    let labels: Vec<Label> = labels.collect();
    match value {
        SeriesValue::Counter(total) => counter!(metric.name, labels).absolute(*total),
        #[allow(clippy::cast_precision_loss)]
        SeriesValue::UpDownCounter(sum) => gauge!(metric.name, labels).set(*sum as f64),
        SeriesValue::Gauge(value) => gauge!(metric.name, labels).set(*value),
        SeriesValue::Histogram(samples) => {
            let histogram = histogram!(metric.name, labels);
            for (mean, count) in samples {
                histogram.record_many(*mean, usize::try_from(*count).unwrap_or(usize::MAX));
            }
        }
    }
}
