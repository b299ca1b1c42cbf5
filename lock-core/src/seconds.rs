//! Durations in messages.

use std::fmt;
use std::time::Duration;

/// A duration with two units at most, rounded down: `481ms`, `12.345s`, `16m 8s`, `23h 59m`, `2d 4h`.
#[derive(Debug)]
pub struct Seconds(pub Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match (seconds, self.0.subsec_millis()) {
            (0, 0) => f.write_str("less than 1 ms"),
            (0..60, milliseconds) => {
                let milliseconds = u64::from(milliseconds);
                write!(f, "{:?}", Duration::from_millis(seconds * 1000 + milliseconds))
            }
            (60..3600, _) => write!(f, "{}m {}s", seconds / 60, seconds % 60),
            (3600..86400, _) => write!(f, "{}h {}m", seconds / 3600, seconds / 60 % 60),
            _ => write!(f, "{}d {}h", seconds / 86400, seconds / 3600 % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_with_two_units() {
        for (milliseconds, shown) in [
            (481, "481ms"),
            (12_345, "12.345s"),
            (968_148, "16m 8s"),
            (86_398_000, "23h 59m"),
            (187_200_000, "2d 4h"),
            (u64::MAX, "213503982334d 14h"),
        ] {
            assert_eq!(Seconds(Duration::from_millis(milliseconds)).to_string(), shown);
        }
        assert_eq!(Seconds(Duration::from_micros(999)).to_string(), "less than 1 ms");
    }
}
