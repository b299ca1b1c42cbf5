//! What is computed from records.

use crate::record::Record;

/// A grant and the process that it was granted in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) process: usize,
    pub(crate) record: Record,
}

/// One passing on of a key: from a release to the next grant, to a task that waited for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandOver {
    pub(crate) nanos: u64,
    /// From one process to another.
    pub(crate) crosses: bool,
}

/// What happened on all keys together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// Grants before the holder at that time had begun its release.
    pub(crate) overlaps: u64,
    pub(crate) hand_overs: Vec<HandOver>,
}

impl History {
    /// Sorts the grants by key and time, and goes through them.
    pub(crate) fn of(grants: &mut [Grant]) -> Self {
        grants.sort_unstable_by_key(|grant| (grant.record.key, grant.record.granted));
        let mut history = Self::default();
        // The grant that was released last so far, of this key.
        let mut last: Option<Grant> = None;
        for grant in grants.iter().copied() {
            let before = last.filter(|last| last.record.key == grant.record.key);
            if let Some(before) = before {
                if grant.record.granted < before.record.released {
                    history.overlaps += 1;
                } else if grant.record.asked < before.record.released {
                    history.hand_overs.push(HandOver {
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

/// Jain's index of fairness: 1 if all got the same, 1/n if one got everything.
pub(crate) fn jain(counts: &[u64]) -> f64 {
    let sum: f64 = counts.iter().map(|count| *count as f64).sum();
    let squares: f64 = counts.iter().map(|count| (*count as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum.powi(2) / (counts.len() as f64 * squares) }
}

/// The value that this share of all values does not exceed (nearest rank). `None` of nothing.
pub(crate) fn percentile(values: &mut [u64], share: f64) -> Option<u64> {
    if values.is_empty() {
        return None;
    }
    let rank = (share * values.len() as f64).ceil() as usize;
    let at = rank.clamp(1, values.len()) - 1;
    Some(*values.select_nth_unstable(at).1)
}

/// The middle value, or the mean of the two in the middle. `None` of nothing.
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

    fn grant(process: usize, key: u32, asked: u64, granted: u64, released: u64) -> Grant {
        Grant { process, record: Record { asked, granted, released, task: 0, key } }
    }

    #[test]
    fn grants_one_after_the_other_do_not_overlap() {
        let mut grants = [grant(0, 0, 0, 20, 30), grant(1, 0, 0, 10, 20)];
        let history = History::of(&mut grants);
        assert_eq!(history.overlaps, 0);
        assert_eq!(history.hand_overs, [HandOver { nanos: 0, crosses: true }]);
    }

    #[test]
    fn a_grant_before_the_release_is_an_overlap() {
        let mut grants = [grant(0, 0, 0, 10, 20), grant(0, 0, 0, 19, 30)];
        assert_eq!(History::of(&mut grants).overlaps, 1);
    }

    #[test]
    fn grants_inside_a_long_one_all_overlap() {
        let mut grants = [grant(0, 0, 0, 0, 100), grant(0, 0, 0, 10, 20), grant(0, 0, 0, 30, 40)];
        assert_eq!(History::of(&mut grants).overlaps, 2);
    }

    #[test]
    fn other_keys_are_no_overlap_and_no_hand_over() {
        let mut grants = [grant(0, 0, 0, 10, 20), grant(0, 1, 0, 15, 30)];
        assert_eq!(History::of(&mut grants), History::default());
    }

    #[test]
    fn a_grant_that_was_asked_for_later_is_no_hand_over() {
        let mut grants = [grant(0, 0, 0, 10, 20), grant(0, 0, 25, 30, 40)];
        assert_eq!(History::of(&mut grants).hand_overs, []);
    }

    #[test]
    fn fairness_is_one_if_all_got_the_same_and_falls_with_every_task_that_starved() {
        let near = |left: f64, right: f64| (left - right).abs() < 1e-9;
        assert!(near(jain(&[5, 5, 5, 5]), 1.0));
        assert!(near(jain(&[20, 0, 0, 0]), 0.25));
        assert!(near(jain(&[1, 3]), 0.8));
        assert!(near(jain(&[0, 0]), 0.0));
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut values: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut values, 0.5), Some(50));
        assert_eq!(percentile(&mut values, 0.99), Some(99));
        assert_eq!(percentile(&mut values, 1.0), Some(100));
        assert_eq!(percentile(&mut [7], 0.0), Some(7));
        assert_eq!(percentile(&mut [], 0.5), None);
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }
}
