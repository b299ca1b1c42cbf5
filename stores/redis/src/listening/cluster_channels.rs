//! What the subscribers of the nodes of a cluster share, what they are told to do, and how a subscription ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::topology::RedisCluster;
use crate::transport::pipelined::OnMessage;
use lock_core::store::subscriptions::Subscriptions;

/// What the subscribers of all nodes share.
#[derive(Clone)]
pub(crate) struct ClusterChannels {
    pub(crate) cluster: Arc<RedisCluster>,
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) response_timeout: Duration,
    pub(crate) on_message: OnMessage,
    /// Notified when a subscriber has given back channels.
    pub(crate) given_back: Arc<Notify>,
}

/// What a subscriber has to do.
pub(crate) enum SubscriptionOrder {
    Subscribe(Arc<str>),
    /// Unsubscribe this channel if it is subscribed here.
    Unsubscribe(Arc<str>),
    /// The slots of the nodes have changed.
    CheckSlots,
}

/// The outcome of one subscription.
pub(crate) enum Subscribed {
    Confirmed,
    /// Another node has the slot.
    Moved,
    Denied(String),
    Failed,
    /// The replies may be out of step with the requests.
    OutOfStep,
}
