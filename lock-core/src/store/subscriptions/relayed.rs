//! Subscriptions whose messages come from other subscriptions.

use std::sync::Arc;

use tokio::task::AbortHandle;

use super::channels::{Subscription, Subscriptions};
use super::waiting_claim::Listener;
use crate::store::layout::Layout;
use crate::store::owner::OwnerId;
use crate::sync::atomic::Ordering;

impl Subscriptions {
    /// The subscriptions of a store that passes on what other stores tell.
    pub fn relayed() -> Arc<Self> {
        Self::local()
    }

    /// Subscribes to the releases of `key`. The subscription becomes live when its listener is told so.
    pub fn relay(
        self: &Arc<Self>,
        key: &str,
        layout: Layout,
        owner: OwnerId,
    ) -> (Subscription, Arc<Listener>) {
        let subscription = self.listen(key, key, layout, owner);
        let listener = Arc::clone(&subscription.listener);
        listener.relay_live(false);
        (subscription, listener)
    }
}

impl Subscription {
    /// The task that passes messages on ends with the subscription.
    pub fn kept_up_by(mut self, relay: AbortHandle) -> Self {
        self.relay = Some(relay);
        self
    }
}

impl Listener {
    /// Whether messages arrive from now on.
    pub fn relay_live(&self, is_live: bool) {
        if is_live {
            self.set_live();
        } else {
            self.live.store(false, Ordering::Release);
        }
    }
}
