//! Locks that linger: they stay on offer for a moment although no call waits for them.

use std::sync::Arc;

use super::queue::{HandedOff, HashedKey, LocalQueue, Offered};
use super::queues::{CHECK_INTERVAL, LocalQueues};
use crate::clock::BootInstant;
use crate::sync::atomic::Ordering;

impl<H: HandedOff> LocalQueues<H> {
    /// Leaves a lock on offer until this time, although no call waits for it. Returns whether it is
    /// the first time since the store granted the lock; the lock if it must not linger, because calls
    /// wait for it after all, or other processes do.
    pub(super) fn linger(
        &self,
        key: &HashedKey,
        handoff: H,
        until: BootInstant,
    ) -> Result<bool, H> {
        let mut state = self.lock();
        let is_closed = state.closed;
        let queue = state.by_key.get_mut(key);
        let queue = queue.filter(|queue| {
            let contention = queue.contention();
            !is_closed && !contention.linger.is_wanted && contention.waiters.is_empty()
        });
        let Some(queue) = queue else { return Err(handoff) };
        queue.grant = 0;
        let contention = queue.contention_mut();
        contention.offer = Some(Offered::Handoff(handoff));
        contention.linger.until = Some(until);
        let begins = !std::mem::replace(&mut contention.linger.is_watched, true);
        let is_new = !std::mem::replace(&mut queue.is_listed, true);
        let _before = queue.take_holder();
        self.lingering.fetch_add(1, Ordering::Relaxed);
        if is_new {
            state.to_check.push(key.clone());
            self.check_within(&mut state, CHECK_INTERVAL);
        }
        drop(state);
        Ok(begins)
    }

    /// Other processes have begun to wait for this key. Returns the lock if it lingers. It has to be
    /// declined, which calls wakers.
    #[must_use]
    pub(crate) fn wanted(&self, key: &Arc<str>) -> Option<H> {
        let key = self.key(key);
        let mut state = self.lock();
        let queue = state.by_key.get_mut(&key)?;
        let linger = &mut queue.contention_mut().linger;
        (linger.is_wanted, linger.is_watched) = (true, false);
        self.take_lingering(queue)
    }

    /// The store does not report other processes that begin to wait for this key.
    pub(crate) fn unwatched(&self, key: &Arc<str>) {
        let key = self.key(key);
        if let Some(queue) = self.lock().by_key.get_mut(&key) {
            queue.unwatch();
        }
    }

    /// Ends the lingering of the locks of these keys. Returns them, as [`wanted`](Self::wanted) does.
    #[must_use]
    pub(crate) fn end_lingering(&self, keys: &[Arc<str>]) -> Vec<H> {
        if self.lingering() == 0 {
            return Vec::new();
        }
        let keys: Vec<_> = keys.iter().map(|key| self.key(key)).collect();
        let mut state = self.lock();
        let taken = keys.iter().filter_map(|key| {
            let queue = state.by_key.get_mut(key)?;
            self.take_lingering(queue)
        });
        taken.collect()
    }

    /// The same for all keys. The store reports nothing about them any more.
    #[must_use]
    pub(crate) fn end_all_lingering(&self) -> Vec<H> {
        let mut state = self.lock();
        let taken = state.by_key.values_mut().filter_map(|queue| {
            queue.unwatch();
            self.take_lingering(queue)
        });
        taken.collect()
    }

    /// The number of locks that linger.
    pub(crate) fn lingering(&self) -> usize {
        self.lingering.load(Ordering::Relaxed)
    }

    /// Withdraws the offer of a lock that lingers.
    pub(super) fn take_lingering(&self, queue: &mut LocalQueue<H>) -> Option<H> {
        queue.contention().linger.until?;
        self.lingers_no_longer(queue);
        let contention = queue.contention_mut();
        match contention.offer.take() {
            Some(Offered::Handoff(handoff)) => Some(handoff),
            other => {
                contention.offer = other;
                None
            }
        }
    }

    /// The lock on offer does not linger any more.
    pub(super) fn lingers_no_longer(&self, queue: &mut LocalQueue<H>) {
        if queue.take_linger().is_some() {
            self.lingering.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
