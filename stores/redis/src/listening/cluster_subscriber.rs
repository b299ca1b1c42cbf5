//! Subscribes to releases in a cluster: gives each channel to the node that has its slot.
//!
//! Each node has a [`NodeSubscriber`] of its own, so that a node that does not answer delays no
//! other. When the slots of a node have changed, its subscriber gives back its channels, and they
//! are given out again.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

use super::cluster_channels::{ClusterChannels, SubscriptionOrder};
use super::node_subscriber::NodeSubscriber;
use super::subscriber::{IDLE_INTERVAL, LINGER, RETRY};
use crate::hash_slot;
use crate::topology::ClusterNode;

/// The task that subscribes at one node. It ends by itself, and gives back all its channels, when
/// the node is replaced or when this is dropped.
struct SubscriberTask {
    node: Arc<ClusterNode>,
    orders: UnboundedSender<SubscriptionOrder>,
}

impl SubscriberTask {
    fn tell(&self, order: SubscriptionOrder) {
        // Fails if the task has just ended because its node was replaced.
        let _ = self.orders.send(order);
    }
}

/// Keeps the subscriptions in step until the runtime ends.
pub(crate) async fn run(channels: ClusterChannels) {
    let mut nodes: HashMap<u32, SubscriberTask> = HashMap::new();
    let mut changes = 0;
    loop {
        let is_complete = give_out(&channels, &mut nodes);
        unsubscribe_idle(&channels, &nodes);
        nodes.retain(|_, known| known.node.is_current());
        let pause = async {
            let look = channels.subscriptions.next_look(IDLE_INTERVAL);
            match look.filter(|_| is_complete) {
                Some(look) => sleep(look).await,
                None if is_complete => std::future::pending::<()>().await,
                None => sleep(RETRY).await,
            }
        };
        tokio::select! {
            () = channels.subscriptions.wanted(), if is_complete => {}
            () = channels.given_back.notified() => {}
            new = channels.cluster.changed(changes) => {
                changes = new;
                for subscriber in nodes.values() {
                    subscriber.tell(SubscriptionOrder::CheckSlots);
                }
            }
            () = pause => {}
        }
    }
}

/// Gives the channels to subscribe to the nodes that have their slots. Returns whether each channel
/// has a node.
fn give_out(channels: &ClusterChannels, nodes: &mut HashMap<u32, SubscriberTask>) -> bool {
    let mut left = Vec::new();
    for name in channels.subscriptions.take_wanted(|_| true) {
        let owner = channels.cluster.owner(hash_slot::slot(&name));
        let Some(node) = owner.and_then(|owner| channels.cluster.node(owner)) else {
            left.push(name);
            continue;
        };
        let subscriber = nodes.entry(node.number()).or_insert_with(|| {
            let (subscriber, orders) = NodeSubscriber::new(channels.clone(), Arc::clone(&node));
            drop(tokio::spawn(subscriber.run()));
            SubscriberTask { node, orders }
        });
        // Fails if the task has just ended because its node was replaced.
        if let Err(unsent) = subscriber.orders.send(SubscriptionOrder::Subscribe(name))
            && let SubscriptionOrder::Subscribe(name) = unsent.0
        {
            left.push(name);
        }
    }
    let is_complete = left.is_empty();
    if !is_complete {
        channels.subscriptions.want_again(left);
        channels.cluster.refresh();
    }
    is_complete
}

/// Unsubscribes channels without listeners.
fn unsubscribe_idle(channels: &ClusterChannels, nodes: &HashMap<u32, SubscriberTask>) {
    for name in channels.subscriptions.take_idle(LINGER) {
        // A node that has lost the slot gives back its channels in any case.
        let owner = channels.cluster.owner(hash_slot::slot(&name));
        if let Some(subscriber) = owner.and_then(|owner| nodes.get(&owner)) {
            subscriber.tell(SubscriptionOrder::Unsubscribe(name));
        }
    }
}
