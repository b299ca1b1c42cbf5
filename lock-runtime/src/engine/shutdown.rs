//! The shutdown of a client.

use std::sync::Arc;
use std::time::Duration;

use super::core::Engine;
use crate::error::LostReason;
use crate::events;
use crate::sync::time;
#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
use crate::telemetry::exporter;

/// The longest time for which a shutdown waits for the last releases, also for those that the store sends by itself.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time for which a shutdown waits for the log.
const LOG_TIMEOUT: Duration = Duration::from_millis(500);

/// The longest time for which a shutdown waits for the last export of measurements.
#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
const EXPORT_TIMEOUT: Duration = Duration::from_millis(500);

impl Engine {
    /// Ends all waits, waits up to `grace` for the holders to finish, ends the remaining holds, and
    /// waits for the last releases, and for the `last` work of the store. No lock is granted from the start on.
    ///
    /// Returns the number of locks whose release has not been confirmed by then, and the key of one that was still held after the
    /// grace. These releases continue.
    pub(crate) async fn shut_down(
        &self,
        grace: Duration,
        last: impl Future<Output = ()>,
    ) -> (usize, Option<Arc<str>>) {
        self.close();
        // The permit of a key has a holder from before the first request for the key until after
        // the last one.
        let is_idle = || self.open() == 0;
        let is_over = wait_until(grace, is_idle).await;
        let end = time::Instant::now() + RELEASE_TIMEOUT;
        let mut still_held = None;
        if !is_over {
            for lease in self.background().held() {
                self.background().lose(&lease, LostReason::ShutDown);
                still_held.get_or_insert_with(|| Arc::clone(lease.key()));
            }
            wait_until(RELEASE_TIMEOUT, is_idle).await;
        }
        let open = self.open();
        let _ = time::timeout_at(end, last).await;
        #[cfg(any(feature = "metrics", feature = "opentelemetry"))]
        {
            let number = exporter::request();
            wait_until(EXPORT_TIMEOUT, || exporter::is_done(number)).await;
        }
        // The log is written before the process ends, unless the subscriber hangs.
        wait_until(LOG_TIMEOUT, events::is_idle).await;
        (open, still_held)
    }

    /// The number of locks that are held or being released.
    pub(super) fn open(&self) -> usize {
        // A lock that a shutdown has ended is no longer scheduled, but its permit has a holder.
        let scheduled = self.background().held_count() + self.background().releasing();
        self.queues().keys().max(scheduled)
    }
}

/// Waits up to `limit` for a condition, which is polled. Only a shutdown may poll.
pub(super) async fn wait_until(limit: Duration, condition: impl Fn() -> bool) -> bool {
    let end = time::Instant::now() + limit;
    while !condition() {
        if time::Instant::now() >= end {
            return false;
        }
        time::sleep(Duration::from_millis(2)).await;
    }
    true
}
