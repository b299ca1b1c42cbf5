//! The limit of hand-offs among the tasks of one process.
//!
//! A tenure begins when the store grants the key, and reaches its limit after a number of holds or
//! after some time, whichever comes first. At the limit, the engine requests the number of other
//! processes that wait for the key. The hand-offs continue meanwhile, because that number is
//! usually zero. If it is zero, a new tenure begins. Otherwise the tenure ends, and the key is
//! freed. There is no request if other processes are known to wait: from an earlier answer, or
//! because one of them held the lock when this process tried to acquire it.
//!
//! Keeps the promise that waiting is cheap, without starvation.

use std::time::Duration;

use crate::clock::BootInstant;
use crate::safeguard::Safeguard;

/// Without an answer, a tenure may have this many times the holds of the limit.
const OVERTIME: u32 = 2;

/// The limit of hand-offs while other processes wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandoffLimit {
    /// The number of consecutive holds. With zero, there are no hand-offs.
    pub(crate) holds: u32,
    /// The time for consecutive holds. With zero, there are no hand-offs.
    pub(crate) time: Duration,
}

impl Default for HandoffLimit {
    fn default() -> Self {
        Self { holds: 32, time: Duration::from_millis(50) }
    }
}

impl HandoffLimit {
    /// Whether there are hand-offs at all.
    pub(crate) fn allows_any(&self) -> bool {
        self.holds > 0 && !self.time.is_zero()
    }

    /// The limit without that of the number of holds, if there are hand-offs at all.
    pub(crate) fn of_any_number(&self) -> Self {
        if self.allows_any() { Self { holds: u32::MAX, ..*self } } else { *self }
    }
}

/// The longest sequence of tenures while no other process is known to wait. Other processes may
/// still wait: those that poll cannot be counted.
pub(crate) const LONGEST: Duration = Duration::from_secs(1);

/// The time for which one process has a key.
#[derive(Debug)]
pub(crate) struct Tenure {
    /// When the first hold of the lease ended.
    since: Option<BootInstant>,
    began: BootInstant,
    /// The number of holds that have ended in this tenure.
    holds: u32,
    /// Whether other processes are known to wait.
    contended: bool,
    /// When the limit was reached.
    limit_reached: Option<BootInstant>,
    /// When the request in flight for the number of waiting processes was sent.
    counting: Option<BootInstant>,
}

/// The decision about the lock when a hold ends and another task of this process waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    HandOff,
    /// Hand the lock off, and request the number of other processes that wait.
    HandOffAndCount,
    Free,
}

impl Tenure {
    pub(crate) fn new(began: BootInstant, contended: bool) -> Self {
        Self { since: None, began, holds: 0, contended, limit_reached: None, counting: None }
    }

    pub(crate) fn began(&self) -> BootInstant {
        self.began
    }

    /// How long the lock may linger after a hold: zero if other processes are known to wait.
    pub(crate) fn longest_linger(&self, now: BootInstant) -> Duration {
        let since = self.since.unwrap_or(now);
        if self.contended { Duration::ZERO } else { LONGEST.saturating_sub(now.since(since)) }
    }

    /// Decides about the lock after a hold has ended.
    pub(crate) fn next(&mut self, limit: &HandoffLimit, now: BootInstant) -> Decision {
        let since = *self.since.get_or_insert(now);
        match self.next_of_counted(limit, now) {
            _ if limit.allows_any() && !Safeguard::HandoffLimit.is_on() => Decision::HandOff,
            _ if now.since(since) >= LONGEST => Decision::Free,
            decision => decision,
        }
    }

    /// The same if all processes that wait can be counted.
    pub(crate) fn next_of_counted(&mut self, limit: &HandoffLimit, now: BootInstant) -> Decision {
        self.holds = self.holds.saturating_add(1);
        if !limit.allows_any() {
            return Decision::Free;
        }
        if self.holds < limit.holds && now.since(self.began) < limit.time {
            return Decision::HandOff;
        }
        if self.contended {
            return Decision::Free;
        }
        if let Some(counting) = self.counting {
            let in_time = now.since(counting) < limit.time;
            return if in_time { Decision::HandOff } else { Decision::Free };
        }
        let reached = *self.limit_reached.get_or_insert(now);
        if self.holds >= limit.holds.saturating_mul(OVERTIME) || now.since(reached) >= limit.time {
            return Decision::Free;
        }
        self.counting = Some(now);
        Decision::HandOffAndCount
    }

