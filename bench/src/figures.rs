//! Figures that are computed from records.

use std::ops::Range;

use hdrhistogram::Histogram;

use crate::record::Record;

/// A grant and its process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessGrant {
    pub(crate) process: usize,
    pub(crate) record: Record,
}

/// A hand-off: from a release to the next grant, if that task was already waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MeasuredHandoff {
    pub(crate) nanos: u64,
    /// Whether the grant is in another process.
    pub(crate) crosses: bool,
}

/// The overlaps and hand-offs on all keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GrantHistory {
    /// The number of grants before the current holder had begun its release.
    pub(crate) overlaps: u64,
    pub(crate) handoffs: Vec<MeasuredHandoff>,
}

impl GrantHistory {
    /// Computes the history of these grants. Sorts them by key and time.
    pub(crate) fn of(grants: &mut [ProcessGrant]) -> Self {
        grants.sort_unstable_by_key(|grant| (grant.record.key, grant.record.granted));
        let mut history = Self::default();
        // The grant of this key with the latest release so far.
        let mut last: Option<ProcessGrant> = None;
        for grant in grants.iter().copied() {
            let before = last.filter(|last| last.record.key == grant.record.key);
            if let Some(before) = before {
                if grant.record.granted < before.record.released {
                    history.overlaps += 1;
                } else if grant.record.requested < before.record.released {
                    history.handoffs.push(MeasuredHandoff {
                        nanos: grant.record.granted - before.record.released,
                        crosses: grant.process != before.process,
                    });
                }
            }
            if before.is_none_or(|before| before.record.released < grant.record.released) {
                last = Some(grant);
            }
        }
        history
    }
}

/// Jain's fairness index: 1 if all counts are equal, 1/n if all but one are zero.
pub(crate) fn jain(counts: &[u64]) -> f64 {
    let sum: f64 = counts.iter().map(|count| *count as f64).sum();
    let squares: f64 = counts.iter().map(|count| (*count as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum.powi(2) / (counts.len() as f64 * squares) }
}

/// The longest wait for one key in a period: of the waits that have ended in the period, and of those
/// that have not ended at its end. A task asks again when it has released the lock. A task without a
/// grant has waited during the whole period.
pub(crate) fn longest_wait(records: &[Record], tasks: usize, period: &Range<u64>) -> u64 {
    let mut longest = 0;
    let mut released: Vec<Option<u64>> = vec![None; tasks];
    for record in records.iter().filter(|record| record.granted < period.end) {
        if period.contains(&record.granted) {
            longest = longest.max(record.granted - record.requested);
        }
        if let Some(released) = released.get_mut(record.task as usize) {
            *released = (*released).max(Some(record.released));
        }
    }
    let unfinished =
        |released: Option<u64>| period.end.saturating_sub(released.unwrap_or(period.start));
    released.into_iter().map(unfinished).fold(longest, u64::max)
}

/// The longest times without a grant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GrantGaps {
    /// Of all tasks together.
    pub(crate) of_all: u64,
    /// Of the task that was without a grant for longest.
    pub(crate) of_a_task: u64,
}

/// The longest times without a grant in a period, each from a grant to the next one, or to the end of the period. The time
/// before the first grant does not count, but a task without a grant was without one during the whole period.
pub(crate) fn gaps(records: &[Record], tasks: usize, period: &Range<u64>) -> GrantGaps {
    let longest = |mut grants: Vec<u64>| {
        grants.sort_unstable();
        let Some(first) = grants.first().copied() else { return period.end - period.start };
        let ends = grants.iter().copied().skip(1).chain([period.end.max(first)]);
        grants.iter().zip(ends).map(|(grant, next)| next.saturating_sub(*grant)).max().unwrap_or(0)
    };
    let of = |task: Option<usize>| {
        let own = |record: &&Record| task.is_none_or(|task| record.task as usize == task);
        longest(records.iter().filter(own).map(|record| record.granted).collect())
    };
    GrantGaps {
        of_all: of(None),
        of_a_task: (0..tasks).map(|task| of(Some(task))).max().unwrap_or(0),
    }
}

/// The distribution of durations in nanoseconds, with three significant digits.
#[derive(Debug)]
pub(crate) struct Durations(Histogram<u64>);

impl FromIterator<u64> for Durations {
    fn from_iter<I: IntoIterator<Item = u64>>(nanos: I) -> Self {
        let mut histogram = Histogram::new(3).expect("a valid number of digits");
        for nanos in nanos {
            // A histogram that grows takes all values.
            histogram.record(nanos).expect("the histogram grows");
        }
        Self(histogram)
    }
}

impl Durations {
    /// The value that is not exceeded by this share of all values. `None` if there are no values.
    pub(crate) fn quantile(&self, share: f64) -> Option<u64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(share))
    }

    pub(crate) fn median(&self) -> Option<u64> {
        self.quantile(0.5)
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }
}

