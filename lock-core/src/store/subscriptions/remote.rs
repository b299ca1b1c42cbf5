//! The methods of [`Subscriptions`] for stores whose channels have to be subscribed.

use std::sync::Arc;
use std::time::Duration;

use super::channels::{Channel, Channels, GATHER, Interruption, PlannedCheck, Subscriptions};
use super::inbox_queue::InboxState;
use super::waiting_claim::{CHECK_INTERVAL, CheckResult, Listener, next_check};
use crate::backoff::between;
use crate::clock::BootInstant;
use crate::store::hold_reports::ChangedKeys;
use crate::store::layout::Layout;
use crate::store::queueing::QueueTicket;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::user_code::contained;

/// How long a channel of the client stays subscribed after its last listener has left. It serves all
/// keys, or those of one slot of a cluster.
const CLIENT_LINGER: Duration = Duration::from_secs(30);

/// The number of keys that are checked in each [`CHECK_INTERVAL`], if the store reports their changes.
const WATCHED_PER_INTERVAL: u32 = 1000;

/// The next checks.
#[derive(Debug)]
pub enum DueCheck {
    Now(Vec<Arc<Listener>>),
    At(BootInstant),
    Never,
}

impl Subscriptions {
    /// Resolves when a channel has to be subscribed.
    pub async fn wanted(&self) {
        self.wanted_some.notified().await;
    }

    /// Takes the first channels to subscribe, as long as the next one `fits`. The caller
    /// reports the outcome for each channel: to [`subscribed`](Self::subscribed), to
    /// [`want_again`](Self::want_again), or to [`disconnected`](Self::disconnected).
    pub fn take_wanted(&self, mut fits: impl FnMut(&str) -> bool) -> Vec<Arc<str>> {
        let (mut channels, mut taken) = (self.channels(), Vec::new());
        while channels.wanted.first().is_some_and(|name| fits(name)) {
            taken.extend(channels.wanted.pop_first());
        }
        taken
    }

    /// Queues channels again that could not be subscribed, if they still have listeners. Wakes the
    /// listeners that [`resubscribe`](Self::resubscribe) has not woken.
    pub fn want_again(&self, names: Vec<Arc<str>>) {
        let (mut guard, mut woken) = (self.channels(), Vec::new());
        let channels = &mut *guard;
        for name in names {
            let channel = channels.by_name.get_mut(&name).filter(|channel| !channel.live);
            let Some(channel) = channel else { continue };
            if channel.interruption == Interruption::Unannounced {
                channel.interruption = Interruption::Announced;
                woken.extend(channel.all());
            }
            channels.wanted.insert(name);
        }
        drop(guard);
        wake_interrupted(&woken);
    }

    /// Whether there is no channel, live or wanted.
    pub fn is_empty(&self) -> bool {
        self.channels().by_name.is_empty()
    }

    /// Whether nobody waits for a message about a lock.
    pub fn is_quiet(&self) -> bool {
        self.channels().by_name.values().all(|channel| channel.listeners.is_empty())
    }

    /// The time until the next look for channels to unsubscribe: `interval` while there are channels
    /// of keys. `None` if there is nothing to unsubscribe.
    pub fn next_look(&self, interval: Duration) -> Option<Duration> {
        let channels = self.channels();
        if channels.of_keys > 0 {
            Some(interval)
        } else {
            (!channels.idle.is_empty()).then_some(CLIENT_LINGER)
        }
    }

    /// How often all subscriptions were lost until now; see [`subscribed_since`](Self::subscribed_since).
    pub fn losses(&self) -> u64 {
        self.channels().losses
    }

    /// Does the same as [`subscribed`](Self::subscribed), unless all subscriptions were lost since there were `losses`
    /// of them. The channel is wanted again then.
    pub fn subscribed_since(&self, name: &Arc<str>, losses: u64) -> Vec<Arc<str>> {
        let channels = self.channels();
        if channels.losses != losses {
            let is_wanted = channels.by_name.contains_key(name);
            return if is_wanted { Vec::new() } else { vec![Arc::clone(name)] };
        }
        self.confirm(channels, std::slice::from_ref(name))
    }

    /// Marks channels as live that the store has confirmed. Returns the channels without an entry,
    /// which the caller unsubscribes.
    pub fn subscribed(&self, names: &[Arc<str>]) -> Vec<Arc<str>> {
        self.confirm(self.channels(), names)
    }

    fn confirm(&self, mut channels: MutexGuard<'_, Channels>, names: &[Arc<str>]) -> Vec<Arc<str>> {
        let (mut woken, mut orphans, mut planned) = (Vec::new(), Vec::new(), false);
        let (mut inboxes, check) = (Vec::new(), next_check());
        for name in names {
            channels.wanted.remove(name);
            let Some(channel) = channels.by_name.get_mut(name) else {
                orphans.push(Arc::clone(name));
                continue;
            };
            channel.live = true;
            if let Some(inbox) = &channel.inbox {
                inbox.set_state(InboxState::Live);
                inboxes.push(Arc::clone(inbox));
            }
            let interruption = std::mem::take(&mut channel.interruption);
            let interrupted = interruption != Interruption::None;
            for listener in channel.all() {
                planned |= channels.plan(&listener, check);
                woken.push((listener, interrupted));
            }
        }
        drop(channels);
        for inbox in inboxes {
            inbox.announce();
        }
        for (listener, interrupted) in woken {
            listener.set_live();
            if interrupted {
                wake_interrupted(std::slice::from_ref(&listener));
            }
        }
        if planned {
            self.planned.notify_one();
        }
        orphans
    }

