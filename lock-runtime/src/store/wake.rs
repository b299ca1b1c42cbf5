//! Who in this process wants to hear of which key's release. What names a key here is the store's
//! choice: itself, or its channel.
//!
//! A contender subscribes *before* it tries, so that a release between its try and its sleep is
//! not missed: each listener keeps one permit. A subscription is only as good as the connection
//! behind it, so it says when it is live, and a store that had to reconnect wakes everybody. A
//! lost wake-up costs time and never correctness: a remote store looks at the keys of all listeners
//! now and then, and contenders also wake up by themselves.
//!
//! Keys stay subscribed for a moment after their last listener has gone: on a hot key the next
//! one comes at once, and would otherwise pay for the subscription again.
//!
//! Very many keys may be waited for at a time. So what has to be subscribed, given up or looked at is
//! kept in a queue of its own, and nobody searches the map of all channels for it. Nobody is woken
//! with that map locked, because what a waker runs is not ours.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Left;
use crate::clock::BootInstant;
use crate::foreign::contained;
use crate::format::WireFormat;
#[cfg(feature = "redis")]
use crate::protection::Protection;
use crate::room::Peak;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify};

/// The longest time between two looks at a key, while there are few.
const LOOK: Duration = Duration::from_secs(1);

/// How much sooner a key is looked at where that saves a request.
const GATHER: Duration = Duration::from_millis(250);

/// The listeners of one store.
#[derive(Debug)]
pub(crate) struct WakeUps {
    channels: Mutex<Channels>,
    /// Told when a channel is wanted.
    added: Notify,
    /// Told when a look is planned and there was none before.
    planned: Notify,
    /// Whether releases are told by this process itself, with nothing to subscribe to.
    local: bool,
}

#[derive(Debug, Default)]
struct Channels {
    by_name: HashMap<Arc<str>, Channel>,
    peak: Peak,
    /// Those which are to be subscribed, and are not about to be. Each has listeners.
    wanted: BTreeSet<Arc<str>>,
    /// Those which nobody listens to, by when their last listener left. Each is live, and here once.
    idle: VecDeque<Arc<str>>,
    /// The listeners that are to be looked for, by when. Their addresses tell apart those of one
    /// instant.
    looks: BTreeMap<(BootInstant, usize), Arc<Listener>>,
}

/// One key's listeners.
#[derive(Debug, Default)]
struct Channel {
    listeners: Vec<Registered>,
    /// Whether the store has confirmed that it will tell us.
    live: bool,
    /// Whether it was live, and releases may have gone unheard since.
    interrupted: bool,
    /// Since when nobody listens; `None` while somebody does.
    idle_since: Option<BootInstant>,
    /// Whether it is in [`Channels::idle`].
    is_queued: bool,
    /// How many releases by others were heard.
    heard: u64,
    /// Our own ones that are yet to be heard, where that does not tell whose they are.
    own: u64,
}

#[derive(Debug)]
struct Registered {
    listener: Arc<Listener>,
    /// Where it is in [`Channels::looks`], if it is.
    look: Option<BootInstant>,
}

/// One contender's side of a subscription.
#[derive(Debug)]
pub(crate) struct Listener {
    channel: Arc<str>,
    key: Box<str>,
    format: WireFormat,
    /// Holds one permit, so that a wake-up before the wait is not lost.
    woken: Notify,
    live: AtomicBool,
    became_live: Notify,
    /// What the last look has found, and when.
    seen: Mutex<Option<(Left, BootInstant)>>,
}

impl Listener {
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn format(&self) -> WireFormat {
        self.format
    }

    fn set_live(&self) {
        self.live.store(true, Ordering::Release);
        contained(|| self.became_live.notify_waiters());
    }

    fn seen(&self) -> MutexGuard<'_, Option<(Left, BootInstant)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WakeUps {
    /// For a store inside this process.
    pub(crate) fn local() -> Arc<Self> {
        Arc::new(Self::new(true))
    }

