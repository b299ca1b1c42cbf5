//! The number of questions that a client answers in a second.

use std::time::Duration;

use crate::clock::BootInstant;
#[cfg(any(feature = "redis", test))]
use crate::safeguard::Safeguard;

/// The most questions that are answered in a second.
pub(crate) const MOST_ANSWERS: u32 = 10;

/// The time after which one more question is answered.
const INTERVAL: Duration = Duration::from_millis(1000 / MOST_ANSWERS as u64);

/// Limits answers to [`MOST_ANSWERS`] in a second, of which all may come at once.
#[derive(Debug)]
pub(crate) struct AnswerLimit {
    /// When all answers of a second would be available again.
    full_at: BootInstant,
}

impl AnswerLimit {
    pub(crate) fn new() -> Self {
        Self { full_at: BootInstant::PAST }
    }

    /// Whether one more question may be answered.
    #[cfg(any(feature = "redis", test))]
    pub(crate) fn admits(&mut self, now: BootInstant) -> bool {
        let is_admitted = self.pause(now).is_zero();
        if is_admitted {
            self.add(now);
        }
        is_admitted || !Safeguard::LimitedAnswers.is_on()
    }

    /// How long one more question has to wait.
    pub(crate) fn pause(&self, now: BootInstant) -> Duration {
        self.full_at.since(now).saturating_sub(INTERVAL * (MOST_ANSWERS - 1))
    }

    /// Counts a question.
    pub(crate) fn add(&mut self, now: BootInstant) {
        let full_at = if now < self.full_at { self.full_at } else { now };
        self.full_at = full_at.after(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_waits_is_answered() {
        let (mut limit, start) = (AnswerLimit::new(), BootInstant::now());
        for _ in 0..10 {
            assert_eq!(limit.pause(start), Duration::ZERO);
            limit.add(start);
        }
        assert_eq!(limit.pause(start), INTERVAL);
        assert!(!limit.admits(start) && limit.admits(start.after(INTERVAL)));
    }

    #[test]
    fn ten_questions_in_a_second_are_answered() {
        let (mut limit, start) = (AnswerLimit::new(), BootInstant::now());
        let admitted = |limit: &mut AnswerLimit, after, count| {
            (0..count).filter(|_| limit.admits(start.after(after))).count()
        };
        assert_eq!(admitted(&mut limit, Duration::ZERO, 100), 10, "all at once");
        assert_eq!(admitted(&mut limit, Duration::from_millis(99), 10), 0);
        assert_eq!(admitted(&mut limit, Duration::from_millis(100), 10), 1);
        assert_eq!(
            admitted(&mut limit, Duration::from_secs(100), 100),
            10,
            "no more after a pause"
        );
    }
}
