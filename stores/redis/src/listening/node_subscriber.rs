//! The subscriptions of a client at one node of a cluster.
//!
//! They have a connection of their own, which carries nothing but subscriptions and pings. When a
//! slot leaves a node, the node ends the subscriptions to the channels of this slot by messages that
//! nobody has asked for. Such a message and the confirmation that a request waits for look alike, and
//! so do the refusals that follow. After the first such message, nothing more is therefore sent over
//! the connection. The listeners of the channels that have left are woken at once. The
//! other channels keep receiving messages until the connection is discarded a moment later, so that
//! the losses of several slots cost one reconnection; their listeners are woken once, when they are
//! subscribed again. Pings detect a connection that has gone silent.
//!
//! Each channel that was given to a subscriber is in one of its fields until it is given back. The
//! subscriber can therefore be interrupted at any time when its node is replaced, and loses none.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushKind, RedisResult, Value, cmd};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::cluster_channels::{ClusterChannels, Subscribed, SubscriptionOrder};
use super::subscriber::{RETRY, kind, retry_denied, warn_denied};
use super::subscription_ends::SubscriptionEnds;
use crate::connections::connect::Established;
use crate::connections::connection::Connection;
use crate::connections::tracking::Listening;
use crate::hash_slot;
use crate::topology::{ClusterNode, Redirect, Topology};
use crate::transport::outgoing::Outgoing;
use lock_core::backoff::jittered;
use lock_core::join::join_all;
use lock_core::store::contract::StoreError;

/// The most channels whose subscriptions are requested at once.
const AT_ONCE: usize = 100;

/// The pause before a channel whose slot has moved is given back.
const RETRY_MOVED: Duration = Duration::from_millis(5);

/// How often a connection with subscriptions is tested.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// The same while nobody waits for a lock, so that only questions would be missed.
const PING_INTERVAL_QUIET: Duration = Duration::from_secs(10);

/// How long after the first loss of a slot a connection is discarded.
const GATHER_LOSSES: Duration = Duration::from_millis(100);

/// The subscriptions at one node.
pub(crate) struct NodeSubscriber {
    channels: ClusterChannels,
    node: Arc<ClusterNode>,
    connection: Connection,
    orders: UnboundedReceiver<SubscriptionOrder>,
    /// The connection that has the subscriptions.
    generation: u64,
    subscribed: HashSet<Arc<str>>,
    /// The channels to subscribe now, or to give back after a pause.
    in_hand: Vec<Arc<str>>,
    ends: Arc<SubscriptionEnds>,
    /// When the connection is discarded, because a slot has left the node. Nothing is sent over it
    /// until then.
    discard_at: Option<Instant>,
    next_ping: Instant,
    /// The channels without permission, and when they are given back.
    denied: Vec<(Instant, Arc<str>)>,
    /// The kinds of channels of which the log says that the permission is missing.
    warned: Vec<String>,
}

impl NodeSubscriber {
    pub(crate) fn new(
        channels: ClusterChannels,
        node: Arc<ClusterNode>,
    ) -> (Self, UnboundedSender<SubscriptionOrder>) {
        let ends = Arc::<SubscriptionEnds>::default();
        let on_message = ends.on_message(&channels.on_message);
        let topology = Arc::new(Topology::of_node(Arc::clone(&node), None));
        let (home, within) = (tokio::runtime::Handle::current(), channels.response_timeout);
        let listening = Listening { on_message, tracking: None };
        let connection = Connection::new(topology, home, within, Some(listening));
        let (sender, orders) = unbounded_channel();
        let subscriber = Self {
            channels,
            node,
            connection,
            orders,
            generation: 0,
            subscribed: HashSet::new(),
            in_hand: Vec::new(),
            ends,
            discard_at: None,
            next_ping: Instant::now(),
            denied: Vec::new(),
            warned: Vec::new(),
        };
        (subscriber, sender)
    }

    /// Runs until the node is no longer a master, or until there are no more orders. Gives back all
    /// channels then.
    pub(crate) async fn run(mut self) {
        let node = Arc::clone(&self.node);
        tokio::select! {
            () = node.replaced() => {}
            () = self.serve() => {}
        }
        self.end().await;
    }

