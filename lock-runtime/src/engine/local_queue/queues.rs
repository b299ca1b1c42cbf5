//! The queues of all keys, and the schedule of their checks.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, RandomState};
use std::sync::Arc;
use std::time::Duration;

use super::queue::{
    HandedOff, HashedKey, KeyStatus, LocalQueue, Offered, PassThroughHasher, Wakers,
};
use crate::capacity::Peak;
use crate::clock::BootInstant;
use crate::engine::fairness::yielding::{Yield, Yields};
use crate::runtime::Caller;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify, lock};

/// The time between two checks of the offers. It is longer than a runtime needs to poll a task that
/// was woken, even on a busy machine.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The time between two patrols. A patrol visits holders that are not known to be ready.
pub(super) const PATROL_INTERVAL: Duration = Duration::from_millis(250);

/// The queues of all keys of one client.
#[derive(Debug)]
pub(crate) struct LocalQueues<H: HandedOff> {
    /// The number of patrols after which a runtime without a sign of life counts as stuck.
    pub(super) max_patrols: u32,
    /// Keys are hashed with a random seed, because users may control them.
    hasher: RandomState,
    state: Mutex<Queues<H>>,
    /// The number of waiters, over all keys. Written with `state` locked, read without.
    pub(super) queued: AtomicUsize,
    /// The number of locks that linger. Written with `state` locked, read without.
    pub(super) lingering: AtomicUsize,
    /// Whether any key has to be yielded to other processes. Written with `state` locked, read
    /// without.
    has_yields: AtomicBool,
    /// A copy of the field in `state`. Written with `state` locked, read without.
    pub(super) closed: AtomicBool,
    /// Notified when a check is needed earlier than planned.
    pub(super) check_needed: Notify,
}

#[cfg(test)]
impl<H: HandedOff> Default for LocalQueues<H> {
    fn default() -> Self {
        Self::new(Duration::from_secs(3))
    }
}

#[derive(Debug)]
pub(super) struct Queues<H: HandedOff> {
    /// The queues of the keys whose permit has a holder or is on offer.
    pub(super) by_key: HashMap<HashedKey, LocalQueue<H>, BuildHasherDefault<PassThroughHasher>>,
    pub(super) peak: Peak,
    /// The locks that are held by calls with queues of their own: the numbers of the queues, and the
    /// holders.
    pub(super) held_alone: HashMap<Arc<str>, BTreeMap<u64, Caller>>,
    /// The keys to yield to other processes, including keys that are not in `by_key`.
    pub(super) yields: Yields,
    /// The keys with an offer, or with a ready holder that other callers wait for. May contain a
    /// key twice if its queue was removed meanwhile.
    pub(super) to_check: Vec<HashedKey>,
    /// The keys with waiters behind a registered holder, with [`LocalQueue::first_grant`]: a new
    /// queue of the same key has another number.
    pub(super) to_patrol: VecDeque<(HashedKey, u64)>,
    /// The number of grants so far.
    pub(super) grants: u64,
    /// The time to the next check, if one is planned.
    pub(super) next_check: Option<Duration>,
    /// The number of checks so far.
    pub(super) checks: u64,
    pub(super) last_patrol: BootInstant,
    /// Set once, at shutdown. No caller enters a queue from then on.
    pub(super) closed: bool,
}

impl<H: HandedOff> Queues<H> {
    fn new() -> Self {
        Self {
            by_key: HashMap::default(),
            peak: Peak::default(),
            held_alone: HashMap::new(),
            yields: Yields::default(),
            to_check: Vec::new(),
            to_patrol: VecDeque::new(),
            grants: 0,
            next_check: None,
            checks: 0,
            last_patrol: BootInstant::PAST,
            closed: false,
        }
    }

    /// The lock of this queue is being released.
    pub(super) fn forget_holder(&mut self, key: &HashedKey) {
        // Most keys are not looked up.
        if key.own == 0 {
            return;
        }
        let Some(holders) = self.held_alone.get_mut(&key.name) else { return };
        holders.remove(&key.own);
        if holders.is_empty() {
            self.held_alone.remove(&key.name);
        }
        if self.held_alone.is_empty() {
            self.held_alone.shrink_to_fit();
        }
    }

