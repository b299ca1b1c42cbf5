//! How long one process may pass a lock on among its own tasks.
//!
//! A turn begins when the store grants the key and lasts for a number of holds, or for a while,
//! whichever is over first. Then it is the other processes' turn, if any of them waits. Whether one
//! does is asked of the store, and while that question is under way the lock goes on from hand to
//! hand: nobody is to idle for an answer that is mostly "no". Where others are known to wait,
//! because their lock was met when this turn began, or by an earlier answer, nothing is asked: the
//! turn is over, and the key is freed.
//!
//! Keeps the promise that waiting is cheap, and that nobody starves for it.

use std::time::Duration;

use crate::clock::BootInstant;
use crate::protection::Protection;

/// How many times its holds a turn may have whose end nobody could ask about.
const OVERTIME: u32 = 2;

/// How long a turn lasts at the most while others wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Holds one after the other; none are passed on if that is zero.
    pub(crate) holds: u32,
    pub(crate) time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { holds: 32, time: Duration::from_millis(50) }
    }
}

impl Limits {
    /// Whether locks are passed on at all.
    pub(crate) fn is_on(&self) -> bool {
        self.holds > 0 && !self.time.is_zero()
    }
}

/// For how long turns may follow each other although nobody else is known to wait: others may try now and
/// then, and not say so.
const LONGEST: Duration = Duration::from_secs(1);

/// One turn of one process at one key.
#[derive(Debug)]
pub(crate) struct Turn {
    /// When the first hold of this lease ended.
    since: Option<BootInstant>,
    began: BootInstant,
    /// Holds that have ended in it.
    holds: u32,
    /// Others are known to wait.
    contended: bool,
    /// Since when it would be over, had somebody else waited.
    over: Option<BootInstant>,
    /// Since when the store is being asked whether others wait.
    asked: Option<BootInstant>,
}

/// What becomes of the lock when a hold ends and another task of this process waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    HandOver,
    /// And find out whether anybody else waits.
    HandOverAndAsk,
    Free,
}

impl Turn {
    pub(crate) fn new(began: BootInstant, contended: bool) -> Self {
        Self { since: None, began, holds: 0, contended, over: None, asked: None }
    }

    /// A hold has ended.
    pub(crate) fn next(&mut self, limits: &Limits, now: BootInstant) -> Next {
        self.holds = self.holds.saturating_add(1);
        let since = *self.since.get_or_insert(now);
        if !limits.is_on() {
            return Next::Free;
        }
        if self.holds < limits.holds && now.since(self.began) < limits.time {
            return Next::HandOver;
        }
        if !Protection::TurnsEnd.is_on() {
            return Next::HandOver;
        }
        if self.contended || now.since(since) >= LONGEST {
            return Next::Free;
        }
        if let Some(asked) = self.asked {
            return if now.since(asked) < limits.time { Next::HandOver } else { Next::Free };
        }
        let over = *self.over.get_or_insert(now);
        if self.holds >= limits.holds.saturating_mul(OVERTIME) || now.since(over) >= limits.time {
            return Next::Free;
        }
        self.asked = Some(now);
        Next::HandOverAndAsk
    }

    /// How many others wait; `None` if that is not to be had, which is no reason to go on.
    pub(crate) fn answered(&mut self, others: Option<usize>, now: BootInstant) {
        self.asked = None;
        if others == Some(0) {
            (self.began, self.holds, self.over) = (now, 0, None);
        } else {
            self.contended = true;
        }
    }

    /// Nobody waits for the answer any more; the next to end a hold may ask.
    pub(crate) fn unasked(&mut self) {
        self.asked = None;
    }
}

#[cfg(test)]
mod tests {
    use super::Next::{Free, HandOver, HandOverAndAsk};
    use super::*;

    const LIMITS: Limits = Limits { holds: 4, time: Duration::from_millis(50) };

    fn turn(contended: bool) -> (Turn, BootInstant) {
        let now = BootInstant::now();
        (Turn::new(now, contended), now)
    }

    fn ends(turn: &mut Turn, now: BootInstant, holds: u32) -> Vec<Next> {
        (0..holds).map(|_| turn.next(&LIMITS, now)).collect()
    }

    #[test]
    fn it_is_over_after_so_many_holds_when_others_wait() {
        let (mut turn, now) = turn(true);
        assert_eq!(ends(&mut turn, now, 4), [HandOver, HandOver, HandOver, Free]);
    }

    #[test]
    fn it_is_over_after_a_while_when_others_wait() {
        let (mut turn, now) = turn(true);
        assert_eq!(turn.next(&LIMITS, now), HandOver);
        assert_eq!(turn.next(&LIMITS, now.after(LIMITS.time)), Free);
    }

    #[test]
    fn while_the_store_is_asked_it_goes_on() {
        let (mut turn, now) = turn(false);
        ends(&mut turn, now, 3);
        assert_eq!(turn.next(&LIMITS, now), HandOverAndAsk);
        assert_eq!(ends(&mut turn, now, 20), [HandOver; 20]);
        assert_eq!(turn.next(&LIMITS, now.after(LIMITS.time)), Free, "but not for ever");
    }

    #[test]
    fn it_begins_anew_when_nobody_else_waits() {
        let (mut turn, now) = turn(false);
        ends(&mut turn, now, 4);
        turn.answered(Some(0), now);
        assert_eq!(ends(&mut turn, now, 4), [HandOver, HandOver, HandOver, HandOverAndAsk]);
    }

    #[test]
    fn it_is_over_when_somebody_waits_or_nobody_knows() {
        for others in [Some(1), None] {
            let (mut turn, now) = turn(false);
            ends(&mut turn, now, 4);
            turn.answered(others, now);
            assert_eq!(turn.next(&LIMITS, now), Free);
        }
    }

    #[test]
    fn a_question_that_was_given_up_is_asked_again_and_not_for_ever() {
        let (mut turn, now) = turn(false);
        ends(&mut turn, now, 3);
        for _ in 0..4 {
            assert_eq!(turn.next(&LIMITS, now), HandOverAndAsk);
            turn.unasked();
        }
        assert_eq!(turn.next(&LIMITS, now), Free);
    }

    #[test]
    fn a_hold_that_outlasts_a_turn_is_passed_on_if_nobody_else_waits() {
        let (mut turn, mut now) = turn(false);
        for _ in 0..10 {
            now = now.after(LIMITS.time * 2);
            assert_eq!(turn.next(&LIMITS, now), HandOverAndAsk);
            turn.answered(Some(0), now);
        }
        assert_eq!(
            turn.next(&LIMITS, now.after(LIMITS.time * 2)),
            Free,
            "now and then it is freed"
        );
    }

    #[test]
    fn no_holds_or_no_time_switch_it_off() {
        for limits in [Limits { holds: 0, ..LIMITS }, Limits { time: Duration::ZERO, ..LIMITS }] {
            let (mut turn, now) = turn(false);
            assert_eq!(turn.next(&limits, now), Free);
        }
    }
}
