//! The clock of the deadlines.
//!
//! A lease in the store also elapses while the machine is suspended, so the clock of its deadline
//! must not stop then. The standard library's `Instant` stops during a suspend on Linux and on
//! Apple's systems. This clock is `CLOCK_BOOTTIME` on Linux, and on other platforms the clock that
//! continues during a suspend.
//!
//! Keeps the promise that a body never outlives its lock, on machines that are suspended.

use std::num::NonZeroU64;
use std::time::Duration;

/// A point on the boot-time clock, in nanoseconds since boot.
///
/// It is a plain number, so that a deadline fits into an atomic, which is read before every poll. It is not zero, so that an
/// instant that may be missing takes no more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(NonZeroU64);

impl Default for BootInstant {
    fn default() -> Self {
        Self::PAST
    }
}

impl BootInstant {
    /// The instant before all other instants. As a deadline, it has passed.
    pub const PAST: Self = Self(NonZeroU64::MIN);

    pub fn now() -> Self {
        #[cfg(feature = "testing")]
        if let Some((anchor, passed)) = tokio_clock() {
            return anchor.boot.after(passed);
        }
        Self::from_nanos(nanos_since_boot() + suspended())
    }

    /// Zero is [`PAST`](Self::PAST) as well.
    pub const fn from_nanos(nanos: u64) -> Self {
        match NonZeroU64::new(nanos) {
            Some(nanos) => Self(nanos),
            None => Self::PAST,
        }
    }

    pub const fn as_nanos(self) -> u64 {
        self.0.get()
    }

    /// The instant that is `by` later, or the last representable instant.
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }

    /// The deadline of a lease of `term` whose request was sent at this instant: the end of the term less 1 % and 2
    /// ms, the allowance of Redlock for clock drift and rounding
    /// (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>).
    pub fn deadline_of(self, term: Duration) -> Self {
        self.after(term.saturating_sub(term / 100 + Duration::from_millis(2)))
    }

    /// The last multiple of `step` that is not after this instant.
    pub fn before_grid(self, step: Duration) -> Self {
        Self::from_nanos(self.as_nanos() - self.as_nanos() % nanos(step).max(1))
    }

    /// The time since `earlier`, or zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.as_nanos().saturating_sub(earlier.as_nanos()))
    }
}

/// Where the clocks of a test client stand still or run ahead with that of tokio.
#[cfg(feature = "testing")]
#[derive(Clone, Copy)]
struct TokioAnchor {
    runtime: tokio::runtime::Id,
    tokio: tokio::time::Instant,
    boot: BootInstant,
    unix: Duration,
    /// Whether everything in this runtime is simulated.
    is_simulation: bool,
}

#[cfg(feature = "testing")]
thread_local! {
    static ANCHOR: std::cell::Cell<Option<TokioAnchor>> = const { std::cell::Cell::new(None) };
}

/// From now on, the clocks of this library follow that of tokio on this thread, inside the current runtime.
#[cfg(feature = "testing")]
pub fn follow_tokio() {
    let (Ok(runtime), None) = (tokio::runtime::Handle::try_current(), tokio_clock()) else {
        return;
    };
    let (boot, unix, is_simulation) = (BootInstant::now(), unix_time(), false);
    let tokio = tokio::time::Instant::now();
    ANCHOR.set(Some(TokioAnchor { runtime: runtime.id(), tokio, boot, unix, is_simulation }));
}

/// Like [`follow_tokio`], for a simulation: the clocks begin at this time since 1970, a second after boot, and clients of any
/// store may be made.
#[cfg(feature = "testing")]
pub fn simulate(unix: Duration) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let (boot, is_simulation) = (BootInstant::PAST.after(Duration::from_secs(1)), true);
    let tokio = tokio::time::Instant::now();
    ANCHOR.set(Some(TokioAnchor { runtime: runtime.id(), tokio, boot, unix, is_simulation }));
}

