//! Entering a queue.

use std::sync::Arc;

use super::permit::{Offer, Permit, Waiter};
use super::queue::{
    HandedOff, HashedKey, KeyStatus, LocalQueue, Offered, PERMITS, READERS, Wakers,
};
use super::queues::{LocalQueues, Queues};
use crate::clock::BootInstant;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::user_code::contained;

/// The result of [`LocalQueues::enter`].
#[derive(Debug)]
pub(crate) enum Entered<H: HandedOff> {
    /// No other caller of this process uses the key.
    Permit(Permit<H>),
    /// An offer that all waiters have failed to take, and the number of the caller's place.
    Offered(Offer<H>, u64),
    Queued(Waiter<H>),
    /// The key is in use, and the caller does not queue.
    Busy(KeyStatus),
    Closed,
}

/// Why a call for permits makes no first attempt.
#[derive(Debug)]
pub(crate) enum OthersWait {
    Yes,
    /// The queues are closed.
    Closed,
}

impl<H: HandedOff> LocalQueues<H> {
    /// Takes the permit of `key`, or a place in its queue. With `once`, the caller does not queue.
    pub(crate) fn enter(self: &Arc<Self>, key: &Arc<str>, once: bool) -> Entered<H> {
        self.enter_queue(self.key(key), (once, false))
    }

    /// The same for a writer, for which readers of this process may wait.
    pub(crate) fn enter_as_writer(self: &Arc<Self>, key: &Arc<str>, once: bool) -> Entered<H> {
        self.enter_queue(self.key(key), (once, true))
    }

    /// Takes the permit of the readers of `key`, or a place in their queue.
    pub(crate) fn enter_as_reader(self: &Arc<Self>, key: &Arc<str>) -> Entered<H> {
        let key = self.key(key);
        let lingering = self.end_lingering_for(&mut self.lock(), &key);
        if let Some(handoff) = lingering {
            contained(|| handoff.decline());
        }
        self.enter_queue(HashedKey { own: READERS, ..key }, (false, true))
    }

    /// Takes the turn of a semaphore, which is the permit of its queue, or a place in that queue.
    pub(crate) fn enter_for_permits(self: &Arc<Self>, key: &Arc<str>) -> Entered<H> {
        self.enter_queue(HashedKey { own: PERMITS, ..self.key(key) }, (false, true))
    }

    /// Takes the permit of a queue of its own for the first attempt of a call for permits. Fails if others
    /// come first: calls of this process that wait, or processes that the last release has left waiting.
    /// With `once`, the call does not let them go first.
    pub(crate) fn enter_for_first_attempt(
        self: &Arc<Self>,
        key: &Arc<str>,
        once: bool,
    ) -> Result<Permit<H>, OthersWait> {
        let key = self.key(key);
        let state = self.lock();
        let has_turn = || state.by_key.contains_key(&HashedKey { own: PERMITS, ..key.clone() });
        let is_contended = || state.yields.is_contended(&key.name, BootInstant::now());
        if !once && (has_turn() || is_contended()) {
            return Err(OthersWait::Yes);
        }
        self.enter_own_queue(key, state).ok_or(OthersWait::Closed)
    }

    /// The number of calls for permits that wait for their turn, and are polled.
    pub(crate) fn waiting_for_permits(&self, key: &Arc<str>) -> usize {
        let key = HashedKey { own: PERMITS, ..self.key(key) };
        self.lock().by_key.get(&key).map_or(0, |queue| queue.contention().waiters.awake)
    }

    /// The number of readers that wait in their queue of this process.
    pub(crate) fn waiting_readers(&self, key: &Arc<str>) -> usize {
        let key = HashedKey { own: READERS, ..self.key(key) };
        self.lock().by_key.get(&key).map_or(0, |queue| queue.contention().waiters.len())
    }

    /// Has all readers polled that wait in their queue of this process, because they may join a hold.
    pub(crate) fn wake_readers(&self, key: &Arc<str>) {
        let key = HashedKey { own: READERS, ..self.key(key) };
        let mut wakers = Wakers::default();
        if let Some(queue) = self.lock().by_key.get_mut(&key) {
            queue.poll_all(&mut wakers);
        }
        wakers.wake();
    }

    /// Ends the lingering of a lock, because a call wants it that has another queue. Returns the lock,
    /// which has to be declined without the queues locked.
    fn end_lingering_for(&self, state: &mut Queues<H>, key: &HashedKey) -> Option<H> {
        let shared = state.by_key.get_mut(&HashedKey { own: 0, ..key.clone() })?;
        shared.contention_mut().linger.is_wanted = true;
        self.take_lingering(shared)
    }

    /// With `is_one_side`, calls of this process may wait for the key in another queue.
    fn enter_queue(
        self: &Arc<Self>,
        key: HashedKey,
        (once, is_one_side): (bool, bool),
    ) -> Entered<H> {
        let mut state = self.lock();
        if state.closed {
            return Entered::Closed;
        }
        let Queues { by_key, grants, .. } = &mut *state;
        let Some(queue) = by_key.get_mut(&key) else {
            *grants += 1;
            let grant = *grants;
            let queue = by_key.entry(key.clone()).or_insert_with(|| LocalQueue::new(grant));
            queue.is_one_side = is_one_side;
            return Entered::Permit(Permit::new(self, key, grant));
        };
        if queue.contention().waiters.awake == 0
            && let Some(offer) = queue.take(grants)
        {
            self.lingers_no_longer(queue);
            let number = queue.contention_mut().waiters.number();
            return Entered::Offered(self.taken(&key, queue, offer), number);
        }
        if once {
            let status = match queue.status {
                // The release is for those who wait.
                KeyStatus::Releasing(since) if queue.contention().waiters.awake > 0 => {
                    KeyStatus::Acquiring(since)
                }
                ref status => status.clone(),
            };
            if queue.holder.is_some() && !std::mem::replace(&mut queue.asked, true) {
                self.watch_holder(&mut state, &key);
            }
            return Entered::Busy(status);
        }
        let number = queue.contention_mut().waiters.push();
        self.queued.fetch_add(1, Ordering::Relaxed);
        if queue.holder.is_some() {
            self.watch_holder(&mut state, &key);
        }
        Entered::Queued(Waiter::new(self, key, number))
    }

    /// Takes the permit of a queue that no other call enters. `None` if the queues are closed.
    pub(crate) fn enter_alone(self: &Arc<Self>, key: &Arc<str>) -> Option<Permit<H>> {
        self.enter_own_queue(self.key(key), self.lock())
    }

    fn enter_own_queue(
        self: &Arc<Self>,
        key: HashedKey,
        mut state: MutexGuard<'_, Queues<H>>,
    ) -> Option<Permit<H>> {
        if state.closed {
            return None;
        }
        state.grants += 1;
        let grant = state.grants;
        let key = HashedKey { own: grant, ..key };
        let lingering = self.end_lingering_for(&mut state, &key);
        state.by_key.insert(key.clone(), LocalQueue::of_one_call(grant));
        drop(state);
        let permit = Permit::new(self, key, grant);
        if let Some(handoff) = lingering {
            contained(|| handoff.decline());
        }
        Some(permit)
    }

    /// The offer of `queue` for the caller that has taken it.
    pub(super) fn taken(
        self: &Arc<Self>,
        key: &HashedKey,
        queue: &LocalQueue<H>,
        offer: Offered<H>,
    ) -> Offer<H> {
        match offer {
            Offered::Permit => Offer::Permit(Permit::new(self, key.clone(), queue.grant)),
            Offered::Handoff(handoff) => Offer::Handoff(handoff),
        }
    }
}
