//! What the subscribers of the nodes of a cluster share, what they are told to do, and how a subscription ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::topology::RedisCluster;
use super::tracking::OnMessage;
use lock_core::store::subscriptions::Subscriptions;

/// What the subscribers of all nodes share.
#[derive(Clone)]
pub(super) struct ClusterChannels {
    pub(super) cluster: Arc<RedisCluster>,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) response_timeout: Duration,
    pub(super) on_message: OnMessage,
    /// Notified when a subscriber has given back channels.
    pub(super) given_back: Arc<Notify>,
}

/// What a subscriber has to do.
pub(super) enum SubscriptionOrder {
    Subscribe(Arc<str>),
    /// Unsubscribe this channel if it is subscribed here.
    Unsubscribe(Arc<str>),
    /// The slots of the nodes have changed.
    CheckSlots,
}

/// The outcome of one subscription.
pub(super) enum Subscribed {
    Confirmed,
    /// Another node has the slot.
    Moved,
    Denied(String),
    Failed,
    /// The replies may be out of step with the requests.
    OutOfStep,
}
