//! The presence of a client, from which others read who holds a lock.
//!
//! The presence is a key that a client writes as long as it acquires or renews locks. It outlives each lock of a
//! process that has died, because it stays for longer than the longest lease, or the longest `min_hold`, of its
//! locks.

use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::Level;

use crate::client_id::{ClientId, ShortId};
use crate::connections::admission::RequestClass;
use crate::connections::connection::RequestOptions;
use crate::connections::route::Route;
use crate::scripts::dialect::milliseconds;
use lock_core::client_info::ClientInfo;
use lock_core::events;
use lock_core::key;
use lock_core::store::contract::{Release, StoreError};
use lock_core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use lock_core::timeout::RequestTimeout;

/// The shortest time between two renewals of a presence.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// What the presence of a client depends on.
#[derive(Debug, Default)]
pub(crate) struct PresenceState {
    /// Whether the client has acquired or renewed a lock since the presence was last written.
    is_due: AtomicBool,
    /// Notified when it is due.
    due: Notify,
    /// Notified as well, for one task that waits for the first use of a lock.
    used: Notify,
    /// The longest time for which a lock of the client may stay without it, in ms.
    longest_lease: AtomicU64,
}

impl PresenceState {
    /// The client asks for a lease of this length.
    pub(crate) fn covers(&self, lease: Duration) {
        let lease = milliseconds(lease);
        // Usually nothing changes, and a write would take the cache line from other threads.
        if self.longest_lease.load(Ordering::Relaxed) < lease {
            self.longest_lease.fetch_max(lease, Ordering::Relaxed);
        }
        if !self.is_due.load(Ordering::Relaxed) && !self.is_due.swap(true, Ordering::Relaxed) {
            self.due.notify_one();
            self.used.notify_one();
        }
    }

    /// Waits until a lock is used.
    pub(crate) async fn used(&self) {
        self.used.notified().await;
    }

    /// The keys of some of these locks stay taken after their release.
    pub(crate) fn covers_kept(&self, releases: &[Release<'_>]) {
        let kept = releases.iter().map(|release| release.keep).max();
        if let Some(kept) = kept.filter(|kept| !kept.is_zero()) {
            self.covers(kept);
        }
    }

    /// The presence was not written, so it is due again.
    fn failed(&self) {
        if !self.is_due.swap(true, Ordering::Relaxed) {
            self.due.notify_one();
        }
    }

    /// Waits until the presence is due. Returns the longest lease.
    async fn due(&self) -> Duration {
        self.due.notified().await;
        self.is_due.store(false, Ordering::Relaxed);
        Duration::from_millis(self.longest_lease.load(Ordering::Relaxed))
    }
}

/// The presence of a client.
pub(crate) struct Presence {
    pub(crate) route: Route,
    pub(crate) id: ClientId,
    pub(crate) info: ClientInfo,
    pub(crate) state: Arc<PresenceState>,
    /// The lease of locks that do not specify one.
    pub(crate) lease: Duration,
    pub(crate) response_timeout: Duration,
}

impl Presence {
    /// Keeps the presence until the end of the runtime.
    pub(crate) async fn run(self) {
        let (key, text) = (name(self.id.short()), self.info.to_presence());
        let interval = (self.lease / 3).max(SHORTEST_INTERVAL);
        let mut is_logged = false;
        loop {
            let longest = self.state.due().await;
            let lifetime = interval * 3 + self.lease.max(longest);
            let mut set = cmd("SET");
            set.arg(&key).arg(&text).arg("PX").arg(milliseconds(lifetime));
            let timeout = RequestTimeout::of(self.response_timeout);
            let options = RequestOptions::new(RequestClass::Unlimited, timeout);
            let written = self.route.send(&key, &set, &options, |_| Ok(())).await;
            match written {
                Err(StoreError::Denied(cause)) if !is_logged => {
                    is_logged = true;
                    events::emit(Level::INFO, move || {
                        tracing::info!(
                            target: "lock_runtime::store::redis",
                            cause,
                            "cannot write the presence of this client, so others do not see which \
                             process holds its locks"
                        );
                    });
                }
                // Without the permission, it is tried again while the client uses locks.
                Ok(()) | Err(StoreError::Denied(_)) => {}
                Err(_) => self.state.failed(),
            }
            sleep(interval).await;
        }
    }
}

/// The key of the presence of a client.
pub(crate) fn name(id: ShortId) -> String {
    format!("{}{}", key::CLIENTS, id.as_str())
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn the_longest_lease_counts() {
        let state = PresenceState::default();
        for lease in [3, 60, 30] {
            state.covers(Duration::from_secs(lease));
        }
        assert_eq!(state.longest_lease.load(Ordering::Relaxed), 60_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_without_locks_has_no_presence() {
        let (state, moment) = (PresenceState::default(), Duration::from_millis(1));
        assert!(timeout(moment, state.due()).await.is_err(), "nothing was acquired");
        state.covers(moment);
        state.covers(moment);
        assert_eq!(timeout(moment, state.due()).await, Ok(moment));
        assert!(timeout(moment, state.due()).await.is_err(), "nothing was acquired since");
        state.covers(moment);
        assert_eq!(timeout(moment, state.due()).await, Ok(moment));
    }
}
