//! Watches the keys for which calls wait, and wakes those calls regularly.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::client::AsyncClient;
use crate::backoff::between;
use crate::join::join_all;
use crate::store::subscriptions::Subscriptions;

/// How long a key is watched after the last call that has waited for it.
const LINGER: Duration = Duration::from_secs(1);

/// How many keys are watched at once.
const AT_ONCE: usize = 32;

/// The pause after a key that could not be watched.
const AGAIN: Duration = Duration::from_millis(250);

const SHORTEST_POLL: Duration = Duration::from_millis(10);
const LONGEST_POLL: Duration = Duration::from_secs(60);

/// Starts the tasks, which end with the client.
pub(super) fn start<W: AsyncClient>(
    runtime: &Handle,
    keys: &Arc<W>,
    subscriptions: &Arc<Subscriptions>,
    response_timeout: Duration,
) {
    // A client may have what ends the runtime.
    let keys = Arc::downgrade(keys);
    runtime.spawn(poll(Arc::downgrade(subscriptions), Weak::clone(&keys)));
    let subscriptions = Arc::clone(subscriptions);
    runtime.spawn(Watches { keys, subscriptions, response_timeout }.run());
}

/// Wakes all waiting calls in each interval.
async fn poll<W: AsyncClient>(subscriptions: Weak<Subscriptions>, keys: Weak<W>) {
    while let Some(interval) = keys.upgrade().map(|keys| keys.poll_interval()) {
        let interval = interval.clamp(SHORTEST_POLL, LONGEST_POLL);
        tokio::time::sleep(between(interval * 3 / 4, interval)).await;
        let Some(subscriptions) = subscriptions.upgrade() else { return };
        subscriptions.wake_all();
    }
}

struct Watches<W> {
    keys: Weak<W>,
    subscriptions: Arc<Subscriptions>,
    response_timeout: Duration,
}

impl<W: AsyncClient> Watches<W> {
    async fn run(self) {
        let watches = Arc::new(self);
        loop {
            let look = watches.subscriptions.next_look(LINGER);
            tokio::select! {
                () = watches.subscriptions.wanted() => {}
                () = tokio::time::sleep(look.unwrap_or(LINGER)), if look.is_some() => {}
            }
            while watches.watch_some().await {}
            let idle = watches.subscriptions.take_idle(LINGER);
            join_all(idle.iter().map(|name| watches.unwatch(name))).await;
        }
    }

    /// Watches some of the keys that are wanted. Returns whether there may be more.
    async fn watch_some(self: &Arc<Self>) -> bool {
        let mut room = AT_ONCE;
        let wanted = self.subscriptions.take_wanted(|_| {
            room = room.saturating_sub(1);
            room > 0
        });
        let watched = join_all(wanted.iter().map(|name| self.begin(name))).await;
        let is_some = watched.contains(&true);
        let failed: Vec<_> =
            wanted.into_iter().zip(watched).filter(|(_, is_watched)| !is_watched).collect();
        if !failed.is_empty() {
            self.subscriptions.want_again(failed.into_iter().map(|(name, _)| name).collect());
            tokio::time::sleep(AGAIN).await;
        }
        is_some
    }

    /// Begins to watch a key, whose wake-ups count from the answer on: the watches of other keys may take longer.
    /// Returns whether the store watches it.
    async fn begin(self: &Arc<Self>, name: &Arc<str>) -> bool {
        let losses = self.subscriptions.losses();
        if !self.watch(name).await {
            return false;
        }
        // No call may wait for it any more. If the store has lost it meanwhile, it is wanted again.
        let orphans = self.subscriptions.subscribed_since(name, losses);
        join_all(orphans.iter().map(|name| self.unwatch(name))).await;
        true
    }

    /// Calls the store in a task of its own, because it may panic.
    async fn watch(self: &Arc<Self>, name: &Arc<str>) -> bool {
        let (Some(keys), name) = (self.keys.upgrade(), Arc::clone(name)) else { return false };
        let watched = async move { keys.watch(&name).await };
        let within = tokio::time::timeout(self.response_timeout, watched);
        matches!(tokio::spawn(within).await, Ok(Ok(Ok(()))))
    }

    async fn unwatch(self: &Arc<Self>, name: &Arc<str>) {
        let (Some(keys), name) = (self.keys.upgrade(), Arc::clone(name)) else { return };
        let unwatched = async move { keys.unwatch(&name).await };
        let within = tokio::time::timeout(self.response_timeout, unwatched);
        let _ = tokio::spawn(within).await;
    }
}