    /// For a store whose subscriptions somebody has to make: see [`take_wanted`](Self::take_wanted).
    #[cfg(feature = "redis")]
    pub(crate) fn remote() -> Arc<Self> {
        Arc::new(Self::new(false))
    }

    fn new(local: bool) -> Self {
        let (added, planned) = (Notify::new(), Notify::new());
        Self { channels: Mutex::default(), added, planned, local }
    }

    /// Listens to a channel, which tells of this key's releases.
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
            seen: Mutex::new(None),
        });
        let mut channels = self.channels();
        let name = Arc::clone(&listener.channel);
        let channel = channels.by_name.entry(Arc::clone(&name)).or_default();
        channel.idle_since = None;
        channel.listeners.push(Registered { listener: Arc::clone(&listener), look: None });
        let live = channel.live;
        let (mut planned, mut wanted) = (false, false);
        if live {
            listener.live.store(true, Ordering::Release);
            planned = channels.plan(&listener, next_look());
        } else if !self.local {
            wanted = channels.wanted.insert(name);
        }
        drop(channels);
        if planned {
            self.planned.notify_one();
        }
        if wanted {
            self.added.notify_one();
        }
        Subscription { wake_ups: Arc::clone(self), listener }
    }

    /// Tells the listeners of `channel` that its key was released, by this process or by another
    /// one. Returns how many there are.
    pub(crate) fn wake(&self, channel: &str, by_another: bool) -> usize {
        let mut channels = self.channels();
        let Some(channel) = channels.by_name.get_mut(channel) else { return 0 };
        let own = channel.own.min(u64::from(by_another));
        channel.own -= own;
        channel.heard += u64::from(by_another) - own;
        let listeners = channel.all();
        drop(channels);
        for listener in &listeners {
            contained(|| listener.woken.notify_one());
        }
        listeners.len()
    }

    /// How many listen to `channel`.
    pub(crate) fn listeners(&self, channel: &str) -> usize {
        self.channels().by_name.get(channel).map_or(0, |channel| channel.listeners.len())
    }

    /// What the last look at a key that is listened to has found, and when.
    pub(crate) fn seen(&self, channel: &str, key: &str) -> Option<(Left, BootInstant)> {
        let channels = self.channels();
        let listeners = channels.by_name.get(channel)?.listeners.iter();
        let of_key = listeners.filter(|registered| *registered.listener.key == *key);
        of_key.filter_map(|registered| *registered.listener.seen()).max_by_key(|(_, at)| *at)
    }

    fn forget(&self, listener: &Arc<Listener>) {
        let mut channels = self.channels();
        let channels = &mut *channels;
        let name = &listener.channel;
        let Some(channel) = channels.by_name.get_mut(name) else { return };
        let is_it = |registered: &Registered| Arc::ptr_eq(&registered.listener, listener);
        let Some(at) = channel.listeners.iter().position(is_it) else { return };
        if let Some(look) = channel.listeners.swap_remove(at).look {
            channels.looks.remove(&(look, address(listener)));
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

    /// Plain data; every change to it is complete before anything that could panic.
    fn channels(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    fn all(&self) -> Vec<Arc<Listener>> {
        self.listeners.iter().map(|registered| Arc::clone(&registered.listener)).collect()
    }
}

impl Channels {
    fn remove(&mut self, name: &str) {
        let before = self.by_name.len();
        self.by_name.remove(name);
        self.peak.give_back(&mut self.by_name, before);
    }

    /// Plans a look for a listener, unless it has left or its channel is not live: then it asks by
    /// itself. Returns whether this is the only look that is planned.
    fn plan(&mut self, listener: &Arc<Listener>, at: BootInstant) -> bool {
        let channel = self.by_name.get_mut(&listener.channel).filter(|channel| channel.live);
        let Some(channel) = channel else { return false };
        let is_it = |one: &&mut Registered| Arc::ptr_eq(&one.listener, listener);
        let Some(registered) = channel.listeners.iter_mut().find(is_it) else { return false };
        if registered.look.is_none() {
            registered.look = Some(at);
            self.looks.insert((at, address(listener)), Arc::clone(listener));
        }
        self.looks.len() == 1
    }

    /// The first look that is planned, if it is not later than this.
    fn take_look(&mut self, until: BootInstant) -> Option<Arc<Listener>> {
        let first = self.looks.first_entry().filter(|first| first.key().0 <= until)?;
        let listener = first.remove();
        let channel = self.by_name.get_mut(&listener.channel);
        let registered = channel.and_then(|channel| {
            channel.listeners.iter_mut().find(|one| Arc::ptr_eq(&one.listener, &listener))
        });
        if let Some(registered) = registered {
            registered.look = None;
        }
        Some(listener)
    }
}

/// When a key that was asked for just now is looked at next.
fn next_look() -> BootInstant {
    BootInstant::now().after(LOOK.mul_f64(0.75 + fastrand::f64() / 4.0))
}

fn address(listener: &Arc<Listener>) -> usize {
    Arc::as_ptr(listener).addr()
}

/// What is to be looked at.
#[derive(Debug)]
pub(crate) enum Due {
    Now(Vec<Arc<Listener>>),
    At(BootInstant),
    Never,
}

/// What a look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Free,
    Busy(Left),
    /// There was no answer.
    Nothing,
}

/// What a subscriber to a remote store needs.
#[cfg(feature = "redis")]
impl WakeUps {
    /// Resolves when a channel is wanted.
    pub(crate) async fn added(&self) {
        self.added.notified().await;
    }

    /// Takes the first channels that are to be subscribed, for as long as the next one `fits`. What
    /// becomes of each is to be reported: by [`subscribed`](Self::subscribed), by
    /// [`want_again`](Self::want_again), or by [`disconnected`](Self::disconnected).
    pub(crate) fn take_wanted(&self, mut fits: impl FnMut(&str) -> bool) -> Vec<Arc<str>> {
        let (mut channels, mut taken) = (self.channels(), Vec::new());
        while channels.wanted.first().is_some_and(|name| fits(name)) {
            taken.extend(channels.wanted.pop_first());
        }
        taken
    }

    /// These could not be subscribed, and those that are still listened to are to be once more.
    pub(crate) fn want_again(&self, names: Vec<Arc<str>>) {
        let mut channels = self.channels();
        for name in names {
            if channels.by_name.get(&name).is_some_and(|channel| !channel.live) {
                channels.wanted.insert(name);
            }
        }
    }

    /// Whether anything is subscribed or ought to be.
    pub(crate) fn is_empty(&self) -> bool {
        self.channels().by_name.is_empty()
    }

    /// The store has confirmed the subscriptions to these. Returns those which nobody knows any
    /// more, so that they should be given up again.
    pub(crate) fn subscribed(&self, names: &[Arc<str>]) -> Vec<Arc<str>> {
        let (mut woken, mut orphans, mut planned) = (Vec::new(), Vec::new(), false);
        let (mut channels, look) = (self.channels(), next_look());
        for name in names {
            channels.wanted.remove(name);
            let Some(channel) = channels.by_name.get_mut(name) else {
                orphans.push(Arc::clone(name));
                continue;
            };
            channel.live = true;
            let interrupted = std::mem::take(&mut channel.interrupted);
            for listener in channel.all() {
                planned |= channels.plan(&listener, look);
                woken.push((listener, interrupted));
            }
        }
        drop(channels);
        for (listener, interrupted) in woken {
            listener.set_live();
            if interrupted && Protection::ReconnectWakes.is_on() {
                contained(|| listener.woken.notify_one());
            }
        }
        if planned {
            self.planned.notify_one();
        }
        orphans
    }

    /// The connection was lost, and all subscriptions with it. Everybody is woken now, and once
    /// more when the subscription is back, because a release may have gone unheard before each.
    pub(crate) fn disconnected(&self) {
        let mut guard = self.channels();
        let channels = &mut *guard;
        channels.idle.clear();
        channels.looks.clear();
        channels.by_name.retain(|_, channel| !channel.listeners.is_empty());
        let mut woken = Vec::with_capacity(channels.by_name.len());
        for (name, channel) in &mut channels.by_name {
            channel.interrupted |= channel.live;
            channel.live = false;
            channel.is_queued = false;
            channel.own = 0;
            channels.wanted.insert(Arc::clone(name));
            for registered in &mut channel.listeners {
                registered.look = None;
                registered.listener.live.store(false, Ordering::Release);
                woken.push(Arc::clone(&registered.listener));
            }
        }
        drop(guard);
        if Protection::ReconnectWakes.is_on() {
            for listener in &woken {
                contained(|| listener.woken.notify_one());
            }
        }
        self.added.notify_one();
    }

    /// We are about to release the key of `channel`, and shall hear of that as if another had.
    pub(crate) fn own_release<'a>(&'a self, channel: &'a str) -> OwnRelease<'a> {
        let mut channels = self.channels();
        if let Some(channel) = channels.by_name.get_mut(channel).filter(|channel| channel.live) {
            channel.own += 1;
        }
        OwnRelease { wake_ups: self, channel, told: false }
    }

    /// Whether the store tells us of the releases in `channel`.
    pub(crate) fn is_live(&self, channel: &str) -> bool {
        self.channels().by_name.get(channel).is_some_and(|channel| channel.live)
    }

    /// Forgets and returns the channels that nobody has listened to for `linger`.
    pub(crate) fn take_idle(&self, linger: Duration) -> Vec<Arc<str>> {
        let (now, mut over) = (BootInstant::now(), Vec::new());
        let mut guard = self.channels();
        let channels = &mut *guard;
        // Those that have listeners again, or have lost them again, are here for what was.
        for _ in 0..channels.idle.len() {
            let Some(name) = channels.idle.front() else { break };
            let Some(channel) = channels.by_name.get_mut(name) else {
                channels.idle.pop_front();
                continue;
            };
            match channel.idle_since {
                Some(since) if now.since(since) < linger => {
                    channels.idle.rotate_left(1);
                }
                Some(_) => {
                    let Some(name) = channels.idle.pop_front() else { break };
                    channels.remove(&name);
                    over.push(name);
                }
                None => {
                    channel.is_queued = false;
                    channels.idle.pop_front();
                }
            }
        }
        over
    }

    /// Resolves when a look is planned and there was none before.
    pub(crate) async fn planned(&self) {
        self.planned.notified().await;
    }

    /// Those whose keys are to be looked at now, so many at the most. What was found is to be
    /// reported by [`looked`](Self::looked).
    pub(crate) fn due(&self, now: BootInstant, most: usize) -> Due {
        let mut channels = self.channels();
        match channels.looks.first_key_value() {
            None => return Due::Never,
            Some(((first, _), _)) if *first > now => return Due::At(*first),
            Some(_) => {}
        }
        let until = now.after(GATHER);
        Due::Now(std::iter::from_fn(|| channels.take_look(until)).take(most).collect())
    }

    /// Takes down what was found for each, wakes those who had better try, and plans the next look.
    pub(crate) fn looked(&self, found: impl Iterator<Item = (Arc<Listener>, Found)>) {
        let (now, next) = (BootInstant::now(), next_look());
        let (mut woken, mut planned) = (Vec::new(), false);
        let mut channels = self.channels();
        for (listener, found) in found {
            planned |= channels.plan(&listener, next);
            match found {
                Found::Busy(left) => *listener.seen() = Some((left, now)),
                Found::Free | Found::Nothing => woken.push(listener),
            }
        }
        drop(channels);
        for listener in &woken {
            contained(|| listener.woken.notify_one());
        }
        if planned {
            self.planned.notify_one();
        }
    }
}

/// A release of ours; one of another, if it is dropped before it is known to have been told.
#[cfg(feature = "redis")]
pub(crate) struct OwnRelease<'a> {
    wake_ups: &'a WakeUps,
    channel: &'a str,
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
        let mut channels = self.wake_ups.channels();
        if let (false, Some(channel)) = (self.told, channels.by_name.get_mut(self.channel)) {
            channel.own = channel.own.saturating_sub(1);
        }
    }
}