    /// Carries out orders until there are no more.
    ///
    /// Cancel safe: all channels are in fields.
    async fn serve(&mut self) {
        let mut orders = Vec::new();
        loop {
            self.notice_loss();
            if self.discard_at.is_none() && !self.in_hand.is_empty() {
                self.subscribe().await;
            }
            let denied_until = self.denied.iter().map(|(until, _)| *until).min();
            let has_test = !self.subscribed.is_empty() && self.discard_at.is_none();
            let room = AT_ONCE - self.in_hand.len();
            tokio::select! {
                // Orders come last, so that many of them do not prevent the tests.
                biased;
                () = self.ends.noticed() => {
                    self.lose_ended();
                }
                () = self.connection.changed() => {}
                () = reached(self.discard_at) => self.lose_all(),
                () = reached(denied_until) => {
                    let now = Instant::now();
                    let again = self.denied.extract_if(.., |(until, _)| *until <= now);
                    let names = again.map(|(_, name)| name).collect();
                    self.give_back(names);
                }
                () = sleep_until(self.next_ping), if has_test => self.ping().await,
                count = self.orders.recv_many(&mut orders, room), if room > 0 => {
                    if count == 0 {
                        return;
                    }
                    self.process(orders.drain(..)).await;
                }
            }
        }
    }

    /// Carries out some orders, apart from subscribing. An earlier order to subscribe a channel that
    /// is unsubscribed now has been carried out long since, because the channel was live.
    async fn process(&mut self, orders: impl Iterator<Item = SubscriptionOrder>) {
        let (mut idle, mut check_slots) = (Vec::new(), false);
        for order in orders {
            match order {
                SubscriptionOrder::Subscribe(name) => self.in_hand.push(name),
                SubscriptionOrder::Unsubscribe(name) => idle.push(name),
                SubscriptionOrder::CheckSlots => check_slots = true,
            }
        }
        self.unsubscribe(&idle).await;
        if check_slots {
            self.check_slots();
        }
    }

    /// Subscribes the channels in hand.
    async fn subscribe(&mut self) {
        let connection = self.connection.established(self.channels.response_timeout).await;
        self.notice_loss();
        let Ok(connection) = connection else {
            self.channels.cluster.suspect();
            return self.give_back_after(RETRY).await;
        };
        self.generation = connection.generation;
        let soon = Instant::now() + PING_INTERVAL;
        if self.subscribed.is_empty() || self.next_ping > soon {
            self.next_ping = soon;
        }
        let replies = self.in_hand.iter().map(|name| self.subscribe_one(&connection, name));
        let outcomes = join_all(replies).await;
        let (mut confirmed, mut denied) = (Vec::new(), Vec::new());
        let (mut pause, mut is_in_step) = (Duration::ZERO, true);
        for (name, outcome) in std::mem::take(&mut self.in_hand).into_iter().zip(outcomes) {
            match outcome {
                Subscribed::Confirmed => confirmed.push(name),
                Subscribed::Moved => {
                    pause = pause.max(RETRY_MOVED);
                    self.in_hand.push(name);
                }
                Subscribed::Denied(cause) => denied.push((name, cause)),
                Subscribed::Failed => {
                    pause = RETRY;
                    self.in_hand.push(name);
                }
                Subscribed::OutOfStep => {
                    is_in_step = false;
                    self.in_hand.push(name);
                }
            }
        }
        self.subscribed.extend(confirmed.iter().map(Arc::clone));
        let orphans = self.channels.subscriptions.subscribed(&confirmed);
        self.postpone(denied);
        if is_in_step {
            self.unsubscribe(&orphans).await;
        } else {
            self.lose_all();
        }
        if !self.in_hand.is_empty() {
            self.give_back_after(pause).await;
        }
        // The slots may have changed meanwhile.
        self.check_slots();
    }

