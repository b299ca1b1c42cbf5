//! Runs that happen at most once per period.
//!
//! Periods are counted from 1970-01-01 00:00 UTC by the clock of the store, so all clients agree on them.
//! The record of the last run decides whether there may be another one. Only the owner of the key
//! changes it. The owner id identifies the run, because the locks of runs are not handed off.

use std::time::Duration;

use super::owner::OwnerId;
use crate::replicas::RequiredReplicas;

/// Records the beginning of a run, unless there was one in this period. May be repeated.
#[derive(Debug, Clone, Copy)]
pub struct RunStart<'a> {
    pub key: &'a str,
    pub owner: OwnerId,
    pub run: &'a RunLabel,
    /// The length of the period.
    pub every: Duration,
    /// Whether the run counts for its period even if it fails.
    pub counts: bool,
    /// The number of this request among those for the same start, from 1. A request that arrives after a
    /// later one does not begin the run anew, although its period may have ended.
    pub attempt: u32,
    /// The replicas that have to acknowledge the record.
    pub acknowledged_by: RequiredReplicas,
}

/// Records the end of a run. May be repeated.
#[derive(Debug, Clone, Copy)]
pub struct RunEnd<'a> {
    pub key: &'a str,
    pub owner: OwnerId,
    pub run: &'a RunLabel,
    /// When the run began, in ms since 1970. `None` if its body has not begun: then its record, if there
    /// is one, does not count.
    pub began: Option<u64>,
    /// Whether the run counts for the period in which it began.
    pub counts: bool,
    pub failed: bool,
    /// The replicas that have to acknowledge the record.
    pub acknowledged_by: RequiredReplicas,
}

/// What a record says about its run.
#[derive(Debug)]
pub struct RunLabel {
    /// The process.
    pub by: String,
    /// How long the store keeps the record.
    pub kept: Duration,
}

/// The answer to a [`RunStart`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunStarted {
    /// The run begins at this time of the store, in ms since 1970.
    At(u64),
    /// There was a run in this period, which ends after this time.
    Ran(Duration),
    /// The key does not exist any more.
    Gone,
    /// The key has another owner.
    Taken,
}

/// The answer to a [`RunEnd`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnded {
    /// The end was recorded.
    Recorded,
    /// The key does not exist any more.
    Gone,
    /// The key has another owner.
    Taken,
}

/// The record of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRecord {
    /// In ms since 1970.
    pub began: u64,
    /// When it ended, in ms since 1970, and whether it has failed.
    pub ended: Option<(u64, bool)>,
    pub by: String,
    /// Whether the owner of the key is the one that began the run.
    pub is_held: bool,
}

/// The time in ms until the end of the period in which a run began, if that is the current period. A
/// run of the next period counts as well: the clock has been set back since.
pub fn rest_of_period(every: Duration, began: u64, now: u64) -> Option<u64> {
    let length = u64::try_from(every.as_millis()).unwrap_or(u64::MAX).max(1);
    let first = now - now % length;
    let counted = first..first.saturating_add(length.saturating_mul(2));
    counted.contains(&began).then(|| (began - began % length).saturating_add(length) - now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_counts_for_the_period_in_which_it_began() {
        let second = Duration::from_secs(1);
        assert_eq!(rest_of_period(second, 5_000, 5_000), Some(1_000));
        assert_eq!(rest_of_period(second, 5_999, 5_999), Some(1));
        assert_eq!(rest_of_period(second, 5_999, 6_000), None);
        // The clock of the store was set back: within the period, and by more.
        assert_eq!(rest_of_period(second, 5_900, 5_100), Some(900));
        assert_eq!(rest_of_period(second, 6_000, 5_999), Some(1_001));
        assert_eq!(rest_of_period(second, 7_000, 5_999), None);
    }
}
