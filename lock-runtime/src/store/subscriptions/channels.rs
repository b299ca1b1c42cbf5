//! The channels of one store, and their listeners.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::between;
use crate::capacity::Peak;
use crate::clock::BootInstant;
use crate::store::left::Left;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify, lock};
use crate::user_code::contained;
use crate::wire_format::WireFormat;

/// The longest time between two checks of a key, unless there are very many keys.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The longest time by which a key may be checked early, in the same request as other keys.
pub(super) const GATHER: Duration = Duration::from_millis(250);

/// The listeners of one store.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    pub(super) channels: Mutex<Channels>,
    /// Notified when a channel has to be subscribed.
    pub(super) wanted_some: Notify,
    /// Notified when the first check is planned.
    pub(super) planned: Notify,
    /// Whether all releases happen in this process, so that there is nothing to subscribe to.
    local: bool,
}

#[derive(Debug, Default)]
pub(super) struct Channels {
    pub(super) by_name: HashMap<Arc<str>, Channel>,
    peak: Peak,
    /// The channels to subscribe. Each has listeners.
    pub(super) wanted: BTreeSet<Arc<str>>,
    /// The live channels without listeners, in the order in which their last listener left.
    pub(super) idle: VecDeque<Arc<str>>,
    /// The planned checks, by time. Addresses distinguish checks of one instant.
    pub(super) checks: BTreeMap<(BootInstant, usize), Arc<Listener>>,
}

/// The listeners of one channel.
#[derive(Debug, Default)]
pub(super) struct Channel {
    pub(super) listeners: Vec<Registered>,
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

#[derive(Debug)]
pub(super) struct Registered {
    pub(super) listener: Arc<Listener>,
    /// The time of its entry in [`Channels::checks`].
    pub(super) check: Option<BootInstant>,
}

/// The store's side of one [`Subscription`].
#[derive(Debug)]
pub(crate) struct Listener {
    channel: Arc<str>,
    key: Box<str>,
    format: WireFormat,
    /// Stores one wake-up, so that a wake-up before the wait is not lost.
    pub(super) woken: Notify,
    pub(super) live: AtomicBool,
    became_live: Notify,
    /// The result and the time of the last check.
    last_check: Mutex<Option<(Left, BootInstant)>>,
}

impl Listener {
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn format(&self) -> WireFormat {
        self.format
    }

    /// Whether messages about releases arrive.
    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    pub(super) fn set_live(&self) {
        self.live.store(true, Ordering::Release);
        contained(|| self.became_live.notify_waiters());
    }

    pub(super) fn last_check(&self) -> MutexGuard<'_, Option<(Left, BootInstant)>> {
        lock(&self.last_check)
    }
}

impl Subscriptions {
    /// The subscriptions of a store in this process.
    pub(crate) fn local() -> Arc<Self> {
        Arc::new(Self::new(true))
    }

    /// The subscriptions of a store whose channels have to be subscribed; see
    /// [`take_wanted`](Self::take_wanted).
    #[cfg(feature = "redis")]
    pub(crate) fn remote() -> Arc<Self> {
        Arc::new(Self::new(false))
    }

    fn new(local: bool) -> Self {
        let (wanted_some, planned) = (Notify::new(), Notify::new());
        Self { channels: Mutex::default(), wanted_some, planned, local }
    }

    /// Subscribes to the channel that announces the releases of `key`.
    pub(crate) fn listen(
        self: &Arc<Self>,
        channel: &str,
        key: &str,
        format: WireFormat,
    ) -> Subscription {
        let listener = Arc::new(Listener {
            channel: Arc::from(channel),
            key: Box::from(key),
            format,
            woken: Notify::new(),
            live: AtomicBool::new(self.local),
            became_live: Notify::new(),
            last_check: Mutex::new(None),
        });
        let mut channels = self.channels();
        let name = Arc::clone(&listener.channel);
        let channel = channels.by_name.entry(Arc::clone(&name)).or_default();
        channel.idle_since = None;
        channel.listeners.push(Registered { listener: Arc::clone(&listener), check: None });
        let live = channel.live;
        let (mut planned, mut wanted) = (false, false);
        if live {
            listener.live.store(true, Ordering::Release);
            planned = channels.plan(&listener, next_check());
        } else if !self.local {
            wanted = channels.wanted.insert(name);
        }
        drop(channels);
        if planned {
            self.planned.notify_one();
        }
        if wanted {
            self.wanted_some.notify_one();
        }
        Subscription { subscriptions: Arc::clone(self), listener }
    }