/// One contender's interest in one key; ends when dropped.
#[derive(Debug)]
pub(crate) struct Subscription {
    wake_ups: Arc<WakeUps>,
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
        let channels = self.wake_ups.channels();
        channels.by_name.get(&self.listener.channel).map_or(0, |channel| channel.heard)
    }

    /// What the store has found when it last looked at the key, and when that was. It looks while
    /// the subscription is live.
    pub(crate) fn seen(&self) -> Option<(Left, BootInstant)> {
        *self.listener.seen()
    }

    /// Resolves at the next wake-up, or at once if one came since the last call.
    pub(crate) async fn woken(&self) {
        self.listener.woken.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.wake_ups.forget(&self.listener);
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

    fn listen(wake_ups: &Arc<WakeUps>, key: &str) -> Subscription {
        wake_ups.listen(key, key, WireFormat::Token)
    }

    #[test]
    fn a_wake_up_before_the_wait_is_not_lost() {
        let wake_ups = WakeUps::local();
        let (one, other) = (listen(&wake_ups, "a"), listen(&wake_ups, "b"));
        wake_ups.wake("a", true);
        assert!(is_ready(one.woken()));
        assert!(!is_ready(one.woken()), "one release is one wake-up");
        assert!(!is_ready(other.woken()));
    }

    #[test]
    fn a_local_subscription_is_live_at_once_and_leaves_nothing_behind() {
        let wake_ups = WakeUps::local();
        let subscription = listen(&wake_ups, "a");
        assert!(is_ready(subscription.live()));
        drop(subscription);
        assert!(wake_ups.channels().by_name.is_empty());
    }

    #[cfg(feature = "redis")]
    mod remote {
        use super::*;

        fn names(names: &[&str]) -> Vec<Arc<str>> {
            names.iter().map(|name| Arc::from(*name)).collect()
        }

        fn wanted(wake_ups: &WakeUps) -> Vec<Arc<str>> {
            wake_ups.take_wanted(|_| true)
        }

        /// Has these subscribed.
        fn subscribe(wake_ups: &WakeUps, channels: &[&str]) {
            assert_eq!(wake_ups.subscribed(&names(channels)), names(&[]));
        }

        #[test]
        fn a_subscription_is_live_while_the_store_says_so() {
            let wake_ups = WakeUps::remote();
            let subscription = listen(&wake_ups, "a");
            assert!(!is_ready(subscription.live()));
            assert_eq!(wanted(&wake_ups), names(&["a"]));

            subscribe(&wake_ups, &["a"]);
            assert!(is_ready(subscription.live()));
            assert!(wanted(&wake_ups).is_empty());

            wake_ups.disconnected();
            assert!(!is_ready(subscription.live()));
            assert!(is_ready(subscription.woken()), "a release may have gone unheard");
            assert_eq!(wanted(&wake_ups), names(&["a"]));

            subscribe(&wake_ups, &["a"]);
            assert!(is_ready(subscription.woken()), "or before the subscription was back");
        }

        #[test]
        fn channels_are_wanted_bit_by_bit_and_once_each() {
            let wake_ups = WakeUps::remote();
            let listeners = ["c", "a", "b", "a"].map(|key| listen(&wake_ups, key));
            let mut fits = [true, true].into_iter();
            assert_eq!(wake_ups.take_wanted(|_| fits.next().is_some()), names(&["a", "b"]));
            wake_ups.want_again(names(&["a", "b"]));
            subscribe(&wake_ups, &["b"]);
            assert_eq!(wanted(&wake_ups), names(&["a", "c"]));
            wake_ups.want_again(names(&["a", "b", "c"]));
            drop(listeners);
            assert!(wanted(&wake_ups).is_empty(), "nobody listens any more");
            assert_eq!(wake_ups.subscribed(&names(&["a"])), names(&["a"]));
        }

        #[test]
        fn an_own_release_is_told_from_those_of_others_by_their_number() {
            let wake_ups = WakeUps::remote();
            let subscription = listen(&wake_ups, "a");
            wake_ups.own_release("a").told();
            subscribe(&wake_ups, &["a"]);
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
            subscribe(&wake_ups, &["a"]);
            wake_ups.wake("a", true);
            assert_eq!(subscription.heard(), 3, "it went unheard");
        }

        #[test]
        fn a_subscription_lingers_for_the_next_listener() {
            let wake_ups = WakeUps::remote();
            drop(listen(&wake_ups, "never live"));
            assert!(wake_ups.is_empty());

            let subscription = listen(&wake_ups, "a");
            subscribe(&wake_ups, &["a"]);
            drop(subscription);
            assert!(wake_ups.take_idle(Duration::from_secs(3600)).is_empty());
            assert!(is_ready(listen(&wake_ups, "a").live()));
            let staying = listen(&wake_ups, "a");
            assert!(wake_ups.take_idle(Duration::ZERO).is_empty());
            drop(staying);
            assert_eq!(wake_ups.take_idle(Duration::ZERO), names(&["a"]));
            assert!(wake_ups.is_empty());
            let late = wake_ups.subscribed(&names(&["a"]));
            assert_eq!(late, names(&["a"]), "an answer that comes too late is given up again");
        }

        /// The keys that are due after so long.
        fn due(wake_ups: &WakeUps, after: Duration) -> Vec<Arc<Listener>> {
            match wake_ups.due(BootInstant::now().after(after), 2) {
                Due::Now(listeners) => listeners,
                Due::At(_) | Due::Never => Vec::new(),
            }
        }

        #[test]
        fn the_keys_of_live_subscriptions_are_looked_at_every_second() {
            let wake_ups = WakeUps::remote();
            let one = listen(&wake_ups, "a");
            assert!(matches!(wake_ups.due(BootInstant::now(), 1), Due::Never), "it is not live");
            subscribe(&wake_ups, &["a"]);
            let other = listen(&wake_ups, "a");
            assert!(due(&wake_ups, Duration::ZERO).is_empty(), "both have just asked");
            for _ in 0..3 {
                let looked_at = due(&wake_ups, LOOK);
                assert_eq!(looked_at.len(), 2, "both in one go");
                assert!(due(&wake_ups, LOOK * 9).is_empty(), "they are being looked at");
                let found = Found::Busy(Left::Forever);
                wake_ups.looked(looked_at.into_iter().map(|listener| (listener, found)));
                assert_eq!(one.seen().map(|(left, _)| left), Some(Left::Forever));
                assert!(!is_ready(one.woken()));
            }
            let seen = wake_ups.seen("a", "a");
            assert_eq!(seen.map(|(left, _)| left), Some(Left::Forever));
            let looked_at = due(&wake_ups, LOOK);
            drop(other);
            wake_ups.looked(looked_at.into_iter().map(|listener| (listener, Found::Free)));
            assert!(is_ready(one.woken()), "it had better try");
            assert_eq!(due(&wake_ups, LOOK).len(), 1, "one of them has left");
            drop(one);
            assert!(wake_ups.channels().looks.is_empty());
        }

        #[test]
        fn nothing_is_looked_at_while_the_connection_is_lost() {
            let wake_ups = WakeUps::remote();
            let subscription = listen(&wake_ups, "a");
            subscribe(&wake_ups, &["a"]);
            let looked_at = due(&wake_ups, LOOK);
            wake_ups.disconnected();
            wake_ups.looked(looked_at.into_iter().map(|listener| (listener, Found::Nothing)));
            assert!(due(&wake_ups, LOOK).is_empty());
            assert!(is_ready(subscription.woken()), "it finds out by itself");
        }
    }
}