    /// Queues all channels again, because the connection and all subscriptions were lost. Wakes all
    /// listeners now, and once more when their subscriptions are live again, because releases may
    /// have been missed before both.
    pub fn disconnected(&self) {
        let mut guard = self.channels();
        let channels = &mut *guard;
        channels.losses += 1;
        channels.idle.clear();
        channels.checks.clear();
        channels.retain(Channel::is_wanted);
        let mut woken = Vec::with_capacity(channels.by_name.len());
        for (name, channel) in &mut channels.by_name {
            channel.is_queued = false;
            channels.wanted.insert(Arc::clone(name));
            channel.interrupt(Interruption::Announced, |listener, _| woken.push(listener));
        }
        drop(guard);
        self.interrupted(&woken);
    }

    /// Does the same for these channels only, because their connection was lost or their slots have
    /// moved to another server.
    pub fn disconnected_some<'a>(&self, names: impl Iterator<Item = &'a Arc<str>>) {
        self.interrupted(&self.interrupt(names, Interruption::Announced));
    }

    /// Does the same for these channels, but wakes the listeners only once: when their subscriptions
    /// are live again, which is expected at once, or when this has failed.
    pub fn resubscribe<'a>(&self, names: impl Iterator<Item = &'a Arc<str>>) {
        self.interrupt(names, Interruption::Unannounced);
        self.wanted_some.notify_one();
    }

    /// Queues these channels again, because their subscriptions were lost. Returns their listeners.
    fn interrupt<'a>(
        &self,
        names: impl Iterator<Item = &'a Arc<str>>,
        interruption: Interruption,
    ) -> Vec<Arc<Listener>> {
        let mut guard = self.channels();
        let channels = &mut *guard;
        let mut listeners = Vec::new();
        for name in names {
            let Some(channel) = channels.by_name.get_mut(name) else { continue };
            if !channel.is_wanted() {
                channels.remove(name);
                continue;
            }
            channels.wanted.insert(Arc::clone(name));
            let checks = &mut channels.checks;
            channel.interrupt(interruption, |listener, check| {
                if let Some(check) = check {
                    checks.remove(&check);
                }
                listeners.push(listener);
            });
        }
        listeners
    }

    /// Wakes listeners whose channels are not live any more.
    fn interrupted(&self, listeners: &[Arc<Listener>]) {
        wake_interrupted(listeners);
        self.wanted_some.notify_one();
    }

    /// Expects a message of this process, which is about to release the key of `channel`. In the
    /// layout of the key, the message does not name its sender.
    pub fn own_release<'a>(&'a self, channel: &'a str) -> OwnRelease<'a> {
        let mut channels = self.channels();
        if let Some(channel) = channels.by_name.get_mut(channel).filter(|channel| channel.live) {
            channel.own += 1;
        }
        OwnRelease { subscriptions: self, channel, published: false }
    }

    /// Whether `channel` is live.
    pub fn is_live(&self, channel: &str) -> bool {
        self.channels().by_name.get(channel).is_some_and(|channel| channel.live)
    }

    /// Removes and returns the channels of keys that have had no listeners for `linger`, and those of
    /// the client that have had none for much longer.
    pub fn take_idle(&self, linger: Duration) -> Vec<Arc<str>> {
        let (now, mut over) = (BootInstant::now(), Vec::new());
        let mut guard = self.channels();
        let channels = &mut *guard;
        // An entry may be outdated: the channel may have listeners again.
        for _ in 0..channels.idle.len() {
            let Some(name) = channels.idle.front() else { break };
            let Some(channel) = channels.by_name.get_mut(name) else {
                channels.idle.pop_front();
                continue;
            };
            match channel.idle_since {
                Some(since) if now.since(since) < channel.linger(linger) => {
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

    /// Resolves when the first check is planned.
    pub async fn planned(&self) {
        self.planned.notified().await;
    }

    /// Takes at most `most` listeners whose keys have to be checked now. The caller reports results
    /// to [`checked`](Self::checked).
    pub fn due(&self, now: BootInstant, most: usize) -> DueCheck {
        let mut channels = self.channels();
        match channels.checks.first_key_value() {
            None => return DueCheck::Never,
            Some(((first, _), _)) if *first > now => return DueCheck::At(*first),
            Some(_) => {}
        }
        let until = now.after(GATHER);
        DueCheck::Now(std::iter::from_fn(|| channels.take_check(until)).take(most).collect())
    }

    /// Stores the results of checks that were sent at `sent`, each about a claim with a ticket, wakes
    /// the listeners for which an attempt is worthwhile, and plans the next checks. The rest of a
    /// lease counts from the sending, because the server may have answered long before the answer
    /// arrives.
    pub fn checked(
        &self,
        found: impl Iterator<Item = (Arc<Listener>, Option<QueueTicket>, CheckResult)>,
        sent: BootInstant,
    ) {
        let (now, can_watch) = (BootInstant::now(), self.can_watch.load(Ordering::Relaxed));
        let (mut woken, mut planned) = (Vec::new(), false);
        let mut channels = self.channels();
        let (next, next_watched) = (next_check(), channels.next_check_of_watched());
        for (listener, ticket, found) in found {
            if let CheckResult::Busy(left) | CheckResult::Queued(left, _) = found
                && let Some(of_key) = channels.by_key.get_mut(&listener.lock())
            {
                let newer = of_key.last_check.filter(|(_, at)| *at > sent);
                of_key.last_check = newer.or(Some((left, sent)));
            }
            match found {
                CheckResult::Busy(left) => listener.checked(ticket, (left, None), sent),
                CheckResult::Queued(left, ahead) => {
                    listener.checked(ticket, (left, Some(ahead)), sent);
                }
                CheckResult::Free | CheckResult::Failed => woken.push(Arc::clone(&listener)),
            }
            let next = match listener.is_watched() {
                _ if can_watch && listener.want_watch() => now,
                true => next_watched,
                false => next,
            };
            planned |= channels.plan_by(&listener, next);
        }
        drop(channels);
        for listener in &woken {
            contained(|| listener.woken.notify_one());
        }
        if planned {
            self.planned.notify_one();
        }
    }

    /// Checks the keys that have changed, if claims wait for them and the store was asked to report
    /// it.
    pub fn changed(&self, keys: ChangedKeys) {
        let (mut channels, now, mut planned) = (self.channels(), BootInstant::now(), false);
        let changed: Vec<_> = match keys {
            ChangedKeys::These(keys) => {
                // The other layouts have no queues.
                let layouts = [Layout::TOKEN, Layout::ReadWrite, Layout::Semaphore];
                let with_layouts = |key: Arc<str>| layouts.map(|layout| (layout, Arc::clone(&key)));
                let locks = keys.into_iter().flat_map(with_layouts);
                let waiting = locks.filter_map(|lock| channels.by_key.get(&lock));
                waiting.flat_map(|of_key| of_key.all.values()).cloned().collect()
            }
            ChangedKeys::Any => {
                let waiting = channels.by_key.values();
                waiting.flat_map(|of_key| of_key.all.values()).cloned().collect()
            }
        };
        for listener in changed {
            if let Some(at) = listener.changed(now) {
                planned |= channels.plan_by(&listener, at);
            }
        }
        drop(channels);
        if planned {
            self.planned.notify_one();
        }
    }
}

impl Channels {
    /// The time of the next check of a key that was checked just now, and of which the store reports
    /// changes. The more there are, the later.
    fn next_check_of_watched(&self) -> BootInstant {
        let count = u32::try_from(self.checks.len()).unwrap_or(u32::MAX);
        let interval = CHECK_INTERVAL * count / WATCHED_PER_INTERVAL;
        let interval = interval.clamp(CHECK_INTERVAL, CHECK_INTERVAL * 8);
        BootInstant::now().after(between(interval * 3 / 4, interval))
    }
}

impl Channel {
    /// How long the channel stays subscribed without listeners, if one of a key does so for `of_key`.
    fn linger(&self, of_key: Duration) -> Duration {
        if self.is_of_client { CLIENT_LINGER } else { of_key }
    }

    /// The channel is not live any more. Calls `each` with each listener and the time of its planned
    /// check, which does not take place.
    fn interrupt(
        &mut self,
        interruption: Interruption,
        mut each: impl FnMut(Arc<Listener>, Option<PlannedCheck>),
    ) {
        if self.live || self.interruption == Interruption::Unannounced {
            self.interruption = interruption;
        }
        self.live = false;
        if let Some(inbox) = &self.inbox {
            // Nobody waits for this state.
            inbox.set_state(InboxState::Connecting);
        }
        self.own = 0;
        for registered in self.listeners.values_mut() {
            registered.listener.live.store(false, Ordering::Release);
            registered.listener.end_watch();
            each(Arc::clone(&registered.listener), registered.check.take());
        }
    }
}

/// Wakes listeners whose channels are not live, or were not live, because releases may have been
/// missed.
fn wake_interrupted(listeners: &[Arc<Listener>]) {
    for listener in listeners {
        contained(|| listener.woken.notify_one());
    }
}

/// A release by this process. If the value is dropped before [`published`](Self::published), no
/// message is expected.
pub struct OwnRelease<'a> {
    subscriptions: &'a Subscriptions,
    channel: &'a str,
    published: bool,
}

impl OwnRelease<'_> {
    /// Records that the message was published.
    pub fn published(mut self) {
        self.published = true;
    }
}

impl Drop for OwnRelease<'_> {
    fn drop(&mut self) {
        let mut channels = self.subscriptions.channels();
        if let (false, Some(channel)) = (self.published, channels.by_name.get_mut(self.channel)) {
            channel.own = channel.own.saturating_sub(1);
        }
    }
}