    /// Wakes the listeners of `channel` after a release, by this process or by another one. Returns
    /// their number.
    pub(crate) fn wake(&self, channel: &str, by_another: bool) -> usize {
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

    /// The number of listeners of `channel`.
    pub(crate) fn listeners(&self, channel: &str) -> usize {
        self.channels().by_name.get(channel).map_or(0, |channel| channel.listeners.len())
    }

    /// The result and the time of the last check of a key that has listeners.
    pub(crate) fn last_check(&self, channel: &str, key: &str) -> Option<(Left, BootInstant)> {
        let channels = self.channels();
        let listeners = channels.by_name.get(channel)?.listeners.iter();
        let of_key = listeners.filter(|registered| *registered.listener.key == *key);
        of_key.filter_map(|registered| *registered.listener.last_check()).max_by_key(|(_, at)| *at)
    }

    fn forget(&self, listener: &Arc<Listener>) {
        let mut channels = self.channels();
        let channels = &mut *channels;
        let name = &listener.channel;
        let Some(channel) = channels.by_name.get_mut(name) else { return };
        let is_it = |registered: &Registered| Arc::ptr_eq(&registered.listener, listener);
        let Some(at) = channel.listeners.iter().position(is_it) else { return };
        if let Some(check) = channel.listeners.swap_remove(at).check {
            channels.checks.remove(&(check, address(listener)));
        }
        if !channel.listeners.is_empty() {
            return;
        }
        if self.local || !channel.live {
            channels.remove(name);
            channels.wanted.remove(name);
            return;
        }
        channel.idle_since = Some(BootInstant::now());
        if !std::mem::replace(&mut channel.is_queued, true) {
            channels.idle.push_back(Arc::clone(name));
        }
    }

    pub(super) fn channels(&self) -> MutexGuard<'_, Channels> {
        lock(&self.channels)
    }
}

impl Channel {
    pub(super) fn all(&self) -> Vec<Arc<Listener>> {
        self.listeners.iter().map(|registered| Arc::clone(&registered.listener)).collect()
    }
}

impl Channels {
    pub(super) fn remove(&mut self, name: &str) {
        let before = self.by_name.len();
        self.by_name.remove(name);
        self.peak.give_back(&mut self.by_name, before);
    }

    /// Plans a check for a listener, unless the listener has left or its channel is not live: its
    /// acquisition then polls. Returns whether there is only one planned check.
    pub(super) fn plan(&mut self, listener: &Arc<Listener>, at: BootInstant) -> bool {
        let channel = self.by_name.get_mut(&listener.channel).filter(|channel| channel.live);
        let Some(channel) = channel else { return false };
        let is_it = |one: &&mut Registered| Arc::ptr_eq(&one.listener, listener);
        let Some(registered) = channel.listeners.iter_mut().find(is_it) else { return false };
        if registered.check.is_none() {
            registered.check = Some(at);
            self.checks.insert((at, address(listener)), Arc::clone(listener));
        }
        self.checks.len() == 1
    }

    /// Takes the first planned check, if it is not later than `until`.
    pub(super) fn take_check(&mut self, until: BootInstant) -> Option<Arc<Listener>> {
        let first = self.checks.first_entry().filter(|first| first.key().0 <= until)?;
        let listener = first.remove();
        let channel = self.by_name.get_mut(&listener.channel);
        let registered = channel.and_then(|channel| {
            channel.listeners.iter_mut().find(|one| Arc::ptr_eq(&one.listener, &listener))
        });
        if let Some(registered) = registered {
            registered.check = None;
        }
        Some(listener)
    }
}

/// The time of the next check of a key that was checked just now.
pub(super) fn next_check() -> BootInstant {
    BootInstant::now().after(between(CHECK_INTERVAL * 3 / 4, CHECK_INTERVAL))
}

/// Distinguishes checks of one instant.
pub(super) fn address(listener: &Arc<Listener>) -> usize {
    Arc::as_ptr(listener).addr()
}

/// The next checks.
#[derive(Debug)]
pub(crate) enum DueCheck {
    Now(Vec<Arc<Listener>>),
    At(BootInstant),
    Never,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckResult {
    Free,
    Busy(Left),
    /// The check failed.
    Failed,
}

/// The subscription of one acquisition to one key. Dropping it ends the subscription.
#[derive(Debug)]
pub(crate) struct Subscription {
    subscriptions: Arc<Subscriptions>,
    pub(super) listener: Arc<Listener>,
}

impl Subscription {
    /// Whether the subscription is live, so that messages about releases arrive.
    pub(crate) fn is_live(&self) -> bool {
        self.listener.is_live()
    }

    /// Resolves as soon as the subscription is live.
    pub(crate) async fn live(&self) {
        loop {
            let became_live = self.listener.became_live.notified();
            if self.is_live() {
                return;
            }
            became_live.await;
        }
    }

    /// The number of releases by other processes so far.
    pub(crate) fn releases(&self) -> u64 {
        let channels = self.subscriptions.channels();
        channels.by_name.get(&self.listener.channel).map_or(0, |channel| channel.releases)
    }

    /// The result and the time of the store's last check of the key. The store checks live
    /// subscriptions.
    pub(crate) fn last_check(&self) -> Option<(Left, BootInstant)> {
        *self.listener.last_check()
    }

    /// Resolves at the next wake-up, or at once if there was a wake-up since the last call.
    pub(crate) async fn woken(&self) {
        self.listener.woken.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.subscriptions.forget(&self.listener);
    }
}
