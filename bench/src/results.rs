//! All that was measured.

use std::collections::HashMap;

use crate::column::{Column, OF_LIMIT};
use crate::contestant::{self, Contestant, Role};
use crate::figures::median;

/// What one contestant did in one round, in one shape of a workload.
#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    pub(crate) shape: String,
    pub(crate) contestant: &'static str,
    pub(crate) round: usize,
    pub(crate) figures: HashMap<Column, f64>,
    /// Grants while somebody else had the lock. Its figures do not count then.
    pub(crate) overlaps: u64,
    /// Why there are no figures, or what is to be known about them.
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

    /// Why there are no figures.
    pub(crate) fn failed(
        shape: &str,
        contestant: &Contestant,
        round: usize,
        error: &anyhow::Error,
    ) -> Self {
        let note = Some(format!("failed: {error:#}"));
        Self { note, ..Self::new(shape, contestant, round) }
    }

    /// For those who watch.
    pub(crate) fn brief(&self, column: Column) -> String {
        let figure = self.figures.get(&column).map_or("-".to_owned(), |v| column.write(*v));
        let overlaps = match self.overlaps {
            0 => String::new(),
            overlaps => format!(" !! {overlaps} OVERLAPS"),
        };
        let note = self.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
        figure + &overlaps + &note
    }

    pub(crate) fn set(&mut self, column: Column, value: f64) {
        self.figures.insert(column, value);
    }

    /// Sets what there may be nothing of.
    pub(crate) fn set_nanos(&mut self, column: Column, nanos: Option<u64>) {
        if let Some(nanos) = nanos {
            self.set(column, nanos as f64);
        }
    }
}

/// The measurements of one workload.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) workload: &'static str,
    pub(crate) columns: &'static [Column],
    measurements: Vec<Measurement>,
    /// The round trips to the idle server, one for each round.
    pub(crate) round_trips: Vec<f64>,
}

impl Results {
    pub(crate) fn new(workload: &'static str, columns: &'static [Column]) -> Self {
        Self { workload, columns, measurements: Vec::new(), round_trips: Vec::new() }
    }

    pub(crate) fn add(&mut self, measurement: Measurement) {
        self.measurements.push(measurement);
    }

    /// The figure that the workload is about.
    pub(crate) fn main_column(&self) -> Column {
        self.columns[0]
    }

    /// In the order in which they were measured.
    pub(crate) fn shapes(&self) -> Vec<&str> {
        let mut shapes: Vec<&str> = Vec::new();
        for measurement in &self.measurements {
            // One who failed before the first has none, where others have.
            let has_any = !measurement.figures.is_empty() || !measurement.shape.is_empty();
            if has_any && !shapes.contains(&measurement.shape.as_str()) {
                shapes.push(&measurement.shape);
            }
        }
        shapes
    }

    /// Who failed before the first shape, and why.
    pub(crate) fn failures(&self) -> Vec<String> {
        let failed = |m: &&Measurement| m.figures.is_empty() && m.shape.is_empty();
        let of = self.measurements.iter().filter(failed);
        of.filter_map(|m| Some(format!("{}: {}.", m.contestant, m.note.as_ref()?))).collect()
    }

    /// In the order of the table of contestants.
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

    /// The median over the rounds.
    pub(crate) fn median(&self, shape: &str, contestant: &str, column: Column) -> Option<f64> {
        let of = self.of(shape, contestant);
        let values: Vec<f64> = of.filter_map(|m| m.figures.get(&column).copied()).collect();
        median(&values)
    }

    /// The same, if no round had an overlap.
    pub(crate) fn counted(&self, shape: &str, contestant: &str, column: Column) -> Option<f64> {
        self.median(shape, contestant, column).filter(|_| self.overlaps(shape, contestant) == 0)
    }

    pub(crate) fn overlaps(&self, shape: &str, contestant: &str) -> u64 {
        self.of(shape, contestant).map(|m| m.overlaps).sum()
    }

