//! The measurements of all workloads.

use std::collections::HashMap;
use std::fmt;

use crate::contestant::{self, Contestant, Role};
use crate::figures::median;
use crate::metric::{Metric, OF_LIMIT};

/// The figures of one contestant in one round, for one shape of a workload.
#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    pub(crate) shape: String,
    pub(crate) contestant: &'static str,
    pub(crate) round: usize,
    pub(crate) figures: HashMap<Metric, f64>,
    /// The number of grants while another task held the lock. If there are any, the figures do not
    /// count.
    pub(crate) overlaps: u64,
    /// The reason for missing figures, or a remark about the figures.
    pub(crate) note: Option<String>,
}

impl Measurement {
    pub(crate) fn new(shape: impl Into<String>, contestant: &Contestant, round: usize) -> Self {
        Self {
            shape: shape.into(),
            contestant: contestant.name,
            round,
            figures: HashMap::new(),
            overlaps: 0,
            note: None,
        }
    }

    /// A measurement without figures, because of an error.
    pub(crate) fn failed(
        shape: &str,
        contestant: &Contestant,
        round: usize,
        error: &anyhow::Error,
    ) -> Self {
        let note = Some(format!("failed: {error:#}"));
        Self { note, ..Self::new(shape, contestant, round) }
    }

    /// A short text for the progress output.
    pub(crate) fn brief(&self, metric: Metric) -> String {
        let figure = self.figures.get(&metric).map_or("-".to_owned(), |v| metric.write(*v));
        let overlaps = match self.overlaps {
            0 => String::new(),
            overlaps => format!(" !! {overlaps} OVERLAPS"),
        };
        let note = self.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
        figure + &overlaps + &note
    }

    pub(crate) fn set(&mut self, metric: Metric, value: f64) {
        self.figures.insert(metric, value);
    }

    /// Sets a figure if there is a value.
    pub(crate) fn set_nanos(&mut self, metric: Metric, nanos: Option<u64>) {
        if let Some(nanos) = nanos {
            self.set(metric, nanos as f64);
        }
    }
}

/// By what factor a contestant is better than another one: the median of the ratios of the same rounds, because the speed of a
/// machine changes from round to round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Lead {
    pub(crate) over: &'static str,
    pub(crate) times: f64,
    lowest: f64,
    highest: f64,
}

impl fmt::Display for Lead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} × {} ({:.2}–{:.2})", self.times, self.over, self.lowest, self.highest)
    }
}

/// The measurements of one workload.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) workload: &'static str,
    pub(crate) metrics: &'static [Metric],
    measurements: Vec<Measurement>,
    /// The round trips to the idle server, one for each round.
    pub(crate) round_trips: Vec<f64>,
}

impl Results {
    pub(crate) fn new(workload: &'static str, metrics: &'static [Metric]) -> Self {
        Self { workload, metrics, measurements: Vec::new(), round_trips: Vec::new() }
    }

    pub(crate) fn add(&mut self, measurement: Measurement) {
        self.measurements.push(measurement);
    }

    /// The main metric of the workload.
    pub(crate) fn main_metric(&self) -> Metric {
        self.metrics[0]
    }

    /// The shapes, in the order in which they were measured.
    pub(crate) fn shapes(&self) -> Vec<&str> {
        let mut shapes: Vec<&str> = Vec::new();
        for measurement in &self.measurements {
            // A contestant that failed before the first shape has an empty shape and no figures.
            let has_any = !measurement.figures.is_empty() || !measurement.shape.is_empty();
            if has_any && !shapes.contains(&measurement.shape.as_str()) {
                shapes.push(&measurement.shape);
            }
        }
        shapes
    }

    /// The contestants that failed before the first shape, with the reasons.
    pub(crate) fn failures(&self) -> Vec<String> {
        let failed = |m: &&Measurement| m.figures.is_empty() && m.shape.is_empty();
        let of = self.measurements.iter().filter(failed);
        of.filter_map(|m| Some(format!("{}: {}.", m.contestant, m.note.as_ref()?))).collect()
    }

