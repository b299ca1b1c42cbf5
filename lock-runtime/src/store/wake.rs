//! Who in this process wants to hear of which key's release. What names a key here is the store's
//! choice: itself, or its channel.
//!
//! A contender subscribes *before* it tries, so that a release between its try and its sleep is
//! not missed: each listener keeps one permit. A subscription is only as good as the connection
//! behind it, so it says when it is live, and a store that had to reconnect wakes everybody. A
//! lost wake-up costs time and never correctness: contenders also wake up by themselves.
//!
//! Keys stay subscribed for a moment after their last listener has gone: on a hot key the next
//! one comes at once, and would otherwise pay for the subscription again.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
#[cfg(feature = "redis")]
use std::time::Duration;

use crate::clock::BootInstant;
#[cfg(feature = "redis")]
use crate::protection::Protection;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify};

/// The listeners of one store.
#[derive(Debug)]
pub(crate) struct WakeUps {
    channels: Mutex<HashMap<Arc<str>, Channel>>,
    /// Told when a key is first listened to.
    added: Notify,
    /// Whether releases are told by this process itself, with nothing to subscribe to.
    local: bool,
}

/// One key's listeners.
#[derive(Debug, Default)]
struct Channel {
    listeners: Vec<Arc<Listener>>,
    /// Whether the store has confirmed that it will tell us.
    live: bool,
    /// Whether it was live, and releases may have gone unheard since.
    interrupted: bool,
    /// Since when nobody listens; `None` while somebody does.
    idle_since: Option<BootInstant>,
    /// How many releases by others were heard.
    heard: u64,
    /// Our own ones that are yet to be heard, where that does not tell whose they are.
    own: u64,
}

#[derive(Debug, Default)]
struct Listener {
    /// Holds one permit, so that a wake-up before the wait is not lost.
    woken: Notify,
    live: AtomicBool,
    became_live: Notify,
}

impl Listener {
    fn set_live(&self) {
        self.live.store(true, Ordering::Release);
        self.became_live.notify_waiters();
    }
}

impl WakeUps {
    /// For a store inside this process.
    pub(crate) fn local() -> Arc<Self> {
        Arc::new(Self { channels: Mutex::default(), added: Notify::new(), local: true })
    }

    /// For a store whose subscriptions somebody has to make: see [`wanted`](Self::wanted).
    #[cfg(feature = "redis")]
    pub(crate) fn remote() -> Arc<Self> {
        Arc::new(Self { channels: Mutex::default(), added: Notify::new(), local: false })
    }

    pub(crate) fn listen(self: &Arc<Self>, key: &str) -> Subscription {
        let listener = Arc::new(Listener::default());
        let key: Arc<str> = Arc::from(key);
        let mut channels = self.channels();
        let channel = channels.entry(Arc::clone(&key)).or_default();
        channel.idle_since = None;
        if self.local || channel.live {
            listener.set_live();
        } else {
            self.added.notify_one();
        }
        channel.listeners.push(Arc::clone(&listener));
        Subscription { wake_ups: Arc::clone(self), key, listener }
    }

    /// Tells the listeners of `key` that it was released, by this process or by another one. Returns how
    /// many there are.
    pub(crate) fn wake(&self, key: &str, by_another: bool) -> usize {
        let mut channels = self.channels();
        let Some(channel) = channels.get_mut(key) else { return 0 };
        let own = channel.own.min(u64::from(by_another));
        channel.own -= own;
        channel.heard += u64::from(by_another) - own;
        channel.listeners.iter().for_each(|listener| listener.woken.notify_one());
        channel.listeners.len()
    }

    /// How many listen to `key`.
    pub(crate) fn listeners(&self, key: &str) -> usize {
        self.channels().get(key).map_or(0, |channel| channel.listeners.len())
    }

    fn forget(&self, key: &Arc<str>, listener: &Arc<Listener>) {
        let mut channels = self.channels();
        let Some(channel) = channels.get_mut(key) else { return };
        channel.listeners.retain(|other| !Arc::ptr_eq(other, listener));
        if !channel.listeners.is_empty() {
            return;
        }
        if self.local || !channel.live {
            channels.remove(key);
        } else {
            channel.idle_since = Some(BootInstant::now());
        }
    }