    /// What is to be known, each once.
    pub(crate) fn notes<'a>(&'a self, shape: &'a str, contestant: &'a str) -> Vec<&'a str> {
        let mut notes: Vec<&'a str> = Vec::new();
        for note in self.of(shape, contestant).filter_map(|m| m.note.as_deref()) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }

    /// The best of the peers whose figures count.
    pub(crate) fn best_peer(&self, shape: &str, column: Column) -> Option<(&'static str, f64)> {
        let peers = self.contestants(shape).into_iter().filter(|peer| peer.role == Role::Peer);
        let figures =
            peers.filter_map(|peer| Some((peer.name, self.counted(shape, peer.name, column)?)));
        figures.reduce(|best, next| {
            let is_better = if column.rises() { next.1 > best.1 } else { next.1 < best.1 };
            if is_better { next } else { best }
        })
    }

    /// How many times better than the best peer ours is.
    pub(crate) fn lead(
        &self,
        shape: &str,
        ours: &str,
        column: Column,
    ) -> Option<(&'static str, f64)> {
        let (name, best) = self.best_peer(shape, column)?;
        let ours = self.counted(shape, ours, column)?;
        Some((name, if column.rises() { ours / best } else { best / ours }))
    }

    /// Relates the main figure of each contestant to that of the limit in the same round.
    pub(crate) fn relate(&mut self, limit: &str, round: usize) {
        let column = self.main_column();
        let of_limit: HashMap<String, f64> = self
            .measurements
            .iter()
            .filter(|m| m.contestant == limit && m.round == round)
            .filter_map(|m| Some((m.shape.clone(), *m.figures.get(&column)?)))
            .collect();
        for measurement in self.measurements.iter_mut().filter(|m| m.round == round) {
            let (ours, limit) =
                (measurement.figures.get(&column), of_limit.get(&measurement.shape));
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
    use crate::column::{DRAIN, GRANTS};

    fn results(column: &'static [Column], figures: &[(usize, usize, f64, u64)]) -> Results {
        let mut results = Results::new("test", column);
        for (contestant, round, value, overlaps) in figures {
            let mut measurement = Measurement::new("s", &contestant::ALL[*contestant], *round);
            measurement.set(column[0], *value);
            measurement.overlaps = *overlaps;
            results.add(measurement);
        }
        results
    }

    #[test]
    fn a_peer_with_an_overlap_is_not_the_best() {
        // `rslock`, `async-redis-lock` and ours.
        let results = results(&[GRANTS], &[(4, 0, 100.0, 0), (5, 0, 900.0, 1), (3, 0, 200.0, 0)]);
        assert_eq!(results.best_peer("s", GRANTS), Some(("rslock", 100.0)));
        assert_eq!(results.lead("s", "ours", GRANTS), Some(("rslock", 2.0)));
    }

    #[test]
    fn an_overlap_in_one_round_spoils_all() {
        let results = results(&[GRANTS], &[(3, 0, 100.0, 0), (3, 1, 100.0, 1)]);
        assert_eq!(results.counted("s", "ours", GRANTS), None);
        assert_eq!(results.median("s", "ours", GRANTS), Some(100.0));
    }

    #[test]
    fn the_best_time_is_the_shortest() {
        let results = results(&[DRAIN], &[(4, 0, 100.0, 0), (5, 0, 50.0, 0), (3, 0, 10.0, 0)]);
        assert_eq!(results.lead("s", "ours", DRAIN), Some(("async-redis-lock", 5.0)));
    }

    #[test]
    fn the_ratio_to_the_limit_is_that_of_the_same_round() {
        let figures = [(0, 0, 100.0, 0), (3, 0, 90.0, 0), (0, 1, 10.0, 0), (3, 1, 5.0, 0)];
        let mut results = results(&[GRANTS], &figures);
        results.relate("raw", 0);
        results.relate("raw", 1);
        assert_eq!(results.median("s", "ours", OF_LIMIT), Some(0.7));
    }
}
