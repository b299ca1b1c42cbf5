//! The channels of one store, and their listeners.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use super::inbox_queue::InboxQueue;
use super::waiting_claim::{Listener, LockTransfer, QueueMessage, next_check};
use crate::capacity::Peak;
use crate::clock::BootInstant;
use crate::store::layout::{Layout, Mode};
use crate::store::left::Left;
use crate::store::owner::OwnerId;
use crate::store::queueing::Queued;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify, lock};
use crate::user_code::contained;

/// The longest time by which a key may be checked early, in the same request as other keys.
pub(super) const GATHER: Duration = Duration::from_millis(250);

/// The listeners of one store.
#[derive(Debug)]
pub struct Subscriptions {
    pub(super) channels: Mutex<Channels>,
    /// Notified when a channel has to be subscribed.
    pub(super) wanted_some: Notify,
    /// Notified when a check is planned before all others.
    pub(super) planned: Notify,
    /// Whether all releases happen in this process, so that there is nothing to subscribe to.
    local: bool,
    /// Whether the store can report changes of keys.
    pub(super) can_watch: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
pub(super) struct Channels {
    pub(super) by_name: HashMap<Arc<str>, Channel>,
    peak: Peak,
    /// The channels to subscribe. Each has listeners.
    pub(super) wanted: BTreeSet<Arc<str>>,
    /// The live channels without listeners, in the order in which their last listener left.
    pub(super) idle: VecDeque<Arc<str>>,
    /// The planned checks, by time.
    pub(super) checks: BTreeMap<PlannedCheck, Arc<Listener>>,
    /// The number of the last planned check.
    last_planned: u64,
    /// The listeners of each key in each layout.
    pub(super) by_key: HashMap<(Layout, Arc<str>), KeyListeners>,
    /// The number of channels of keys. Those of clients live longer.
    pub(super) of_keys: usize,
    /// How often all subscriptions were lost.
    pub(super) losses: u64,
}

/// The listeners of one key.
#[derive(Debug, Default)]
pub(super) struct KeyListeners {
    pub(super) all: HashMap<OwnerId, Arc<Listener>>,
    /// The result and the time of the last check.
    pub(super) last_check: Option<(Left, BootInstant)>,
}

/// The listeners of one channel.
#[derive(Debug, Default)]
pub(super) struct Channel {
    pub(super) listeners: HashMap<OwnerId, Registered>,
    /// Whether the channel is that of the client, for all its claims that stand in queues.
    pub(super) is_of_client: bool,
    /// The messages, if they are read one by one instead of waking listeners.
    pub(super) inbox: Option<Arc<InboxQueue>>,
    /// Whether the store has confirmed the subscription.
    pub(super) live: bool,
    pub(super) interruption: Interruption,
    /// When the last listener left; `None` while there are listeners.
    pub(super) idle_since: Option<BootInstant>,
    /// Whether the channel is in [`Channels::idle`].
    pub(super) is_queued: bool,
    /// The number of releases by other processes so far.
    pub(super) releases: u64,
    /// The number of messages of this process's own releases that have not arrived yet, in a layout
    /// whose messages do not name the sender.
    pub(super) own: u64,
}

/// Whether a channel that is not live was live before, so that releases may have been missed since.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interruption {
    #[default]
    None,
    /// The listeners have been woken since.
    Announced,
    /// The listeners have not been woken, because the channel is to be live again at once.
    Unannounced,
}

/// The time of a planned check, and its number, which distinguishes checks of one instant.
pub(super) type PlannedCheck = (BootInstant, u64);

#[derive(Debug)]
pub(super) struct Registered {
    pub(super) listener: Arc<Listener>,
    /// Its entry in [`Channels::checks`].
    pub(super) check: Option<PlannedCheck>,
}

impl Subscriptions {
    /// The subscriptions of a store in this process.
    pub fn local() -> Arc<Self> {
        Arc::new(Self::new(true, Arc::default()))
    }

