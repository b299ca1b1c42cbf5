//! Exponential backoff with "equal jitter": each pause is twice the previous one, up to a maximum,
//! and a random part of it is used, from one half to the whole
//! (<https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).

use std::time::Duration;

#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    /// The next pause, before jitter.
    next: Duration,
}

impl Backoff {
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// Returns the pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let pause = jittered(self.next);
        self.next = (self.next * 2).min(self.longest);
        pause
    }

    /// Begins again with the first pause, after an attempt that has succeeded.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// A random part of `pause`, from one half to the whole.
pub fn jittered(pause: Duration) -> Duration {
    between(pause / 2, pause)
}

/// A random time from `shortest` to `longest`.
pub fn between(shortest: Duration, longest: Duration) -> Duration {
    shortest + longest.saturating_sub(shortest).mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let (first, longest) = (Duration::from_millis(10), Duration::from_millis(70));
        let mut backoff = Backoff::new(first, longest);
        for whole in [10, 20, 40, 70, 70] {
            let (whole, pause) = (Duration::from_millis(whole), backoff.pause());
            assert!(pause >= whole / 2 && pause <= whole, "{pause:?} of {whole:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= first);
    }
}