    /// Records the number of other processes that wait. `None` means that the number is not known;
    /// the tenure then ends.
    pub(crate) fn counted(&mut self, waiters: Option<usize>, now: BootInstant) {
        self.counting = None;
        if waiters == Some(0) {
            (self.began, self.holds, self.limit_reached) = (now, 0, None);
        } else {
            self.contended = true;
        }
    }

    /// Records that the request was dropped without an answer. The next holder that leaves may send
    /// another one.
    pub(crate) fn count_abandoned(&mut self) {
        self.counting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::Decision::{Free, HandOff, HandOffAndCount};
    use super::*;

    const LIMIT: HandoffLimit = HandoffLimit { holds: 4, time: Duration::from_millis(50) };

    fn tenure(contended: bool) -> (Tenure, BootInstant) {
        let now = BootInstant::now();
        (Tenure::new(now, contended), now)
    }

    /// What happens at the ends of this many holds.
    fn ends(tenure: &mut Tenure, now: BootInstant, holds: u32) -> Vec<Decision> {
        (0..holds).map(|_| tenure.next(&LIMIT, now)).collect()
    }

    #[test]
    fn a_tenure_ends_after_some_holds_if_others_wait() {
        let (mut tenure, now) = tenure(true);
        assert_eq!(ends(&mut tenure, now, 4), [HandOff, HandOff, HandOff, Free]);
    }

    #[test]
    fn a_tenure_ends_after_some_time_if_others_wait() {
        let (mut tenure, now) = tenure(true);
        assert_eq!(tenure.next(&LIMIT, now), HandOff);
        assert_eq!(tenure.next(&LIMIT, now.after(LIMIT.time)), Free);
    }

    #[test]
    fn a_tenure_continues_while_the_waiters_are_counted() {
        let (mut tenure, now) = tenure(false);
        ends(&mut tenure, now, 3);
        assert_eq!(tenure.next(&LIMIT, now), HandOffAndCount);
        assert_eq!(ends(&mut tenure, now, 20), [HandOff; 20]);
        assert_eq!(
            tenure.next(&LIMIT, now.after(LIMIT.time)),
            Free,
            "the wait for the answer is limited"
        );
    }

    #[test]
    fn a_tenure_begins_anew_if_no_other_process_waits() {
        let (mut tenure, now) = tenure(false);
        ends(&mut tenure, now, 4);
        tenure.counted(Some(0), now);
        assert_eq!(ends(&mut tenure, now, 4), [HandOff, HandOff, HandOff, HandOffAndCount]);
    }

    #[test]
    fn a_tenure_ends_if_others_wait_or_the_count_fails() {
        for waiters in [Some(1), None] {
            let (mut tenure, now) = tenure(false);
            ends(&mut tenure, now, 4);
            tenure.counted(waiters, now);
            assert_eq!(tenure.next(&LIMIT, now), Free);
        }
    }

    #[test]
    fn an_abandoned_count_is_repeated_a_few_times() {
        let (mut tenure, now) = tenure(false);
        ends(&mut tenure, now, 3);
        for _ in 0..4 {
            assert_eq!(tenure.next(&LIMIT, now), HandOffAndCount);
            tenure.count_abandoned();
        }
        assert_eq!(tenure.next(&LIMIT, now), Free);
    }

    #[test]
    fn a_hold_that_outlasts_the_limit_is_handed_off_if_no_other_process_waits() {
        let (mut tenure, mut now) = tenure(false);
        for _ in 0..10 {
            now = now.after(LIMIT.time * 2);
            assert_eq!(tenure.next(&LIMIT, now), HandOffAndCount);
            tenure.counted(Some(0), now);
        }
        assert_eq!(
            tenure.next(&LIMIT, now.after(LIMIT.time * 2)),
            Free,
            "the key is freed from time to time"
        );
    }

    #[test]
    fn the_largest_limit_ends_after_a_second() {
        let limit = HandoffLimit { holds: u32::MAX, time: LONGEST };
        let (mut tenure, mut now) = tenure(false);
        let began = now;
        while tenure.next(&limit, now) != Free {
            now = now.after(LONGEST / 10);
            tenure.counted(Some(0), now);
            assert!(now.since(began) <= LONGEST, "{:?}", now.since(began));
        }
        assert_eq!(now.since(began), LONGEST);
    }

    #[test]
    fn a_limit_of_zero_holds_or_zero_time_disables_hand_offs() {
        for limit in
            [HandoffLimit { holds: 0, ..LIMIT }, HandoffLimit { time: Duration::ZERO, ..LIMIT }]
        {
            let (mut tenure, now) = tenure(false);
            assert_eq!(tenure.next(&limit, now), Free);
        }
    }
}
