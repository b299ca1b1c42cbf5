//! Durations in messages.

use std::fmt;
use std::time::Duration;

/// A duration, rounded down to milliseconds.
pub(crate) struct Seconds(pub(crate) Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u64::try_from(self.0.as_millis()) {
            Ok(0) => f.write_str("less than 1 ms"),
            Ok(milliseconds) => write!(f, "{:?}", Duration::from_millis(milliseconds)),
            Err(_) => f.write_str("a very long time"),
        }
    }
}
