//! The messages that wake waiters, and the polling that stands in for a message that was lost.

pub(crate) mod cluster_channels;
pub(crate) mod cluster_subscriber;
mod node_subscriber;
pub(crate) mod poller;
pub(crate) mod subscriber;
mod subscription_ends;