    /// The subscriptions of a store whose channels have to be subscribed; see
    /// [`take_wanted`](Self::take_wanted). `can_watch` says whether the store can report changes of
    /// keys.
    pub fn remote(can_watch: Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Self::new(false, can_watch))
    }

    fn new(local: bool, can_watch: Arc<AtomicBool>) -> Self {
        Self {
            channels: Mutex::default(),
            wanted_some: Notify::new(),
            planned: Notify::new(),
            local,
            can_watch,
        }
    }

    /// Subscribes to the channel that announces the releases of `key`.
    pub fn listen(
        self: &Arc<Self>,
        channel: &str,
        key: &str,
        layout: Layout,
        owner: OwnerId,
    ) -> Subscription {
        self.subscribe((channel, false), (key, layout), (owner, Mode::Exclusive, Duration::ZERO))
    }

    /// Subscribes to the channel of this client. `claim` is the owner, the mode and the term of a claim
    /// that is to stand in the queue of `key`.
    pub fn wait_in_queue(
        self: &Arc<Self>,
        channel: &str,
        key: &str,
        layout: Layout,
        claim: (OwnerId, Mode, Duration),
    ) -> Subscription {
        self.subscribe((channel, true), (key, layout), claim)
    }

    fn subscribe(
        self: &Arc<Self>,
        (channel, is_of_client): (&str, bool),
        (key, layout): (&str, Layout),
        (owner, mode, term): (OwnerId, Mode, Duration),
    ) -> Subscription {
        let mut guard = self.channels();
        let channels = &mut *guard;
        let known = channels.by_name.get_key_value(channel);
        let name = known.map_or_else(|| Arc::from(channel), |(name, _)| Arc::clone(name));
        let listener =
            Listener::new(Arc::clone(&name), (key, layout), (owner, mode, term), self.local);
        let listener = Arc::new(listener);
        let of_keys = &mut channels.of_keys;
        let channel = channels.by_name.entry(Arc::clone(&name)).or_insert_with(|| {
            *of_keys += usize::from(!is_of_client);
            Channel { is_of_client, ..Channel::default() }
        });
        channel.idle_since = None;
        channel
            .listeners
            .insert(owner, Registered { listener: Arc::clone(&listener), check: None });
        let live = channel.live;
        let of_key = channels.by_key.entry(listener.lock()).or_default();
        of_key.all.insert(owner, Arc::clone(&listener));
        let (mut planned, mut wanted) = (false, false);
        if live {
            listener.live.store(true, Ordering::Release);
            planned = channels.plan(&listener, next_check());
        } else if !self.local {
            wanted = channels.wanted.insert(name);
        }
        drop(guard);
        if planned {
            self.planned.notify_one();
        }
        if wanted {
            self.wanted_some.notify_one();
        }
        Subscription { subscriptions: Arc::clone(self), listener, relay: None }
    }

    /// The listener of a claim that waits on this channel.
    pub fn listener(&self, channel: &str, owner: OwnerId) -> Option<Arc<Listener>> {
        let channels = self.channels();
        let registered = channels.by_name.get(channel)?.listeners.get(&owner)?;
        Some(Arc::clone(&registered.listener))
    }

    /// Passes a message on to the claim that it is about, if the claim still waits.
    pub fn received(&self, channel: &str, owner: OwnerId, message: QueueMessage) {
        if let Some(listener) = self.listener(channel, owner) {
            listener.receive(message);
        }
    }

    /// Wakes the listeners of `channel` after a release, by this process or by another one. Returns
    /// their number.
    pub fn wake(&self, channel: &str, by_another: bool) -> usize {
        let mut channels = self.channels();
        let Some(channel) = channels.by_name.get_mut(channel) else { return 0 };
        let own = channel.own.min(u64::from(by_another));
        channel.own -= own;
        channel.releases += u64::from(by_another) - own;
        let listeners = channel.all();
        drop(channels);
        for listener in &listeners {
            contained(|| listener.woken.notify_one());
        }
        listeners.len()
    }

    /// Wakes all listeners.
    pub fn wake_all(&self) {
        let listeners: Vec<_> = self.channels().by_name.values().flat_map(Channel::all).collect();
        for listener in &listeners {
            contained(|| listener.woken.notify_one());
        }
    }

    /// The result and the time of the last check of a key that has listeners.
    pub fn last_check(&self, key: &str, layout: Layout) -> Option<(Left, BootInstant)> {
        self.channels().by_key.get(&(layout, Arc::from(key)))?.last_check
    }

    /// Plans a check of a claim for now.
    fn check_now(&self, listener: &Arc<Listener>) {
        if self.channels().plan_by(listener, BootInstant::now()) {
            self.planned.notify_one();
        }
    }

    fn forget(&self, listener: &Arc<Listener>) {
        let mut channels = self.channels();
        let channels = &mut *channels;
        let (name, of_key) = (listener.channel(), listener.lock());
        if let Entry::Occupied(mut of_key) = channels.by_key.entry(of_key) {
            of_key.get_mut().all.remove(&listener.owner());
            if of_key.get().all.is_empty() {
                of_key.remove();
                if channels.by_key.is_empty() {
                    channels.by_key.shrink_to_fit();
                }
            }
        }
        let Some(channel) = channels.by_name.get_mut(name) else { return };
        let Some(registered) = channel.listeners.remove(&listener.owner()) else { return };
        if let Some(check) = registered.check {
            channels.checks.remove(&check);
        }
        if channel.is_wanted() {
            return;
        }
        channel.listeners.shrink_to_fit();
        let is_of_client = channel.is_of_client;
        if channels.abandon(name, self.local) && is_of_client {
            // Channels of keys are looked at all the time.
            self.wanted_some.notify_one();
        }
    }

    pub(super) fn channels(&self) -> MutexGuard<'_, Channels> {
        lock(&self.channels)
    }
}

