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
    /// The key no longer existed, so the lock was lost. A lock that was released in the meantime does not
    /// count.
    Gone,
    /// The key had another owner, so the lock was lost. A lock that was released in the meantime does not
    /// count.
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
    /// The sum of the ratios of each bucket, in millionths.
    slack_sums: [AtomicU64; SLACK_RATIOS.len() + 1],
}

impl RenewalMetrics {
    pub(crate) fn ended(&self, outcome: RenewalOutcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A renewal has succeeded when this much was left of a lease of this term.
    pub(crate) fn left(&self, left: Duration, term: Duration) {
        let ratio = if term.is_zero() { 0.0 } else { left.div_duration_f64(term).clamp(0.0, 1.0) };
        let bucket = SLACK_RATIOS.iter().position(|bound| ratio <= *bound);
        let bucket = bucket.unwrap_or(SLACK_RATIOS.len());
        self.slack[bucket].fetch_add(1, Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        self.slack_sums[bucket].fetch_add((ratio * MILLIONTHS) as u64, Ordering::Relaxed);
    }

    pub(super) fn outcomes(&self) -> Vec<(RenewalOutcome, u64)> {
        let count =
            |outcome: RenewalOutcome| self.outcomes[outcome as usize].load(Ordering::Relaxed);
        RenewalOutcome::ALL.map(|outcome| (outcome, count(outcome))).into()
    }

    pub(super) fn slack(&self) -> SlackSnapshot {
        let counts = self.slack.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        #[allow(clippy::cast_precision_loss)]
        let ratio = |sum: &AtomicU64| sum.load(Ordering::Relaxed) as f64 / MILLIONTHS;
        let sums: Vec<f64> = self.slack_sums.iter().map(ratio).collect();
        SlackSnapshot { counts, sum: sums.iter().sum(), sums }
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
    /// The sum of the ratios of each bucket.
    sums: Vec<f64>,
}

impl SlackSnapshot {
    /// Adds the renewals of another client.
    #[cfg(any(feature = "metrics", feature = "opentelemetry"))]
    pub(super) fn merge(&mut self, other: &Self) {
        self.counts.resize(SLACK_RATIOS.len() + 1, 0);
        for (total, added) in self.counts.iter_mut().zip(&other.counts) {
            *total += added;
        }
        self.sums.resize(SLACK_RATIOS.len() + 1, 0.0);
        for (total, added) in self.sums.iter_mut().zip(&other.sums) {
            *total += added;
        }
        self.sum += other.sum;
    }

    /// The mean ratio and the number of the renewals of each bucket that are not in an `earlier` snapshot.
    #[cfg(any(feature = "metrics", feature = "opentelemetry"))]
    pub(super) fn means_since(&self, earlier: Option<&Self>) -> impl Iterator<Item = (f64, u64)> {
        let buckets = self.counts.iter().zip(&self.sums).enumerate();
        buckets.filter_map(move |(bucket, (count, sum))| {
            let known =
                |earlier: &Self| Some((*earlier.counts.get(bucket)?, *earlier.sums.get(bucket)?));
            let (known_count, known_sum) = earlier.and_then(known).unwrap_or_default();
            let new = count.saturating_sub(known_count);
            #[allow(clippy::cast_precision_loss)]
            let mean = (sum - known_sum) / new.max(1) as f64;
            // The count and the sum are read one after the other.
            let from = bucket.checked_sub(1).map_or(0.0, |previous| SLACK_RATIOS[previous]);
            let to = SLACK_RATIOS.get(bucket).copied().unwrap_or(1.0);
            (new > 0).then(|| (mean.clamp(from, to), new))
        })
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
            metrics.left(Duration::from_secs(left), term);
        }
        metrics.left(term, Duration::ZERO);
        metrics.ended(RenewalOutcome::Gone);
        let slack = metrics.slack();
        assert_eq!(slack.counts, [3, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(slack.count(), 6);
        assert!((slack.sum - (0.033_333 + 0.666_666 + 2.0)).abs() < 1e-9, "{}", slack.sum);
        let counts = metrics.outcomes().into_iter().map(|(_, count)| count);
        assert_eq!(counts.collect::<Vec<_>>(), [0, 0, 1, 0], "the slack is no outcome");
    }
}
