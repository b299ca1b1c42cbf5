//! The handles to a queue: the permit, the position of a call, and the future of a waiter.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::holder::PermitHolder;
use super::queue::{HandedOff, HashedKey, KeyStatus, READERS, Wakers};
use super::queues::{LocalQueues, Queues};
use crate::clock::BootInstant;
use crate::sync::atomic::Ordering;

/// An offer that a caller has taken.
#[derive(Debug)]
pub(crate) enum Offer<H: HandedOff> {
    /// The permit alone.
    Permit(Permit<H>),
    /// A lock, which contains the permit.
    Handoff(H),
}

impl<H: HandedOff> Offer<H> {
    /// The number of this grant of the permit.
    pub(crate) fn grant(&self) -> u64 {
        match self {
            Self::Permit(permit) => permit.grant,
            Self::Handoff(handoff) => handoff.grant(),
        }
    }
}

/// The right to acquire a key from the store. Dropping the permit offers it to the waiters.
#[derive(Debug)]
pub(crate) struct Permit<H: HandedOff> {
    queues: Arc<LocalQueues<H>>,
    key: HashedKey,
    /// The number of this grant; zero while the permit is on offer.
    grant: u64,
    /// The number of other processes that the release of the key has woken, once it was released.
    woken: Option<usize>,
}

impl<H: HandedOff> Permit<H> {
    pub(super) fn new(queues: &Arc<LocalQueues<H>>, key: HashedKey, grant: u64) -> Self {
        Self { queues: Arc::clone(queues), key, grant, woken: None }
    }

    /// Sets the number of the grant with which the permit has gone to its new holder.
    pub(crate) fn set_grant(&mut self, grant: u64) {
        self.grant = grant;
    }

    pub(crate) fn grant(&self) -> u64 {
        self.grant
    }

    /// Whether this is the permit of the readers of a key.
    pub(crate) fn is_of_readers(&self) -> bool {
        self.key.own == READERS
    }

    /// Whether no other call enters the queue of this permit.
    pub(crate) fn is_alone(&self) -> bool {
        self.key.is_alone()
    }

    /// Offers a lock to the waiters. `with` makes the lock from the permit. Returns the lock if no
    /// waiter is awake.
    pub(crate) fn offer(self, with: impl FnOnce(Self) -> H) -> Result<(), H> {
        let (queues, key) = (Arc::clone(&self.queues), self.key.clone());
        queues.offer(&key, with(self))
    }

    /// Leaves a lock on offer until this time, although no call waits for it. `with` makes the lock
    /// from the permit. See [`LocalQueues::linger`].
    pub(crate) fn linger(
        self,
        until: BootInstant,
        with: impl FnOnce(Self) -> H,
    ) -> Result<bool, H> {
        let (queues, key) = (Arc::clone(&self.queues), self.key.clone());
        queues.linger(&key, with(self), until)
    }

    /// Sets the status of the key, from which the error of waiters that give up is made.
    pub(crate) fn set_status(&self, status: &KeyStatus) {
        if let Some(queue) = self.queues.lock().by_key.get_mut(&self.key) {
            queue.status.clone_from(status);
        }
    }

    /// The lock has no holder, and it is not known yet whether the key is free. What the store has said about another holder
    /// stays, and why it cannot be reached.
    pub(crate) fn set_releasing(&self) {
        if let Some(queue) = self.queues.lock().by_key.get_mut(&self.key)
            && !matches!(queue.status, KeyStatus::Unreachable(_) | KeyStatus::HeldElsewhere(..))
        {
            queue.status = KeyStatus::Releasing(BootInstant::now());
        }
    }

    /// Leaves something to the next holder. Returns what was left before, or `left` if the key is no
    /// longer known, or if no other call enters the queue.
    pub(crate) fn leave_to_next(&self, left: Box<H::ToNext>) -> Option<Box<H::ToNext>> {
        match self.queues.lock().by_key.get_mut(&self.key) {
            Some(queue) if !queue.is_own => queue.left.replace(left),
            _ => Some(left),
        }
    }