impl Channel {
    /// A channel for all keys of the client.
    pub(super) fn of_client() -> Self {
        Self { is_of_client: true, ..Self::default() }
    }

    pub(super) fn all(&self) -> Vec<Arc<Listener>> {
        self.listeners.values().map(|registered| Arc::clone(&registered.listener)).collect()
    }

    /// Whether somebody reads its messages.
    pub(super) fn is_wanted(&self) -> bool {
        if self.inbox.is_some() {
            return true;
        }
        !self.listeners.is_empty()
    }
}

impl Channels {
    pub(super) fn remove(&mut self, name: &str) {
        let before = self.by_name.len();
        if let Some(channel) = self.by_name.remove(name) {
            self.of_keys -= usize::from(!channel.is_of_client);
        }
        self.peak.give_back(&mut self.by_name, before);
    }

    /// Nobody reads the messages of this channel any more. Returns whether it has to be unsubscribed later, and that
    /// was not planned yet.
    pub(super) fn abandon(&mut self, name: &Arc<str>, is_local: bool) -> bool {
        let Some(channel) = self.by_name.get_mut(name) else { return false };
        if is_local || !channel.live {
            self.remove(name);
            self.wanted.remove(name);
            return false;
        }
        channel.idle_since = Some(BootInstant::now());
        let is_new = !std::mem::replace(&mut channel.is_queued, true);
        if is_new {
            self.idle.push_back(Arc::clone(name));
        }
        is_new
    }

    pub(super) fn retain(&mut self, keeps: impl Fn(&Channel) -> bool) {
        self.by_name.retain(|_, channel| keeps(channel));
        self.of_keys = self.by_name.values().filter(|channel| !channel.is_of_client).count();
    }

    /// Plans a check for a listener, unless the listener has left or its channel is not live: its
    /// acquisition then polls. Returns whether the check is the first one.
    pub(super) fn plan(&mut self, listener: &Arc<Listener>, at: BootInstant) -> bool {
        let channel = self.by_name.get_mut(listener.channel()).filter(|channel| channel.live);
        let Some(channel) = channel else { return false };
        let Some(registered) = channel.listeners.get_mut(&listener.owner()) else { return false };
        if registered.check.is_none() {
            self.last_planned += 1;
            let check = (at, self.last_planned);
            registered.check = Some(check);
            self.checks.insert(check, Arc::clone(listener));
        }
        self.checks.first_key_value().is_some_and(|((first, _), _)| *first == at)
    }