    async fn subscribe_one(&self, connection: &Established, name: &Arc<str>) -> Subscribed {
        let change = if self.in_shard() { PushKind::SSubscribe } else { PushKind::Subscribe };
        match self.ask(connection, change, name).await {
            Some(Ok(Value::Push { kind: PushKind::SSubscribe | PushKind::Subscribe, data }))
                if is_about(&data, name) =>
            {
                Subscribed::Confirmed
            }
            Some(Ok(_)) => Subscribed::OutOfStep,
            Some(Err(error)) => {
                let error = self.connection.classify(connection.generation, &error);
                match (Redirect::of(&error), error) {
                    (Some(Redirect::Moved { slot, to }), _) => {
                        match self.channels.cluster.moved(slot, to, &self.node).await {
                            Ok(_) => Subscribed::Moved,
                            Err(_) => Subscribed::Failed,
                        }
                    }
                    (_, StoreError::Denied(cause)) => Subscribed::Denied(cause),
                    _ => {
                        self.channels.cluster.suspect();
                        Subscribed::Failed
                    }
                }
            }
            None => {
                self.connection.unanswered_on(connection);
                self.channels.cluster.suspect();
                Subscribed::Failed
            }
        }
    }

    async fn unsubscribe(&mut self, names: &[Arc<str>]) {
        let names: Vec<_> = names.iter().filter(|name| self.subscribed.contains(*name)).collect();
        // Otherwise, they end with the connection.
        let is_in_step = self.discard_at.is_none() && !self.ends.has_unasked();
        if names.is_empty() || !is_in_step {
            return;
        }
        let connection = self.connection.established(Duration::ZERO).await;
        self.notice_loss();
        let Ok(connection) = connection else { return };
        if connection.generation != self.generation {
            return;
        }
        let change = if self.in_shard() { PushKind::SUnsubscribe } else { PushKind::Unsubscribe };
        for chunk in names.chunks(AT_ONCE) {
            for name in chunk {
                self.ends.request(name);
                self.subscribed.remove(*name);
            }
            let replies = chunk.iter().map(|name| self.ask(&connection, change.clone(), name));
            for (name, reply) in chunk.iter().zip(join_all(replies).await) {
                let is_end = |reply: &RedisResult<Value>| {
                    use PushKind::{SUnsubscribe, Unsubscribe};
                    matches!(reply, Ok(Value::Push { kind: SUnsubscribe | Unsubscribe, data })
                        if is_about(data, name))
                };
                if !reply.is_some_and(|reply| is_end(&reply)) {
                    return self.lose_all();
                }
            }
        }
    }

    /// Sends one request. `None` without an answer.
    async fn ask(
        &self,
        connection: &Established,
        change: PushKind,
        name: &Arc<str>,
    ) -> Option<RedisResult<Value>> {
        let request = Outgoing::Subscription { change, channels: std::slice::from_ref(name) };
        let reply = connection.socket.commands.send(request);
        timeout(self.channels.response_timeout, reply).await.ok()
    }

    /// Tests the connection.
    async fn ping(&mut self) {
        let is_quiet = self.channels.subscriptions.is_quiet();
        let interval = if is_quiet { PING_INTERVAL_QUIET } else { PING_INTERVAL };
        self.next_ping = Instant::now() + interval;
        let Ok(connection) = self.connection.established(Duration::ZERO).await else {
            return self.notice_loss();
        };
        let test = cmd("PING");
        let reply = connection.socket.commands.query::<String>(&test);
        match timeout(self.channels.response_timeout, reply).await {
            Ok(Ok(reply)) if reply == "PONG" => {}
            Ok(_) => self.lose_all(),
            Err(_) => {
                self.connection.unanswered_on(&connection);
                self.channels.cluster.suspect();
            }
        }
        self.notice_loss();
    }

    /// Gives back the channels whose slots belong to another node.
    fn check_slots(&mut self) {
        let owns = |name: &Arc<str>| {
            self.channels.cluster.owner(hash_slot::slot(name)) == Some(self.node.number())
        };
        let left: Vec<_> = self.subscribed.iter().filter(|name| !owns(name)).cloned().collect();
        let waiting: Vec<_> = self.in_hand.extract_if(.., |name| !owns(name)).collect();
        if !waiting.is_empty() {
            self.give_back(waiting);
        }
        self.lose(&left);
    }