    /// Takes what the previous holder has left.
    pub(crate) fn take_left(&self) -> Option<Box<H::ToNext>> {
        self.queues.lock().by_key.get_mut(&self.key).and_then(|queue| queue.left.take())
    }

    /// Records that the holder has the lock, and no longer waits.
    pub(crate) fn granted(&self) {
        self.queues.granted(&self.key, self.grant);
    }

    /// The position of this grant, at place `number` of the queue; zero for a holder that did not
    /// queue.
    pub(crate) fn position(&self, number: u64) -> QueuePosition<H> {
        let (queues, key) = (Arc::clone(&self.queues), self.key.clone());
        QueuePosition { queues, key, number, grant: self.grant }
    }

    /// Records that the release of the key has woken this many other processes.
    pub(crate) fn released(&mut self, woken: usize) {
        self.woken = Some(woken);
    }

    /// Keeps the permit after the release. Its holder then yields to the processes that the release
    /// has woken.
    pub(crate) fn keep_after_release(&mut self) {
        self.set_status(&KeyStatus::Acquiring(BootInstant::now()));
        if let Some(woken) = self.woken.take() {
            self.queues.released(&mut self.queues.lock(), &self.key.name, woken);
        }
    }
}

impl<H: HandedOff> Drop for Permit<H> {
    fn drop(&mut self) {
        self.queues.give_back(&self.key, self.woken.take());
    }
}

/// One grant of the permit, and the place in the queue to which its holder may return. The methods
/// have no effect after the permit has gone to another holder.
#[derive(Debug)]
pub(crate) struct QueuePosition<H: HandedOff> {
    queues: Arc<LocalQueues<H>>,
    key: HashedKey,
    number: u64,
    grant: u64,
}

impl<H: HandedOff> Clone for QueuePosition<H> {
    fn clone(&self) -> Self {
        let (queues, key) = (Arc::clone(&self.queues), self.key.clone());
        Self { queues, key, number: self.number, grant: self.grant }
    }
}

impl<H: HandedOff> QueuePosition<H> {
    /// The same place in another grant.
    pub(crate) fn in_grant(&self, grant: u64) -> Self {
        Self { grant, ..self.clone() }
    }

    /// Registers `holder`, which has the permit and waits from now on.
    pub(crate) fn register(&self, holder: Arc<dyn PermitHolder>) {
        let mut state = self.queues.lock();
        let _before = state.granted(&self.key, self.grant).and_then(|queue| {
            if let KeyStatus::HeldHere(_) = queue.status {
                // The lock is being released, and it is not known yet whether the key is free.
                queue.status = KeyStatus::Releasing(BootInstant::now());
            }
            queue.holder.replace(holder)
        });
        state.forget_holder(&self.key);
        self.queues.watch_holder(&mut state, &self.key);
        drop(state);
    }

    /// See [`Permit::granted`].
    pub(crate) fn granted(&self) {
        self.queues.granted(&self.key, self.grant);
    }

    /// Has the registered holder checked, because its future is ready.
    pub(crate) fn holder_is_ready(&self) {
        // A call with a queue of its own is patrolled only, so that it has more time.
        let is_wanted = self.queues.queued() > 0 && !self.key.is_alone();
        if is_wanted || self.queues.closed.load(Ordering::Relaxed) {
            let mut state = self.queues.lock();
            self.queues.watch_holder(&mut state, &self.key);
        }
    }

    /// See [`Permit::take_left`].
    pub(crate) fn take_left(&self) -> Option<Box<H::ToNext>> {
        self.queues.lock().granted(&self.key, self.grant).and_then(|queue| queue.left.take())
    }