    /// The contestants with measurements, in the order of [`contestant::ALL`].
    pub(crate) fn contestants(&self, shape: &str) -> Vec<&'static Contestant> {
        let took_part =
            |name| self.measurements.iter().any(|m| m.contestant == name && m.shape == shape);
        contestant::ALL.iter().filter(|contestant| took_part(contestant.name)).collect()
    }

    fn of<'a>(
        &'a self,
        shape: &'a str,
        contestant: &'a str,
    ) -> impl Iterator<Item = &'a Measurement> {
        self.measurements.iter().filter(move |m| m.contestant == contestant && m.shape == shape)
    }

    /// The median over all rounds.
    pub(crate) fn median(&self, shape: &str, contestant: &str, metric: Metric) -> Option<f64> {
        let of = self.of(shape, contestant);
        let values: Vec<f64> = of.filter_map(|m| m.figures.get(&metric).copied()).collect();
        median(&values)
    }

    /// The median, if no round had an overlap.
    pub(crate) fn counted(&self, shape: &str, contestant: &str, metric: Metric) -> Option<f64> {
        self.median(shape, contestant, metric).filter(|_| self.overlaps(shape, contestant) == 0)
    }

    pub(crate) fn overlaps(&self, shape: &str, contestant: &str) -> u64 {
        self.of(shape, contestant).map(|m| m.overlaps).sum()
    }

    /// The notes of all rounds, without duplicates.
    pub(crate) fn notes<'a>(&'a self, shape: &'a str, contestant: &'a str) -> Vec<&'a str> {
        let mut notes: Vec<&'a str> = Vec::new();
        for note in self.of(shape, contestant).filter_map(|m| m.note.as_deref()) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }

    /// The comparison of `ours` with the peer that comes closest.
    pub(crate) fn lead(&self, shape: &str, ours: &str, metric: Metric) -> Option<Lead> {
        self.against(Role::Peer, shape, ours, metric)
    }

    /// The same for the limit.
    pub(crate) fn share_of_limit(&self, shape: &str, ours: &str, metric: Metric) -> Option<Lead> {
        self.against(Role::Limit, shape, ours, metric)
    }

    fn against(&self, role: Role, shape: &str, ours: &str, metric: Metric) -> Option<Lead> {
        let counts = |name| self.overlaps(shape, name) == 0;
        let others = self.contestants(shape).into_iter();
        let others = others.filter(|one| one.role == role && counts(one.name) && counts(ours));
        let paired = others.filter_map(|one| {
            let ratios = self.ratios(shape, [ours, one.name], metric);
            let (lowest, highest) = (
                ratios.iter().copied().reduce(f64::min)?,
                ratios.iter().copied().reduce(f64::max)?,
            );
            Some(Lead { over: one.name, times: median(&ratios)?, lowest, highest })
        });
        paired.min_by(|one, next| one.times.total_cmp(&next.times))
    }

    /// By what factor the first of two contestants is better, in each round of both.
    fn ratios(&self, shape: &str, [one, other]: [&str; 2], metric: Metric) -> Vec<f64> {
        let figure = |m: &Measurement| m.figures.get(&metric).copied();
        let pairs = self.of(shape, one).filter_map(|m| {
            let same_round = self.of(shape, other).find(|other| other.round == m.round)?;
            Some((figure(m)?, figure(same_round)?))
        });
        let better = |(one, other)| if metric.rises() { one / other } else { other / one };
        pairs.map(better).collect()
    }

    /// Computes the ratio of the main figure of each contestant to that of the limit in the same
    /// round.
    pub(crate) fn relate(&mut self, limit: &str, round: usize) {
        let metric = self.main_metric();
        let of_limit: HashMap<String, f64> = self
            .measurements
            .iter()
            .filter(|m| m.contestant == limit && m.round == round)
            .filter_map(|m| Some((m.shape.clone(), *m.figures.get(&metric)?)))
            .collect();
        for measurement in self.measurements.iter_mut().filter(|m| m.round == round) {
            let (ours, limit) =
                (measurement.figures.get(&metric), of_limit.get(&measurement.shape));
            if let (Some(ours), Some(limit)) = (ours, limit) {
                let ratio = ours / limit;
                measurement.set(OF_LIMIT, ratio);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::{DRAIN, GRANTS};

    fn results(metric: &'static [Metric], figures: &[(&str, usize, f64, u64)]) -> Results {
        let mut results = Results::new("test", metric);
        for (name, round, value, overlaps) in figures {
            let contestant = contestant::ALL.iter().find(|one| one.name == *name).expect("a name");
            let mut measurement = Measurement::new("s", contestant, *round);
            measurement.set(metric[0], *value);
            measurement.overlaps = *overlaps;
            results.add(measurement);
        }
        results
    }

    fn lead(results: &Results, metric: Metric) -> String {
        results.lead("s", "ours", metric).expect("a peer").to_string()
    }

    #[test]
    fn a_peer_with_an_overlap_is_not_the_best() {
        let (rslock, other) = (("rslock", 0, 100.0, 0), ("async-redis-lock", 0, 900.0, 1));
        let results = results(&[GRANTS], &[rslock, other, ("ours", 0, 200.0, 0)]);
        assert_eq!(lead(&results, GRANTS), "2.00 × rslock (2.00–2.00)");
    }

    #[test]
    fn an_overlap_in_one_round_discards_all_rounds() {
        let results = results(&[GRANTS], &[("ours", 0, 100.0, 0), ("ours", 1, 100.0, 1)]);
        assert_eq!(results.counted("s", "ours", GRANTS), None);
        assert_eq!(results.median("s", "ours", GRANTS), Some(100.0));
    }

    #[test]
    fn the_best_time_is_the_shortest() {
        let (rslock, other) = (("rslock", 0, 100.0, 0), ("async-redis-lock", 0, 50.0, 0));
        let results = results(&[DRAIN], &[rslock, other, ("ours", 0, 10.0, 0)]);
        assert_eq!(lead(&results, DRAIN), "5.00 × async-redis-lock (5.00–5.00)");
    }

    #[test]
    fn a_limit_is_no_peer() {
        let (peer, limit) = (("rslock", 0, 100.0, 0), ("raw", 0, 400.0, 0));
        let results = results(&[GRANTS], &[peer, limit, ("ours", 0, 200.0, 0)]);
        assert_eq!(lead(&results, GRANTS), "2.00 × rslock (2.00–2.00)");
        let share = results.share_of_limit("s", "ours", GRANTS).expect("a limit");
        assert_eq!(share.to_string(), "0.50 × raw (0.50–0.50)");
    }

    #[test]
    fn the_lead_is_the_median_of_the_ratios_of_the_same_rounds() {
        let slow = [("rslock", 0, 10.0, 0), ("ours", 0, 20.0, 0)];
        let fast = [("rslock", 1, 100.0, 0), ("ours", 1, 110.0, 0)];
        let alone = [("ours", 2, 900.0, 0)];
        let all = [&slow[..], &fast, &alone, &[("async-redis-lock", 0, 9.0, 0)]].concat();
        let results = results(&[GRANTS], &all);
        assert_eq!(lead(&results, GRANTS), "1.55 × rslock (1.10–2.00)");
    }

    #[test]
    fn the_ratio_to_the_limit_is_that_of_the_same_round() {
        let first = [("raw", 0, 100.0, 0), ("ours", 0, 90.0, 0)];
        let second = [("raw", 1, 10.0, 0), ("ours", 1, 5.0, 0)];
        let mut results = results(&[GRANTS], &[first, second].concat());
        results.relate("raw", 0);
        results.relate("raw", 1);
        assert_eq!(results.median("s", "ours", OF_LIMIT), Some(0.7));
    }
}