    /// Gives back the channels whose subscriptions the node has ended.
    fn lose_ended(&mut self) {
        let ended = self.ends.take_unasked();
        if ended.is_empty() {
            // The connection that has reported it was lost since.
            return;
        }
        let known = |name: &String| self.subscribed.get(name.as_str()).cloned();
        let ended: Vec<_> = ended.iter().filter_map(known).collect();
        self.lose(&ended);
        // Also if none of them is subscribed any more.
        self.discard_soon();
        self.channels.cluster.refresh();
    }

    /// Gives back these channels, whose slots have left the node. Their listeners are woken.
    fn lose(&mut self, names: &[Arc<str>]) {
        if names.is_empty() {
            return;
        }
        for name in names {
            self.subscribed.remove(name);
        }
        self.channels.subscriptions.disconnected_some(names.iter());
        self.discard_soon();
    }

    fn discard_soon(&mut self) {
        self.discard_at.get_or_insert_with(|| Instant::now() + GATHER_LOSSES);
    }

    /// Gives back all channels if the connection that has them was lost. Their listeners are woken,
    /// because it may take long to reconnect.
    fn notice_loss(&mut self) {
        if !self.connection.is_current(self.generation) {
            let lost = self.forget_connection();
            self.channels.subscriptions.disconnected_some(lost.iter());
        }
    }

    /// Discards the connection and gives back all channels. Their listeners are woken when they are
    /// subscribed again.
    fn lose_all(&mut self) {
        self.connection.discard(self.generation);
        let lost = self.forget_connection();
        self.channels.subscriptions.resubscribe(lost.iter());
    }

    /// Returns the channels of a connection that is lost.
    fn forget_connection(&mut self) -> HashSet<Arc<str>> {
        self.ends.forget();
        self.discard_at = None;
        std::mem::take(&mut self.subscribed)
    }

    fn give_back(&self, names: Vec<Arc<str>>) {
        self.channels.subscriptions.want_again(names);
        self.channels.given_back.notify_one();
    }

    /// Gives back the channels in hand after a pause.
    async fn give_back_after(&mut self, pause: Duration) {
        sleep(jittered(pause)).await;
        let names = std::mem::take(&mut self.in_hand);
        self.give_back(names);
    }

    /// Gives back everything, because the node has no slots any more.
    async fn end(mut self) {
        self.orders.close();
        let mut left = std::mem::take(&mut self.in_hand);
        left.extend(self.denied.drain(..).map(|(_, name)| name));
        // Does not wait: the channel is closed.
        while let Some(order) = self.orders.recv().await {
            if let SubscriptionOrder::Subscribe(name) = order {
                left.push(name);
            }
        }
        self.connection.discard(self.generation);
        let lost = self.forget_connection();
        self.channels.subscriptions.disconnected_some(lost.iter());
        self.give_back(left);
    }

    /// Does not subscribe these channels for a while, because the user lacks the permission.
    fn postpone(&mut self, denied: Vec<(Arc<str>, String)>) {
        let Some((name, cause)) = denied.first() else { return };
        let first = kind(name);
        if !self.warned.iter().any(|warned| warned == first) {
            self.warned.push(first.to_owned());
            warn_denied(first, cause.clone());
        }
        self.channels.subscriptions.denied(denied.iter().map(|(name, _)| name), cause);
        let pause = denied.iter().map(|(name, _)| retry_denied(kind(name))).min();
        let until = Instant::now() + jittered(pause.unwrap_or_default());
        self.denied.extend(denied.into_iter().map(|(name, _)| (until, name)));
    }

    fn in_shard(&self) -> bool {
        self.channels.cluster.has_shard_channels()
    }
}

/// Resolves at this time; never without one.
async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Whether a confirmation is about this channel.
fn is_about(data: &[Value], name: &str) -> bool {
    matches!(data.first(), Some(Value::BulkString(channel)) if channel == name.as_bytes())
}