/// The anchor of the current runtime, and the time that has passed since then by tokio's clock.
#[cfg(feature = "testing")]
fn tokio_clock() -> Option<(TokioAnchor, Duration)> {
    let anchor = ANCHOR.get()?;
    let runtime = tokio::runtime::Handle::try_current().ok()?;
    (runtime.id() == anchor.runtime).then(|| (anchor, anchor.tokio.elapsed()))
}

/// Whether tokio's clock stands still here, and time is not simulated. A clock that runs advances between two readings.
pub fn is_paused() -> bool {
    #[cfg(feature = "testing")]
    if tokio_clock().is_some_and(|(anchor, _)| anchor.is_simulation) {
        return false;
    }
    if tokio::runtime::Handle::try_current().is_err() {
        return false;
    }
    let (tokio, started) = (tokio::time::Instant::now(), std::time::Instant::now());
    // A simulated clock of the system may stand still as well.
    for _ in 0..10_000 {
        if started.elapsed() >= Duration::from_micros(5) {
            return tokio.elapsed().is_zero();
        }
        std::hint::spin_loop();
    }
    false
}

/// The time since 1970, by the clock of the system, which may be set.
pub fn unix_time() -> Duration {
    #[cfg(feature = "testing")]
    if let Some((anchor, passed)) = tokio_clock() {
        return anchor.unix + passed;
    }
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The time in ms since 1970, by the clock of the system, which may be set. It is read in steps of up to
/// 10 ms where that is cheaper.
pub fn unix_millis() -> u64 {
    #[cfg(feature = "testing")]
    if tokio_clock().is_some() {
        return u64::try_from(unix_time().as_millis()).unwrap_or(u64::MAX);
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        seconds * 1000 + u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000_000
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        u64::try_from(unix_time().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(any(test, feature = "simulation"))]
thread_local! {
    static SUSPENDED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Simulates a suspend of the machine, for the current thread.
#[cfg(any(test, feature = "simulation"))]
pub fn sleep_through(suspend: Duration) {
    SUSPENDED.set(SUSPENDED.get() + nanos(suspend));
}

#[cfg(any(test, feature = "simulation"))]
fn suspended() -> u64 {
    SUSPENDED.get()
}

#[cfg(not(any(test, feature = "simulation")))]
const fn suspended() -> u64 {
    0
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(lock_shuttle)]
use crate::sync::time::nanos_since_boot;

#[cfg(all(unix, not(lock_shuttle)))]
fn nanos_since_boot() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    // On Apple's systems and the BSDs, the monotonic clock continues during a suspend.
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "fuchsia")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

    let now = rustix::time::clock_gettime(CLOCK);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let fraction = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds * 1_000_000_000 + fraction
}

#[cfg(all(not(unix), not(lock_shuttle)))]
fn nanos_since_boot() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;

    // On Windows, `Instant` continues during a suspend.
    static START: OnceLock<Instant> = OnceLock::new();
    // The first reading is not `PAST`.
    1_000_000_000 + nanos(START.get_or_init(Instant::now).elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_advances_and_measures() {
        let start = BootInstant::now();
        let later = start.after(Duration::from_millis(5));
        assert_eq!(later.since(start), Duration::from_millis(5));
        assert_eq!(start.since(later), Duration::ZERO);
        assert_eq!(later.before_grid(Duration::from_millis(1)).as_nanos() % 1_000_000, 0);
        assert!(
            later.since(later.before_grid(Duration::from_millis(1))) < Duration::from_millis(1)
        );
        assert!(BootInstant::now() >= start);
        assert!(BootInstant::PAST < start);
    }

    #[test]
    fn the_last_instant_is_a_valid_deadline() {
        let end = BootInstant::now().after(Duration::MAX);
        assert!(end > BootInstant::now().after(Duration::from_secs(1 << 30)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn on_linux_the_clock_counts_suspend() {
        let text = std::fs::read_to_string("/proc/uptime").expect("procfs");
        let uptime: f64 = text.split(' ').next().expect("a number").parse().expect("seconds");
        let now = Duration::from_nanos(BootInstant::now().as_nanos()).as_secs_f64();
        assert!((now - uptime).abs() < 2.0, "{now} against {uptime}");
    }
}
