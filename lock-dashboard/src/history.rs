//! The time series of the last five minutes.

use std::collections::VecDeque;

use serde::Serialize;

use crate::contention::Increments;

/// How far back the series go, in ms.
const LENGTH: u64 = 300_000;

/// The most samples: the shortest interval between two rounds is half a second.
const MOST: usize = 1000;

/// The numbers of one round. Sent as an array in this order.
#[derive(Debug, Clone, Copy, Serialize, PartialEq)]
pub(crate) struct RoundSample(
    /// Unix time in ms.
    pub(crate) u64,
    /// The locks that are held.
    pub(crate) u64,
    /// The calls that wait.
    pub(crate) u64,
    /// The grants in a second; `None` for a round that has nothing to compare with.
    pub(crate) Option<f64>,
);

impl RoundSample {
    pub(crate) fn new(at: u64, held: u64, waiting: u64, added: Increments) -> Self {
        let seconds = added.over.as_secs_f64();
        #[allow(clippy::cast_precision_loss)]
        let rate = (seconds > 0.0).then(|| (added.grants as f64 / seconds * 100.0).round() / 100.0);
        Self(at, held, waiting, rate)
    }
}

/// The samples of the last five minutes.
#[derive(Debug, Default)]
pub(crate) struct RoundHistory(VecDeque<RoundSample>);

impl RoundHistory {
    pub(crate) fn add(&mut self, sample: RoundSample) {
        self.0.push_back(sample);
        let is_old = |old: &RoundSample| sample.0.saturating_sub(old.0) > LENGTH;
        while self.0.front().is_some_and(is_old) || self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    pub(crate) fn samples(&self) -> &VecDeque<RoundSample> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(at: u64, grants: u64, millis: u64) -> RoundSample {
        let over = Duration::from_millis(millis);
        RoundSample::new(at, 1, 2, Increments { grants, over })
    }

    #[test]
    fn the_first_round_has_no_rate() {
        assert_eq!(sample(1, 5, 0), RoundSample(1, 1, 2, None));
        assert_eq!(sample(1, 5, 2000), RoundSample(1, 1, 2, Some(2.5)));
    }

    #[test]
    fn samples_are_forgotten_after_five_minutes() {
        let mut history = RoundHistory::default();
        for second in 0..1000 {
            history.add(sample(second * 1000, 1, 1000));
        }
        assert_eq!(history.samples().len(), 301);
        // After a long time in which nobody has watched.
        history.add(sample(10_000_000, 1, 1000));
        assert_eq!(history.samples().len(), 1);
    }
}