    /// The queue of a key, if this grant of the permit is still the current one.
    pub(super) fn granted(&mut self, key: &HashedKey, grant: u64) -> Option<&mut LocalQueue<H>> {
        self.by_key.get_mut(key).filter(|queue| queue.grant == grant)
    }
}

impl<H: HandedOff> LocalQueues<H> {
    /// Creates the queues. A runtime without a sign of life counts as stuck after twice the
    /// `response_timeout`, because requests that it has sent have timed out by then.
    pub(crate) fn new(response_timeout: Duration) -> Self {
        let patrols = (2 * response_timeout).as_nanos().div_ceil(PATROL_INTERVAL.as_nanos());
        Self {
            max_patrols: u32::try_from(patrols).unwrap_or(u32::MAX).max(4),
            hasher: RandomState::new(),
            state: Mutex::new(Queues::new()),
            queued: AtomicUsize::new(0),
            lingering: AtomicUsize::new(0),
            has_yields: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            check_needed: Notify::new(),
        }
    }

    pub(super) fn key(&self, name: &Arc<str>) -> HashedKey {
        HashedKey { hash: self.hasher.hash_one(name), name: Arc::clone(name), own: 0 }
    }

    /// The last known status of a key.
    pub(crate) fn status(&self, key: &Arc<str>) -> KeyStatus {
        self.status_of(&self.key(key))
    }

    pub(super) fn status_of(&self, key: &HashedKey) -> KeyStatus {
        let known = self.lock().by_key.get(key).map(|queue| queue.status.clone());
        known.unwrap_or_else(|| KeyStatus::Acquiring(BootInstant::now()))
    }

    /// The status of a lock that a call of this process holds. `or_alone` says whether calls with queues
    /// of their own count.
    pub(crate) fn held_here(&self, key: &Arc<str>, or_alone: bool) -> Option<KeyStatus> {
        let (key, here) = (self.key(key), Caller::here());
        let state = self.lock();
        if let Some(holders) = state.held_alone.get(&key.name).filter(|_| or_alone) {
            let own = holders.values().find(|holder| **holder == here);
            return Some(KeyStatus::HeldHere(*own.or(holders.values().next())?));
        }
        let status = &state.by_key.get(&key)?.status;
        matches!(status, KeyStatus::HeldHere(_)).then(|| status.clone())
    }

    /// Ends all waits. No caller enters a queue from now on.
    pub(crate) fn close(&self) {
        let (mut wakers, mut unwanted, mut left) = (Wakers::default(), Vec::new(), Vec::new());
        {
            let mut state = self.lock();
            state.closed = true;
            self.closed.store(true, Ordering::Relaxed);
            let mut held = Vec::new();
            for (key, queue) in &mut state.by_key {
                let (waiters, offer) = queue.end_contention(&mut wakers);
                self.queued.fetch_sub(waiters, Ordering::Relaxed);
                left.extend(queue.left.take());
                self.lingers_no_longer(queue);
                unwanted.extend(offer.map(|offer| (key.clone(), offer)));
                held.extend(queue.holder.is_some().then(|| key.clone()));
            }
            for key in &held {
                self.watch_holder(&mut state, key);
            }
        }
        wakers.wake();
        drop(left);
        for (key, offer) in unwanted {
            self.drop_offer(&key, offer);
        }
    }

    /// Drops an offer that was withdrawn. Call this function without the queues locked.
    pub(super) fn drop_offer(&self, key: &HashedKey, offer: Offered<H>) {
        match offer {
            Offered::Permit => self.give_back(key, None),
            Offered::Handoff(handoff) => drop(handoff),
        }
    }

    /// The number of waiters, over all keys.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// The number of keys that are held or wanted.
    pub(crate) fn keys(&self) -> usize {
        let names: Vec<_> = {
            let state = self.lock();
            if state.by_key.keys().all(|key| key.own == 0) {
                return state.by_key.len();
            }
            state.by_key.keys().map(|key| Arc::clone(&key.name)).collect()
        };
        names.into_iter().collect::<HashSet<_>>().len()
    }