    /// Plain data; every change to it is complete before anything that could panic.
    fn channels(&self) -> MutexGuard<'_, HashMap<Arc<str>, Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a subscriber to a remote store needs.
#[cfg(feature = "redis")]
impl WakeUps {
    /// Resolves when a key has been listened to that may not be subscribed yet.
    pub(crate) async fn added(&self) {
        self.added.notified().await;
    }

    /// The keys that are listened to and not subscribed.
    pub(crate) fn wanted(&self) -> Vec<Arc<str>> {
        let channels = self.channels();
        channels.iter().filter(|(_, c)| !c.live).map(|(key, _)| Arc::clone(key)).collect()
    }

    /// Whether anything is subscribed or ought to be.
    pub(crate) fn is_empty(&self) -> bool {
        self.channels().is_empty()
    }

    /// The store has confirmed the subscription to `key`. Returns false if nobody knows it any
    /// more, so that it should be given up again.
    pub(crate) fn subscribed(&self, key: &str) -> bool {
        let mut channels = self.channels();
        let Some(channel) = channels.get_mut(key) else { return false };
        channel.live = true;
        let interrupted = std::mem::take(&mut channel.interrupted);
        for listener in &channel.listeners {
            listener.set_live();
            if interrupted && Protection::ReconnectWakes.is_on() {
                listener.woken.notify_one();
            }
        }
        true
    }

    /// The connection was lost, and all subscriptions with it. Everybody is woken now, and once
    /// more when the subscription is back, because a release may have gone unheard before each.
    pub(crate) fn disconnected(&self) {
        let mut channels = self.channels();
        channels.retain(|_, channel| !channel.listeners.is_empty());
        for channel in channels.values_mut() {
            channel.interrupted |= channel.live;
            channel.live = false;
            channel.own = 0;
            for listener in &channel.listeners {
                listener.live.store(false, Ordering::Release);
                if Protection::ReconnectWakes.is_on() {
                    listener.woken.notify_one();
                }
            }
        }
        drop(channels);
        self.added.notify_one();
    }

    /// We are about to release `key`, and shall hear of that as if another had.
    pub(crate) fn own_release<'a>(&'a self, key: &'a str) -> OwnRelease<'a> {
        if let Some(channel) = self.channels().get_mut(key).filter(|channel| channel.live) {
            channel.own += 1;
        }
        OwnRelease { wake_ups: self, key, told: false }
    }

    /// Whether the store tells us of the releases of `key`.
    pub(crate) fn is_live(&self, key: &str) -> bool {
        self.channels().get(key).is_some_and(|channel| channel.live)
    }

    /// Forgets and returns the keys that nobody has listened to for `linger`.
    pub(crate) fn take_idle(&self, linger: Duration) -> Vec<Arc<str>> {
        let now = BootInstant::now();
        let mut idle = Vec::new();
        self.channels().retain(|key, channel| {
            let over = channel.idle_since.is_some_and(|since| now.since(since) >= linger);
            if over {
                idle.push(Arc::clone(key));
            }
            !over
        });
        idle
    }
}

/// A release of ours; one of another, if it is dropped before it is known to have been told.
#[cfg(feature = "redis")]
pub(crate) struct OwnRelease<'a> {
    wake_ups: &'a WakeUps,
    key: &'a str,
    told: bool,
}

#[cfg(feature = "redis")]
impl OwnRelease<'_> {
    /// Whoever listens hears of it, or has done so.
    pub(crate) fn told(mut self) {
        self.told = true;
    }
}

#[cfg(feature = "redis")]
impl Drop for OwnRelease<'_> {
    fn drop(&mut self) {
        if let (false, Some(channel)) = (self.told, self.wake_ups.channels().get_mut(self.key)) {
            channel.own = channel.own.saturating_sub(1);
        }
    }
}

/// One contender's interest in one key; ends when dropped.
#[derive(Debug)]
pub(crate) struct Subscription {
    wake_ups: Arc<WakeUps>,
    key: Arc<str>,
    listener: Arc<Listener>,
}

