//! When the nodes of a cluster should be asked for their slots.

use std::time::Duration;

use tokio::sync::Notify;

use lock_core::clock::BootInstant;
use lock_core::sync::{Mutex, lock};

/// For how long the nodes are asked again and again after a failure: longer than the nodes take to
/// notice it and to elect a successor, with their default settings.
const TROUBLE: Duration = Duration::from_secs(20);

/// The failures of requests and connections.
#[derive(Default)]
pub(super) struct Trouble {
    /// Until when nodes are asked again and again.
    until: Mutex<Option<BootInstant>>,
    wanted: Notify,
}

impl Trouble {
    /// Asks the nodes soon.
    pub(super) fn ask(&self) {
        self.wanted.notify_one();
    }

    /// A request or a connection has failed in a way that a failover would explain.
    pub(super) fn suspect(&self) {
        let now = BootInstant::now();
        let earlier = lock(&self.until).replace(now.after(TROUBLE));
        if earlier.is_none_or(|until| until <= now) {
            self.wanted.notify_one();
        }
    }

    /// Whether something has failed a short time ago.
    pub(super) fn is_recent(&self) -> bool {
        lock(&self.until).is_some_and(|until| until > BootInstant::now())
    }

    /// Resolves when the nodes should be asked.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }
}