    /// The keys for which calls wait, or this key, and the number of these calls: for another holder, or for an answer
    /// of the store. A key may come several times.
    pub(crate) fn waiting(&self, only: Option<&str>) -> Vec<(Arc<str>, usize)> {
        let (state, mut waiting) = (self.lock(), Vec::new());
        // Callers need these queues, so what takes longer is left to others.
        for (key, queue) in &state.by_key {
            let first = !matches!(queue.status, KeyStatus::HeldHere(_))
                && queue.contention().offer.is_none();
            let count = queue.contention().waiters.count() + usize::from(first);
            if count > 0 && only.is_none_or(|only| *key.name == *only) {
                waiting.push((Arc::clone(&key.name), count));
            }
        }
        waiting
    }

    /// The yield to other processes that is due before the next request for `key`.
    pub(crate) fn yield_due(&self, key: &str) -> Option<Yield> {
        if !self.has_yields.load(Ordering::Relaxed) {
            return None;
        }
        self.lock().yields.due(key, BootInstant::now())
    }

    /// Whether the last release of `key`, not long ago, has left other processes waiting.
    pub(crate) fn is_contended(&self, key: &str) -> bool {
        self.has_yields.load(Ordering::Relaxed)
            && self.lock().yields.is_contended(key, BootInstant::now())
    }

    /// Records that this process has yielded `key`. `taken` says whether another process took it.
    pub(crate) fn yielded(&self, key: &str, taken: bool) {
        self.lock().yields.yielded(key, taken, BootInstant::now());
    }

    /// Offers a lock to the waiters of `key`. Returns it if no waiter is awake.
    pub(super) fn offer(&self, key: &HashedKey, handoff: H) -> Result<(), H> {
        let (mut wakers, mut state) = (Wakers::default(), self.lock());
        let _before = match state.by_key.get_mut(key) {
            Some(queue) if queue.contention().waiters.awake > 0 => {
                queue.offer(Offered::Handoff(handoff), &mut wakers);
                queue.take_holder()
            }
            _ => return Err(handoff),
        };
        self.watch_offer(&mut state, key);
        drop(state);
        wakers.wake();
        Ok(())
    }

    /// Records that a release of the key has woken this many other processes.
    pub(super) fn released(&self, state: &mut Queues<H>, key: &Arc<str>, woken: usize) {
        state.yields.released(key, woken);
        self.has_yields.store(!state.yields.is_empty(), Ordering::Relaxed);
    }

    /// Offers the permit of `key` to the waiters. Without waiters, the queue is removed.
    pub(super) fn give_back(&self, key: &HashedKey, woken: Option<usize>) {
        let (mut wakers, mut state) = (Wakers::default(), self.lock());
        if let Some(woken) = woken {
            self.released(&mut state, &key.name, woken);
        }
        state.forget_holder(key);
        let Some(queue) = state.by_key.get_mut(key) else { return };
        // Dropping these values may call the queues again, so they are dropped after the unlock.
        let (_before, _queue, _left);
        if queue.contention().waiters.is_empty() {
            let Queues { by_key, peak, .. } = &mut *state;
            let before = by_key.len();
            _queue = by_key.remove(key);
            peak.give_back(by_key, before);
            drop(state);
            return;
        }
        queue.offer(Offered::Permit, &mut wakers);
        (_before, _left) = (queue.take_holder(), queue.take_unwanted_left(key));
        self.watch_offer(&mut state, key);
        drop(state);
        wakers.wake();
    }

    /// Records that the holder of this grant has the lock.
    pub(super) fn granted(&self, key: &HashedKey, grant: u64) {
        let holder = Caller::here();
        let mut state = self.lock();
        let Some(queue) = state.granted(key, grant) else { return };
        queue.status = KeyStatus::HeldHere(holder);
        // Dropping this value may call the queues again, so it is dropped after the unlock.
        let _before = queue.take_holder();
        if key.is_alone() {
            let holders = state.held_alone.entry(Arc::clone(&key.name)).or_default();
            holders.insert(key.own, holder);
        }
        drop(state);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Queues<H>> {
        lock(&self.state)
    }
}