    /// Puts the holder back at its place in the queue, as a stalled waiter.
    pub(crate) fn requeue(&self) -> Requeued<H> {
        let mut state = self.queues.lock();
        if state.closed {
            return Requeued::Closed;
        }
        let Some(queue) = state.granted(&self.key, self.grant) else { return Requeued::Over };
        queue.contention_mut().waiters.push_stalled(self.number);
        self.queues.queued.fetch_add(1, Ordering::Relaxed);
        Requeued::Queued(Waiter::new(&self.queues, self.key.clone(), self.number))
    }
}

/// The result of [`QueuePosition::requeue`].
#[derive(Debug)]
pub(crate) enum Requeued<H: HandedOff> {
    Queued(Waiter<H>),
    /// The queues are closed.
    Closed,
    /// The permit has gone to another holder.
    Over,
}

/// A waiter in the queue. Resolves to the offer that it takes; to `None` if the queues are closed.
///
/// Cancel safe: if the waiter is dropped, the next waiter takes the offer.
#[derive(Debug)]
pub(crate) struct Waiter<H: HandedOff> {
    queues: Arc<LocalQueues<H>>,
    key: HashedKey,
    number: u64,
    /// Whether the waiter has left the queue.
    is_over: bool,
}

impl<H: HandedOff> Waiter<H> {
    pub(super) fn new(queues: &Arc<LocalQueues<H>>, key: HashedKey, number: u64) -> Self {
        Self { queues: Arc::clone(queues), key, number, is_over: false }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The last known status of the key.
    pub(crate) fn status(&self) -> KeyStatus {
        self.queues.status_of(&self.key)
    }
}

impl<H: HandedOff> Future for Waiter<H> {
    type Output = Option<Offer<H>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Offer<H>>> {
        // Cloning and dropping wakers calls user code, so the queues are not locked here.
        let mut waker = Some(cx.waker().clone());
        let (offer, _before) = {
            let Self { queues, key, number, is_over } = &mut *self;
            let mut state = queues.lock();
            if state.closed {
                *is_over = true;
                return Poll::Ready(None);
            }
            // A queue exists as long as it has waiters.
            let Queues { by_key, grants, .. } = &mut *state;
            let Some(queue) = by_key.get_mut(key) else { return Poll::Pending };
            if queue.contention().offer.is_some()
                && queue.contention_mut().waiters.remove_woken(*number)
            {
                *is_over = true;
                queues.queued.fetch_sub(1, Ordering::Relaxed);
                let offer = queue.take(grants);
                queues.lingers_no_longer(queue);
                let offer = offer.map(|offer| queues.taken(key, queue, offer));
                (offer, None)
            } else {
                let (awake, waker) = (queue.contention().waiters.awake, waker.take());
                let before =
                    waker.and_then(|waker| queue.contention_mut().waiters.wait(*number, waker));
                if queue.contention().waiters.awake > awake {
                    queues.watch_holder(&mut state, key);
                }
                (None, before)
            }
        };
        match offer {
            Some(offer) => Poll::Ready(Some(offer)),
            None => Poll::Pending,
        }
    }
}

impl<H: HandedOff> Drop for Waiter<H> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut wakers = Wakers::default();
        let Self { queues, key, number, .. } = self;
        // Dropping the slot calls user code, and dropping the offer calls the queues again, so both
        // happen after the unlock.
        let (slot, unwanted) = {
            let mut state = queues.lock();
            let Some(queue) = state.by_key.get_mut(key) else { return };
            let Some(slot) = queue.contention_mut().waiters.remove(*number) else { return };
            queues.queued.fetch_sub(1, Ordering::Relaxed);
            if queue.contention().offer.is_some() {
                // This waiter may have been the one that was woken for the offer.
                let contention = queue.contention_mut();
                contention.waiters.wake(contention.woken, &mut wakers);
            }
            (slot, queue.take_unwanted())
        };
        wakers.wake();
        drop(slot);
        if let Some(offer) = unwanted {
            queues.drop_offer(key, offer);
        }
    }
}
