//! The clock of the deadlines.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since the machine was started, including the time for which it was suspended: a lease ends in that
/// time too.
pub(crate) fn since_boot() -> Duration {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    // On other systems, this clock includes the time for which the machine is suspended.
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;

    Duration::try_from(clock_gettime(CLOCK)).unwrap_or_default()
}
