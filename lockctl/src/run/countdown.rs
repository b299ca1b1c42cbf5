//! When a command is terminated, and when it is killed.
//!
//! The deadline of a lock moves ahead with each renewal. A command is *terminated* when the deadline has come
//! closer than the grace, or when the lock is lost; from then on its end is certain, even if the lock is renewed
//! after all. It is *killed* a margin before the deadline that was known when it was terminated, so that it has
//! ended by the deadline: a tenth of the grace, and never less than a busy machine needs to end a process. A
//! renewed lock has at least two thirds of its lease left, and the grace is at most one third, so a renewal may
//! fail once before anything happens.
//!
//! Keeps the promise that a command never outlives its lock.

use std::time::Duration;

/// The longest pause between two looks at the lock, which may be renewed.
const PAUSE: Duration = Duration::from_secs(1);

/// The least time between SIGKILL and the deadline.
const LEAST_MARGIN: Duration = Duration::from_millis(50);

/// The way from the start of a command to its end. Times are since the start of the machine.
#[derive(Debug)]
pub(crate) struct Countdown {
    grace: Duration,
    /// The deadline of a lock that another process has passed on, until its first renewal, and the grace until
    /// then: such a lock begins with a lease of 3 s at most.
    passed_on: Option<(Duration, Duration)>,
    /// The last known deadline.
    deadline: Duration,
    stage: CountdownStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountdownStage {
    Running,
    Terminated { kill_at: Duration },
    Killed,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountdownStep {
    /// Look again after this time at the latest.
    Wait(Duration),
    /// Send SIGTERM.
    Terminate,
    /// Send SIGKILL.
    Kill,
}

impl Countdown {
    /// For a lock that has so much time left now.
    pub(crate) fn new(grace: Duration, now: Duration, left: Duration) -> Self {
        let deadline = now + left;
        let passed_on = (left / 3 < grace).then_some((deadline, left / 3));
        Self { grace, passed_on, deadline, stage: CountdownStage::Running }
    }

    /// The next step, for a lock that has so much time left.
    pub(crate) fn step(&mut self, now: Duration, left: Duration) -> CountdownStep {
        if self.stage == CountdownStage::Running && !left.is_zero() {
            self.deadline = now + left;
        }
        let before = self.current_grace().max(LEAST_MARGIN);
        match self.stage {
            CountdownStage::Running if now + before < self.deadline => {
                CountdownStep::Wait(self.deadline.saturating_sub(now + before).min(PAUSE))
            }
            CountdownStage::Running => self.terminate(now),
            CountdownStage::Terminated { kill_at } if now < kill_at => {
                CountdownStep::Wait(kill_at.saturating_sub(now).min(PAUSE))
            }
            CountdownStage::Terminated { .. } => {
                self.stage = CountdownStage::Killed;
                CountdownStep::Kill
            }
            CountdownStage::Killed => CountdownStep::Wait(PAUSE),
        }
    }

    /// The step after the loss of the lock.
    pub(crate) fn lost(&mut self, now: Duration) -> CountdownStep {
        match self.stage {
            CountdownStage::Running => self.terminate(now),
            CountdownStage::Terminated { .. } | CountdownStage::Killed => {
                self.step(now, Duration::ZERO)
            }
        }
    }

    /// Whether the command was terminated or killed.
    pub(crate) fn is_terminating(&self) -> bool {
        self.stage != CountdownStage::Running
    }

    fn terminate(&mut self, now: Duration) -> CountdownStep {
        let grace = self.current_grace();
        let margin = (grace / 10).max(LEAST_MARGIN);
        let kill_at = (now + grace).min(self.deadline).saturating_sub(margin);
        if now < kill_at {
            self.stage = CountdownStage::Terminated { kill_at };
            CountdownStep::Terminate
        } else {
            self.stage = CountdownStage::Killed;
            CountdownStep::Kill
        }
    }

    fn current_grace(&self) -> Duration {
        match self.passed_on {
            // Two readings of one deadline differ by the time between two readings of the clock.
            Some((first, grace)) if self.deadline < first + grace => grace.min(self.grace),
            _ => self.grace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LEASE: Duration = Duration::from_secs(30);
    const GRACE: Duration = Duration::from_secs(10);

    /// A countdown that begins an hour after the start of the machine.
    fn begun(left: Duration) -> (Countdown, Duration) {
        let now = SECOND * 3600;
        (Countdown::new(GRACE, now, left), now)
    }

    #[test]
    fn nothing_happens_while_the_lock_is_renewed() {
        let (mut countdown, now) = begun(LEASE);
        for second in 0..1000 {
            // Renewed every ten seconds.
            let left = SECOND * (30 - second % 10);
            assert_eq!(countdown.step(now + SECOND * second, left), CountdownStep::Wait(PAUSE));
        }
        assert!(!countdown.is_terminating());
    }

    #[test]
    fn the_command_is_terminated_before_the_deadline_and_killed_before_it() {
        let (mut countdown, now) = begun(LEASE);
        let just_before = SECOND * 39 / 2;
        assert_eq!(
            countdown.step(now + just_before, SECOND * 21 / 2),
            CountdownStep::Wait(SECOND / 2)
        );
        assert_eq!(countdown.step(now + SECOND * 20, GRACE), CountdownStep::Terminate);
        assert_eq!(countdown.step(now + SECOND * 28, SECOND * 2), CountdownStep::Wait(SECOND));
        assert_eq!(countdown.step(now + SECOND * 29, SECOND), CountdownStep::Kill);
        assert_eq!(countdown.step(now + SECOND * 30, Duration::ZERO), CountdownStep::Wait(PAUSE));
    }

    #[test]
    fn a_late_renewal_does_not_save_a_command_that_was_terminated() {
        let (mut countdown, now) = begun(LEASE);
        assert_eq!(countdown.step(now + SECOND * 20, GRACE), CountdownStep::Terminate);
        assert_eq!(countdown.step(now + SECOND * 21, LEASE), CountdownStep::Wait(PAUSE));
        assert_eq!(countdown.step(now + SECOND * 29, LEASE), CountdownStep::Kill);
    }

    #[test]
    fn a_command_whose_lock_is_gone_has_its_grace() {
        let (mut countdown, now) = begun(LEASE);
        assert_eq!(countdown.step(now + SECOND, SECOND * 29), CountdownStep::Wait(PAUSE));
        assert_eq!(countdown.lost(now + SECOND * 2), CountdownStep::Terminate);
        assert_eq!(countdown.step(now + SECOND * 10, Duration::ZERO), CountdownStep::Wait(PAUSE));
        assert_eq!(countdown.step(now + SECOND * 11, Duration::ZERO), CountdownStep::Kill);
    }

    #[test]
    fn a_command_is_killed_at_once_after_the_deadline() {
        let (mut countdown, now) = begun(LEASE);
        assert_eq!(countdown.step(now + LEASE, Duration::ZERO), CountdownStep::Kill);
        let (mut countdown, now) = begun(LEASE);
        assert_eq!(countdown.lost(now + LEASE), CountdownStep::Kill);
    }

    #[test]
    fn without_a_grace_the_command_is_killed_just_before_the_deadline() {
        let now = SECOND * 3600;
        let mut countdown = Countdown::new(Duration::ZERO, now, LEASE);
        let left = SECOND.saturating_sub(LEAST_MARGIN);
        assert_eq!(countdown.step(now + SECOND * 29, SECOND), CountdownStep::Wait(left));
        let just_before = now + LEASE.saturating_sub(LEAST_MARGIN);
        assert_eq!(countdown.step(just_before, LEAST_MARGIN), CountdownStep::Kill);
        let mut countdown = Countdown::new(Duration::ZERO, now, LEASE);
        assert_eq!(countdown.lost(now + SECOND), CountdownStep::Kill);
    }

    #[test]
    fn a_short_grace_has_the_least_margin() {
        let (now, grace) = (SECOND * 3600, LEAST_MARGIN * 4);
        let mut countdown = Countdown::new(grace, now, SECOND);
        let before = |left| now + SECOND.saturating_sub(left);
        assert_eq!(countdown.step(before(grace), grace), CountdownStep::Terminate);
        let left = LEAST_MARGIN * 3 / 2;
        let rest = CountdownStep::Wait(LEAST_MARGIN / 2);
        assert_eq!(countdown.step(before(left), left), rest);
        assert_eq!(countdown.step(before(LEAST_MARGIN), LEAST_MARGIN), CountdownStep::Kill);
    }

    #[test]
    fn a_lock_that_was_passed_on_has_a_short_grace_until_it_is_renewed() {
        let (mut countdown, now) = begun(SECOND * 3);
        let left = SECOND * 3 / 2;
        assert_eq!(countdown.step(now + left, left), CountdownStep::Wait(SECOND / 2));
        // Renewed.
        assert_eq!(countdown.step(now + SECOND * 2, LEASE), CountdownStep::Wait(PAUSE));
        assert_eq!(countdown.step(now + SECOND * 22, GRACE), CountdownStep::Terminate);
        // Not renewed.
        let (mut countdown, now) = begun(SECOND * 3);
        assert_eq!(countdown.step(now + SECOND * 2, SECOND), CountdownStep::Terminate);
    }
}
