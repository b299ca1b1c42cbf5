//! When the wake-ups of the stores of a quorum are forwarded: plain data.
//!
//! Each store reports the same release. A lock is free when a majority has reported it, and the first of these messages
//! arrive while other stores have not freed it yet. One wake-up is therefore forwarded when a majority has reported
//! something, and one more if other stores do so just afterwards, because an attempt may have come before them.

use std::time::Duration;

use super::tally::majority;
use lock_core::clock::BootInstant;

/// How long a message counts. Stores that find a key free report it once a second.
const COUNTS_FOR: Duration = Duration::from_secs(2);

/// How long after a wake-up another one may follow.
const SKEW: Duration = Duration::from_millis(20);

/// How much later than its message it follows, so that further messages are covered as well.
pub(super) const GATHER: Duration = Duration::from_millis(5);

/// The messages of the stores since the last wake-up.
#[derive(Debug)]
pub(super) struct Reports {
    last: Vec<Option<BootInstant>>,
    /// The last wake-up, if none has followed it yet.
    woken: Option<BootInstant>,
}

/// What follows from a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportEffect {
    None,
    Wake,
    /// A wake-up follows after [`GATHER`].
    WakeSoon,
}

impl Reports {
    pub(super) fn new(stores: usize) -> Self {
        Self { last: vec![None; stores], woken: None }
    }

    /// A store has reported that a key may be free.
    pub(super) fn add(&mut self, number: usize, now: BootInstant) -> ReportEffect {
        self.last[number] = Some(now);
        let recent = |at: &&Option<BootInstant>| at.is_some_and(|at| now.since(at) <= COUNTS_FOR);
        if self.last.iter().filter(recent).count() >= majority(self.last.len()) {
            self.last.fill(None);
            self.woken = Some(now);
            return ReportEffect::Wake;
        }
        match self.woken.take() {
            Some(woken) if now.since(woken) <= SKEW => ReportEffect::WakeSoon,
            _ => ReportEffect::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects(stores: usize, reports: &[(usize, u64)]) -> Vec<ReportEffect> {
        let (mut gathered, start) = (Reports::new(stores), BootInstant::now());
        let at = |millis| start.after(Duration::from_millis(millis));
        reports.iter().map(|(number, millis)| gathered.add(*number, at(*millis))).collect()
    }

    #[test]
    fn the_messages_about_one_release_are_one_wake_up_and_at_most_one_more() {
        use ReportEffect::{None, Wake, WakeSoon};
        assert_eq!(effects(3, &[(0, 0), (1, 1), (2, 2)]), [None, Wake, WakeSoon]);
        assert_eq!(
            effects(5, &[(0, 0), (1, 0), (2, 0), (3, 1), (4, 2)]),
            [None, None, Wake, WakeSoon, None]
        );
        assert_eq!(effects(3, &[(0, 0), (1, 1), (2, 90)]), [None, Wake, None]);
    }

    #[test]
    fn a_minority_wakes_nobody_however_often_it_reports() {
        let often: Vec<_> = (0..100).flat_map(|millis| [(0, millis), (1, millis)]).collect();
        assert_eq!(effects(5, &often), vec![ReportEffect::None; 200]);
    }

    #[test]
    fn stores_that_find_a_key_free_report_it_within_a_second() {
        use ReportEffect::{None, Wake};
        assert_eq!(effects(3, &[(0, 0), (2, 990)]), [None, Wake]);
        assert_eq!(effects(3, &[(0, 0), (2, 2100)]), [None, None]);
    }
}
