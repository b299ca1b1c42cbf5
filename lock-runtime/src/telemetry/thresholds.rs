//! When the log warns of long waits and long holds.

use std::time::Duration;

use tracing::Level;

use super::label::SiteLabel;
use crate::error::LockError;
use crate::events;

/// The wait from which on a call is logged, unless it is configured.
const SLOW_WAIT: Duration = Duration::from_secs(2);

/// When the log warns of long waits and long holds; `None` if it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlowThresholds {
    pub(crate) wait: Option<Duration>,
    /// For holds without a `max_hold`, unless it is set.
    pub(crate) hold: Option<Duration>,
}

impl Default for SlowThresholds {
    fn default() -> Self {
        Self { wait: Some(SLOW_WAIT), hold: None }
    }
}

impl SlowThresholds {
    /// Logs a call that has got the lock after a long wait.
    #[inline]
    pub(crate) fn acquired(self, key: &str, label: impl FnOnce() -> SiteLabel, waited: Duration) {
        if let Some(threshold) = self.reached_by(waited) {
            warn_of_wait((key, waited, threshold), label(), "acquired", None);
        }
    }

    /// Logs a call that has failed after a long wait.
    pub(crate) fn failed(self, error: &LockError, label: impl FnOnce() -> SiteLabel) {
        let (key, waited, outcome, holder) = match error {
            LockError::Busy { key, waited, holder, .. } => (&**key, *waited, "busy", Some(holder)),
            LockError::Unavailable { key: Some(key), waited, .. } => {
                (&**key, *waited, "unavailable", None)
            }
            _ => return,
        };
        if let Some(threshold) = self.reached_by(waited) {
            let holder = holder.map(ToString::to_string);
            warn_of_wait((key, waited, threshold), label(), outcome, holder.as_deref());
        }
    }

    /// The threshold that a wait of this length has reached.
    #[inline]
    fn reached_by(self, waited: Duration) -> Option<Duration> {
        self.wait.filter(|threshold| waited >= *threshold)
    }
}

/// On the thread of the caller, so that the event belongs to the span of the caller.
#[cold]
fn warn_of_wait(
    (key, waited, threshold): (&str, Duration, Duration),
    SiteLabel { template, function }: SiteLabel,
    outcome: &'static str,
    holder: Option<&str>,
) {
    tracing::warn!(
        key,
        template,
        function,
        outcome,
        holder,
        waited_seconds = waited.as_secs_f64(),
        threshold_seconds = threshold.as_secs_f64(),
        "slow: a call waited long for its lock"
    );
}

/// A hold that has become longer than its threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlowHold {
    pub(crate) held_for: Duration,
    pub(crate) threshold: Duration,
    pub(crate) label: SiteLabel,
}

impl SlowHold {
    /// Logs it, on the log thread, because the background thread may have found it.
    #[cold]
    pub(crate) fn warn(self, key: &str) {
        let Self { held_for, threshold, label: SiteLabel { template, function } } = self;
        let key = key.to_owned();
        events::emit(Level::WARN, move || {
            tracing::warn!(
                key,
                template,
                function,
                held_seconds = held_for.as_secs_f64(),
                threshold_seconds = threshold.as_secs_f64(),
                "slow: a lock is held long"
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_logged_from_two_seconds_on() {
        let thresholds = SlowThresholds::default();
        assert_eq!((thresholds.wait, thresholds.hold), (Some(Duration::from_secs(2)), None));
        let label = || panic!("not logged");
        thresholds.acquired("k", label, Duration::from_millis(1999));
        SlowThresholds { wait: None, hold: None }.acquired("k", label, Duration::MAX);
        thresholds.failed(&LockError::ShutDown, label);
    }
}