/// The middle value, or the mean of the two middle values. `None` if there are no values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(
        process: usize,
        key: u32,
        requested: u64,
        granted: u64,
        released: u64,
    ) -> ProcessGrant {
        ProcessGrant { process, record: Record { requested, granted, released, task: 0, key } }
    }

    #[test]
    fn grants_one_after_the_other_do_not_overlap() {
        let mut grants = [grant(0, 0, 0, 20, 30), grant(1, 0, 0, 10, 20)];
        let history = GrantHistory::of(&mut grants);
        assert_eq!(history.overlaps, 0);
        assert_eq!(history.handoffs, [MeasuredHandoff { nanos: 0, crosses: true }]);
    }

    #[test]
    fn a_grant_before_the_release_is_an_overlap() {
        let mut grants = [grant(0, 0, 0, 10, 20), grant(0, 0, 0, 19, 30)];
        assert_eq!(GrantHistory::of(&mut grants).overlaps, 1);
    }

    #[test]
    fn grants_inside_a_long_one_all_overlap() {
        let mut grants = [grant(0, 0, 0, 0, 100), grant(0, 0, 0, 10, 20), grant(0, 0, 0, 30, 40)];
        assert_eq!(GrantHistory::of(&mut grants).overlaps, 2);
    }

    #[test]
    fn grants_of_other_keys_are_neither_overlaps_nor_hand_offs() {
        let mut grants = [grant(0, 0, 0, 10, 20), grant(0, 1, 0, 15, 30)];
        assert_eq!(GrantHistory::of(&mut grants), GrantHistory::default());
    }

    #[test]
    fn a_grant_that_was_requested_after_the_release_is_no_hand_off() {
        let mut grants = [grant(0, 0, 0, 10, 20), grant(0, 0, 25, 30, 40)];
        assert_eq!(GrantHistory::of(&mut grants).handoffs, []);
    }

    #[test]
    fn fairness_is_one_if_all_tasks_got_the_same_and_falls_with_each_starved_task() {
        let near = |left: f64, right: f64| (left - right).abs() < 1e-9;
        assert!(near(jain(&[5, 5, 5, 5]), 1.0));
        assert!(near(jain(&[20, 0, 0, 0]), 0.25));
        assert!(near(jain(&[1, 3]), 0.8));
        assert!(near(jain(&[0, 0]), 0.0));
    }

    fn wait(task: u32, requested: u64, granted: u64) -> Record {
        Record { requested, granted, released: granted + 1, task, key: 0 }
    }

    #[test]
    fn the_longest_wait_is_that_of_a_grant_in_the_period() {
        let records = [wait(0, 10, 15), wait(1, 90, 130), wait(0, 180, 190), wait(1, 150, 195)];
        assert_eq!(longest_wait(&records, 2, &(100..200)), 45);
        assert_eq!(longest_wait(&records[1..], 2, &(125..196)), 45);
        assert_eq!(longest_wait(&records, 2, &(100..150)), 134, "the first task asks again at 16");
    }

    #[test]
    fn a_wait_that_began_before_the_period_counts_as_a_whole() {
        assert_eq!(longest_wait(&[wait(0, 10, 150)], 1, &(100..200)), 140);
    }

    #[test]
    fn waits_that_have_not_ended_count() {
        assert_eq!(longest_wait(&[wait(0, 100, 110)], 1, &(100..200)), 89);
        assert_eq!(longest_wait(&[wait(0, 190, 195), wait(1, 100, 130)], 2, &(100..200)), 69);
        assert_eq!(longest_wait(&[wait(0, 190, 250)], 1, &(100..200)), 100);
        assert_eq!(longest_wait(&[], 1, &(100..200)), 100, "a task without a grant");
    }

    #[test]
    fn a_gap_of_all_tasks_is_shorter_than_that_of_the_task_that_waits_for_longest() {
        let records = [wait(0, 0, 10), wait(1, 0, 12), wait(0, 13, 60), wait(1, 13, 90)];
        assert_eq!(gaps(&records, 2, &(0..100)), GrantGaps { of_all: 48, of_a_task: 78 });
        assert_eq!(gaps(&records, 2, &(0..200)), GrantGaps { of_all: 110, of_a_task: 140 });
        assert_eq!(gaps(&records, 3, &(0..100)).of_a_task, 100, "a task without a grant");
        assert_eq!(gaps(&[], 1, &(0..100)), GrantGaps { of_all: 100, of_a_task: 100 });
    }

    #[test]
    fn quantiles_have_three_significant_digits() {
        let durations: Durations = (1..=100).rev().collect();
        assert_eq!(durations.count(), 100);
        assert_eq!(durations.median(), Some(50));
        assert_eq!(durations.quantile(0.99), Some(99));
        assert_eq!(durations.quantile(1.0), Some(100));
        let long: Durations = [5_000_000_000].into_iter().collect();
        let median = long.median().unwrap();
        assert!(median.abs_diff(5_000_000_000) < 5_000_000, "{median}");
        let (shortest, none): (Durations, Durations) =
            ([0].into_iter().collect(), [].into_iter().collect());
        assert_eq!((shortest.median(), none.median()), (Some(0), None));
    }

    #[test]
    fn the_median_of_an_even_number_of_values_is_the_mean_of_the_middle_two() {
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }
}
