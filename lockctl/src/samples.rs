//! Times that were measured.

use std::time::Duration;

/// Times, in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// The time that so many percent of the samples do not exceed; zero without samples.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }
}

/// A short duration for people, in milliseconds.
pub(crate) fn milliseconds(span: Duration) -> String {
    format!("{}.{:03} ms", span.as_millis(), span.subsec_micros() % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples = Samples::new((1..=200).rev().map(Duration::from_millis).collect());
        let found = [0, 50, 99, 100].map(|percent| samples.percentile(percent).as_millis());
        assert_eq!(found, [1, 100, 198, 200]);
        assert_eq!(Samples::default().percentile(50), Duration::ZERO);
        assert_eq!(milliseconds(Duration::from_micros(1_050)), "1.050 ms");
    }
}