    /// Plans a check for a listener no later than `at`. Returns whether the check is the first one.
    pub(super) fn plan_by(&mut self, listener: &Arc<Listener>, at: BootInstant) -> bool {
        let channel = self.by_name.get_mut(listener.channel());
        let registered = channel.and_then(|it| it.listeners.get_mut(&listener.owner()));
        if let Some(check) = registered.and_then(|it| it.check.take_if(|(check, _)| *check > at)) {
            self.checks.remove(&check);
        }
        self.plan(listener, at)
    }

    /// Takes the first planned check, if it is not later than `until`. A check is put off if the
    /// claim has heard from the store since it was planned.
    pub(super) fn take_check(&mut self, until: BootInstant) -> Option<Arc<Listener>> {
        loop {
            let first = self.checks.first_entry().filter(|first| first.key().0 <= until)?;
            let number = first.key().1;
            let listener = first.remove();
            let is_urgent = listener.is_urgent();
            let later = listener.next_check().filter(|later| !is_urgent && *later > until);
            let later = later.map(|later| (later, number));
            let channel = self.by_name.get_mut(listener.channel());
            let registered =
                channel.and_then(|channel| channel.listeners.get_mut(&listener.owner()));
            if let Some(registered) = registered {
                registered.check = later;
            }
            match later {
                Some(later) => self.checks.insert(later, listener),
                None => return Some(listener),
            };
        }
    }
}

/// The subscription of one acquisition to one key. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscription {
    subscriptions: Arc<Subscriptions>,
    pub(super) listener: Arc<Listener>,
    /// The task that passes messages of others on.
    pub(super) relay: Option<AbortHandle>,
}

impl Subscription {
    /// Whether the subscription is live, so that messages about releases arrive.
    pub fn is_live(&self) -> bool {
        self.listener.is_live()
    }

    /// Resolves as soon as the subscription is live.
    pub async fn live(&self) {
        self.listener.live().await;
    }

    /// The number of releases by other processes so far.
    pub fn releases(&self) -> u64 {
        let channels = self.subscriptions.channels();
        channels.by_name.get(self.listener.channel()).map_or(0, |channel| channel.releases)
    }

    /// The result and the time of the store's last check of the key. The store checks live
    /// subscriptions.
    pub fn last_check(&self) -> Option<(Left, BootInstant)> {
        self.listener.last_check()
    }

    /// See [`Listener::queued`].
    pub fn queued(&self, queued: Queued, sent: BootInstant) {
        self.listener.queued(queued, sent);
    }

    /// Whether the store would report changes of the key of a first claim.
    pub fn can_be_watched(&self) -> bool {
        self.subscriptions.can_watch.load(Ordering::Relaxed)
            && self.listener.ahead() == Some(0)
            && self.listener.is_live()
    }

    /// Requests reports of changes of the key, if the claim is the first one in the queue.
    pub fn watch(&self) {
        if self.can_be_watched() && self.listener.want_watch() {
            self.subscriptions.check_now(&self.listener);
        }
    }

    /// See [`Listener::ahead`].
    pub fn ahead(&self) -> Option<usize> {
        self.listener.ahead()
    }

    /// See [`Listener::take_transfer`].
    pub fn take_transfer(&self) -> Option<LockTransfer> {
        self.listener.take_transfer()
    }

    /// See [`Listener::take_pause`].
    pub fn take_pause(&self) -> Option<BootInstant> {
        self.listener.take_pause()
    }

    /// Resolves at the next wake-up, or at once if there was a wake-up since the last call.
    pub async fn woken(&self) {
        self.listener.woken.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.subscriptions.forget(&self.listener);
        self.relay.iter().for_each(AbortHandle::abort);
    }
}
