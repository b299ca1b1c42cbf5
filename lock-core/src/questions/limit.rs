//! The number of questions that a client answers in a second.

use std::time::Duration;

use crate::clock::BootInstant;

/// The most questions that are answered in a second.
pub const MOST_ANSWERS: u32 = 10;

/// The time after which one more question is answered.
const INTERVAL: Duration = Duration::from_millis(1000 / MOST_ANSWERS as u64);

/// Limits answers to [`MOST_ANSWERS`] in a second, of which all may come at once.
#[derive(Debug)]
pub struct AnswerLimit {
    /// When all answers of a second would be available again.
    full_at: BootInstant,
}

impl AnswerLimit {
    pub fn new() -> Self {
        Self { full_at: BootInstant::PAST }
    }

    /// Whether one more question may be answered.
    pub fn admits(&mut self, now: BootInstant) -> bool {
        let is_admitted = self.pause(now, MOST_ANSWERS).is_zero();
        if is_admitted {
            self.add(now);
        }
        is_admitted
    }

    /// How long one more question of somebody who asks has to wait. Only half of the answers of a second are asked
    /// for at once: questions that take longer to arrive than later ones then still meet the limit.
    pub fn pause_of_asker(&self, now: BootInstant) -> Duration {
        self.pause(now, MOST_ANSWERS / 2)
    }

    /// How long one more question has to wait if so many may come at once.
    fn pause(&self, now: BootInstant, at_once: u32) -> Duration {
        self.full_at.since(now).saturating_sub(INTERVAL * (at_once - 1))
    }

    /// Counts a question.
    pub fn add(&mut self, now: BootInstant) {
        let full_at = if now < self.full_at { self.full_at } else { now };
        self.full_at = full_at.after(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks as soon as it may. Returns how many are answered of the questions that arrive after these delays.
    fn answered(delays: &[Duration]) -> usize {
        let (mut asker, mut client) = (AnswerLimit::new(), AnswerLimit::new());
        let (mut now, mut last) = (BootInstant::now(), BootInstant::PAST);
        let mut arrives = |delay: &Duration| {
            now = now.after(asker.pause_of_asker(now));
            asker.add(now);
            // They arrive in order.
            last = last.max(now.after(*delay));
            client.admits(last)
        };
        delays.iter().filter(|delay| arrives(delay)).count()
    }

    #[test]
    fn all_questions_of_one_asker_are_answered() {
        assert_eq!(answered(&[Duration::ZERO; 100]), 100);
        let (late, prompt) = ([Duration::from_millis(400); 20], [Duration::ZERO; 20]);
        assert_eq!(answered(&[late, prompt, late, prompt].concat()), 80);
        assert!(answered(&[late.map(|delay| delay * 5), prompt].concat()) < 40, "much later");
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
