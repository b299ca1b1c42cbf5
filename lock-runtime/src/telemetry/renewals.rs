//! The measurements of renewals.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How a renewal of a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RenewalOutcome {
    /// The lease was extended.
    Extended,
    /// There was no answer, or an error. The renewal is repeated while the lock is held.
    Failed,
    /// The key no longer existed, so the lock was lost.
    Gone,
    /// The key had another owner, so the lock was lost.
    Taken,
}

impl RenewalOutcome {
    /// All outcomes.
    pub const ALL: [Self; 4] = [Self::Extended, Self::Failed, Self::Gone, Self::Taken];

    /// Returns a word for metrics and alerts, which is stable across versions.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Extended => "extended",
            Self::Failed => "failed",
            Self::Gone => "gone",
            Self::Taken => "taken",
        }
    }
}

/// The upper bounds of the buckets of [`SlackSnapshot`]. The last bucket has no bound.
pub const SLACK_RATIOS: [f64; 9] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.66, 0.7];

/// The unit of the sum of all ratios.
const MILLIONTHS: f64 = 1_000_000.0;

#[derive(Debug, Default)]
pub(crate) struct RenewalMetrics {
    outcomes: [AtomicU64; RenewalOutcome::ALL.len()],
    slack: [AtomicU64; SLACK_RATIOS.len() + 1],
    slack_sum: AtomicU64,
}

impl RenewalMetrics {
    pub(crate) fn ended(&self, outcome: RenewalOutcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A renewal has succeeded when this much was left of a lease of this term.
    pub(crate) fn extended(&self, left: Duration, term: Duration) {
        self.ended(RenewalOutcome::Extended);
        let ratio = if term.is_zero() { 0.0 } else { left.div_duration_f64(term).clamp(0.0, 1.0) };
        let bucket = SLACK_RATIOS.iter().position(|bound| ratio <= *bound);
        self.slack[bucket.unwrap_or(SLACK_RATIOS.len())].fetch_add(1, Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        self.slack_sum.fetch_add((ratio * MILLIONTHS) as u64, Ordering::Relaxed);
    }

    pub(super) fn outcomes(&self) -> Vec<(RenewalOutcome, u64)> {
        let count =
            |outcome: RenewalOutcome| self.outcomes[outcome as usize].load(Ordering::Relaxed);
        RenewalOutcome::ALL.map(|outcome| (outcome, count(outcome))).into()
    }

    pub(super) fn slack(&self) -> SlackSnapshot {
        let counts = self.slack.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        #[allow(clippy::cast_precision_loss)]
        let sum = self.slack_sum.load(Ordering::Relaxed) as f64 / MILLIONTHS;
        SlackSnapshot { counts, sum }
    }
}

/// What was left of the leases when renewals succeeded, as parts of their terms. About two thirds is
/// normal. A low value is the first sign that locks will be lost.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct SlackSnapshot {
    /// The number of renewals for each bucket. The buckets end at [`SLACK_RATIOS`]; the last one has no end.
    pub counts: Vec<u64>,
    /// The sum of all ratios.
    pub sum: f64,
}

impl SlackSnapshot {
    /// Adds the renewals of another client.
    #[cfg(feature = "metrics")]
    pub(super) fn merge(&mut self, other: &Self) {
        self.counts.resize(SLACK_RATIOS.len() + 1, 0);
        for (total, added) in self.counts.iter_mut().zip(&other.counts) {
            *total += added;
        }
        self.sum += other.sum;
    }

    /// The number of renewals.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slack_is_a_part_of_the_term() {
        let (metrics, term) = (RenewalMetrics::default(), Duration::from_secs(30));
        for left in [0, 1, 20, 30, 31] {
            metrics.extended(Duration::from_secs(left), term);
        }
        metrics.extended(term, Duration::ZERO);
        metrics.ended(RenewalOutcome::Gone);
        let slack = metrics.slack();
        assert_eq!(slack.counts, [3, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(slack.count(), 6);
        assert!((slack.sum - (0.033_333 + 0.666_666 + 2.0)).abs() < 1e-9, "{}", slack.sum);
        let counts = metrics.outcomes().into_iter().map(|(_, count)| count);
        assert_eq!(counts.collect::<Vec<_>>(), [6, 0, 1, 0]);
    }
}
