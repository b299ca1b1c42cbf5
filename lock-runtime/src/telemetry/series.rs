//! The series of all metrics: a metric has one for each combination of the values of its labels.

use super::histogram::HistogramSnapshot;
use super::names::{self, MetricDescription};
use super::outcome::AcquisitionOutcome;
use super::renewals::RenewalOutcome;
use super::snapshot::SiteSnapshot;
use super::totals::{NamespaceTotals, Totals};

/// A series at one moment.
pub(super) struct Series<'a> {
    pub(super) metric: &'static MetricDescription,
    /// The values of its labels, in their order.
    pub(super) labels: &'a [&'a str],
    pub(super) value: SeriesValue,
}

/// What a series has, for each kind of metric.
pub(super) enum SeriesValue {
    /// The total.
    Counter(u64),
    /// The sum of this moment.
    UpDownCounter(u64),
    Gauge(f64),
    /// The new samples: the means of their fine buckets, and their numbers.
    Histogram(Vec<(f64, u64)>),
}

/// Visits the series of all totals. `before` are those of the last export.
pub(super) fn visit_all(totals: &Totals, before: &Totals, visit: &mut dyn FnMut(&Series<'_>)) {
    let (metric, value) = (&names::BUILD_INFO, SeriesValue::Gauge(1.0));
    visit(&Series { metric, labels: &[env!("CARGO_PKG_VERSION")], value });
    for (namespace, total) in &totals.namespaces {
        let before = before.namespaces.get(namespace);
        for (template, site) in &total.sites {
            let before = before.and_then(|before| before.sites.get(template));
            visit_site(namespace, site, before, visit);
        }
        visit_namespace(namespace, total, before, visit);
    }
}

fn visit_site(
    namespace: &str,
    site: &SiteSnapshot,
    before: Option<&SiteSnapshot>,
    visit: &mut dyn FnMut(&Series<'_>),
) {
    let place = [namespace, site.template];
    let with = |value| [namespace, site.template, value];
    for outcome in AcquisitionOutcome::ALL {
        let labels = &with(outcome.as_str());
        let value = SeriesValue::Counter(site.acquisitions(outcome));
        visit(&Series { metric: &names::ACQUISITIONS, labels, value });
        if let Some(waits) = site.wait(outcome) {
            let value = samples(waits, before.and_then(|before| before.wait(outcome)));
            visit(&Series { metric: &names::WAIT, labels, value });
        }
    }
    let value = samples(&site.hold, before.map(|before| &before.hold));
    visit(&Series { metric: &names::HOLD, labels: &place, value });
    for (reason, count) in &site.losses {
        let value = SeriesValue::Counter(*count);
        visit(&Series { metric: &names::LOSSES, labels: &with(reason.as_str()), value });
    }
    let limits = site.handoff_limits;
    for (outcome, count) in [("continued", limits.continued), ("freed", limits.freed)] {
        let value = SeriesValue::Counter(count);
        visit(&Series { metric: &names::HANDOFF_LIMITS, labels: &with(outcome), value });
    }
    for (metric, sum) in [(&names::HELD, site.held), (&names::WAITING, site.waiting)] {
        visit(&Series { metric, labels: &place, value: SeriesValue::UpDownCounter(sum) });
    }
    let age = site.oldest_hold.unwrap_or_default().as_secs_f64();
    let value = SeriesValue::Gauge(age);
    visit(&Series { metric: &names::OLDEST_HOLD, labels: &place, value });
}

fn visit_namespace(
    namespace: &str,
    total: &NamespaceTotals,
    before: Option<&NamespaceTotals>,
    visit: &mut dyn FnMut(&Series<'_>),
) {
    for outcome in RenewalOutcome::ALL {
        let labels = &[namespace, outcome.as_str()];
        let value = SeriesValue::Counter(total.renewals[outcome as usize]);
        visit(&Series { metric: &names::RENEWALS, labels, value });
    }
    let slack = total.slack.means_since(before.map(|before| &before.slack));
    let value = SeriesValue::Histogram(slack.collect());
    visit(&Series { metric: &names::SLACK, labels: &[namespace], value });
    for (at, (operation, outcome, durations)) in total.requests.iter().enumerate() {
        let before = before.and_then(|before| before.requests.get(at)).map(|(_, _, known)| known);
        let labels = &[namespace, operation.as_str(), outcome.as_str()];
        let value = samples(durations, before);
        visit(&Series { metric: &names::REQUESTS, labels, value });
    }
    let releasing = SeriesValue::UpDownCounter(total.releasing as u64);
    visit(&Series { metric: &names::RELEASING, labels: &[namespace], value: releasing });
    let up = SeriesValue::Gauge(if total.is_down { 0.0 } else { 1.0 });
    visit(&Series { metric: &names::STORE_UP, labels: &[namespace], value: up });
}

/// The samples that are new.
fn samples(total: &HistogramSnapshot, before: Option<&HistogramSnapshot>) -> SeriesValue {
    let new = before.map_or_else(|| total.clone(), |before| total.since(before));
    let means = new.means().map(|(mean, count)| (mean.as_secs_f64(), count));
    SeriesValue::Histogram(means.collect())
}