impl Subscription {
    /// Whether releases are heard.
    pub(crate) fn is_live(&self) -> bool {
        self.listener.live.load(Ordering::Acquire)
    }

    /// Resolves as soon as releases are heard.
    pub(crate) async fn live(&self) {
        loop {
            let became_live = self.listener.became_live.notified();
            if self.is_live() {
                return;
            }
            became_live.await;
        }
    }

    /// How many releases by others were heard of this key by now.
    pub(crate) fn heard(&self) -> u64 {
        self.wake_ups.channels().get(&self.key).map_or(0, |channel| channel.heard)
    }

    /// Resolves at the next wake-up, or at once if one came since the last call.
    pub(crate) async fn woken(&self) {
        self.listener.woken.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.wake_ups.forget(&self.key, &self.listener);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ready(future: impl Future<Output = ()>) -> bool {
        let mut future = std::pin::pin!(future);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        future.as_mut().poll(&mut cx).is_ready()
    }

    #[test]
    fn a_wake_up_before_the_wait_is_not_lost() {
        let wake_ups = WakeUps::local();
        let one = wake_ups.listen("a");
        let other = wake_ups.listen("b");
        wake_ups.wake("a", true);
        assert!(is_ready(one.woken()));
        assert!(!is_ready(one.woken()), "one release is one wake-up");
        assert!(!is_ready(other.woken()));
    }

    #[test]
    fn a_local_subscription_is_live_at_once_and_leaves_nothing_behind() {
        let wake_ups = WakeUps::local();
        let subscription = wake_ups.listen("a");
        assert!(is_ready(subscription.live()));
        drop(subscription);
        assert!(wake_ups.channels().is_empty());
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_remote_subscription_is_live_while_the_store_says_so() {
        let wake_ups = WakeUps::remote();
        let subscription = wake_ups.listen("a");
        assert!(!is_ready(subscription.live()));
        assert_eq!(wake_ups.wanted(), [Arc::from("a")]);

        assert!(wake_ups.subscribed("a"));
        assert!(is_ready(subscription.live()));
        assert!(wake_ups.wanted().is_empty());

        wake_ups.disconnected();
        assert!(!is_ready(subscription.live()));
        assert!(is_ready(subscription.woken()), "a release may have gone unheard");
        assert_eq!(wake_ups.wanted(), [Arc::from("a")]);

        wake_ups.subscribed("a");
        assert!(is_ready(subscription.woken()), "or before the subscription was back");
    }

    #[cfg(feature = "redis")]
    #[test]
    fn an_own_release_is_told_from_those_of_others_by_their_number() {
        let wake_ups = WakeUps::remote();
        let subscription = wake_ups.listen("a");
        wake_ups.own_release("a").told();
        wake_ups.subscribed("a");
        wake_ups.wake("a", true);
        assert_eq!(subscription.heard(), 1, "what was told before it listened is not heard");

        let (own, failed) = (wake_ups.own_release("a"), wake_ups.own_release("a"));
        drop(failed);
        wake_ups.wake("a", true);
        own.told();
        assert_eq!(subscription.heard(), 1);
        assert!(is_ready(subscription.woken()), "it may be free all the same");
        wake_ups.wake("a", true);
        assert_eq!(subscription.heard(), 2);

        wake_ups.own_release("a").told();
        wake_ups.disconnected();
        wake_ups.subscribed("a");
        wake_ups.wake("a", true);
        assert_eq!(subscription.heard(), 3, "it went unheard");
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_remote_subscription_lingers_for_the_next_listener() {
        let wake_ups = WakeUps::remote();
        drop(wake_ups.listen("never live"));
        assert!(wake_ups.is_empty());

        let subscription = wake_ups.listen("a");
        wake_ups.subscribed("a");
        drop(subscription);
        assert!(wake_ups.take_idle(Duration::from_secs(3600)).is_empty());
        assert!(is_ready(wake_ups.listen("a").live()));
        assert_eq!(wake_ups.take_idle(Duration::ZERO), [Arc::from("a")]);
        assert!(wake_ups.is_empty());
        assert!(!wake_ups.subscribed("a"), "an answer that comes too late is given up again");
    }
}
