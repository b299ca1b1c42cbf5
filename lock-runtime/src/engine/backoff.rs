//! Pauses between tries: doubling from the first to the longest, each a random half to whole of
//! that, so that many who failed together do not come back together ("equal jitter",
//! <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).

use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    /// The next pause, before jitter.
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// The pause before the next try.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = jittered(self.next);
        self.next = (self.next * 2).min(self.longest);
        pause
    }

    /// Something worked: the next failure starts anew.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

/// A random half to whole of `pause`.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
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
