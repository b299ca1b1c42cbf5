//! The queue of one key, as plain data. It is changed while all queues are locked.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::task::Waker;

use super::holder::PermitHolder;
use crate::clock::BootInstant;
use crate::runtime::Caller;
use crate::store::contract::Left;
use crate::user_code::contained;

/// The largest number of waiters that one check wakes for an offer.
const MOST_WOKEN: usize = 64;

/// The numbers of the queues of the readers of a key, and of the calls for permits.
pub(super) const READERS: u64 = u64::MAX;
pub(super) const PERMITS: u64 = u64::MAX - 1;

/// A key and its hash, which is computed once for all look-ups of an acquisition.
#[derive(Debug, Clone)]
pub(super) struct HashedKey {
    pub(super) hash: u64,
    pub(super) name: Arc<str>,
    /// The number of a queue for one call only, [`READERS`] or [`PERMITS`]; zero for the queue that all
    /// other calls share.
    pub(super) own: u64,
}

impl HashedKey {
    /// Whether this is the queue of one call only.
    pub(super) fn is_alone(&self) -> bool {
        !matches!(self.own, 0 | READERS | PERMITS)
    }
}

impl Hash for HashedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash ^ self.own);
    }
}

impl PartialEq for HashedKey {
    fn eq(&self, other: &Self) -> bool {
        self.own == other.own && (Arc::ptr_eq(&self.name, &other.name) || self.name == other.name)
    }
}

impl Eq for HashedKey {}

/// Returns the hash of a [`HashedKey`] unchanged.
#[derive(Debug, Default)]
pub(super) struct PassThroughHasher(u64);

impl Hasher for PassThroughHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The last known reason why a key is not available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyStatus {
    /// An acquisition of this process has been in progress since then.
    Acquiring(BootInstant),
    /// A release of this process has been in progress since then.
    Releasing(BootInstant),
    /// This caller, in this process, holds the lock.
    HeldHere(Caller),
    /// A release by this process has woken other processes, which may acquire it first.
    Yielded,
    /// Another client held the lock at that instant.
    HeldElsewhere(Left, BootInstant),
    /// The store cannot be reached, for this reason.
    Unreachable(String),
}

/// A lock that goes to the next waiter along with the permit.
pub(crate) trait HandedOff: std::fmt::Debug + Send + 'static {
    /// What the holder of the permit leaves to the next one, such as a place in a queue of the store.
    type ToNext: std::fmt::Debug + Send + 'static;

    /// Sets the number of the grant with which the permit has gone to its new holder.
    fn set_grant(&mut self, grant: u64);

    /// See [`set_grant`](Self::set_grant).
    fn grant(&self) -> u64;

    /// Frees the lock, because no waiter takes it. Called without the queues locked.
    fn decline(self);
}

/// An offer to the waiters.
#[derive(Debug)]
pub(super) enum Offered<H> {
    /// The permit alone.
    Permit,
    /// A lock, which contains the permit.
    Handoff(H),
}

/// Whether the lock of a key lingers, and what could prevent it.
#[derive(Debug, Default)]
pub(super) struct Linger {
    /// The end of the time for which the lock on offer lingers; `None` if it does not.
    pub(super) until: Option<BootInstant>,
    /// Whether the store was asked to report other processes that wait.
    pub(super) is_watched: bool,
    /// Whether other processes wait.
    pub(super) is_wanted: bool,
}

/// What a queue needs only once somebody else wants the key: another call of this process, or another process while the lock
/// lingers.
#[derive(Debug)]
pub(super) struct Contention<H> {
    /// The calls of this process that wait.
    pub(super) waiters: Waiters,
    /// The current offer, which the first waiter that is polled may take. Only while there are
    /// waiters, or while a lock lingers.
    pub(super) offer: Option<Offered<H>>,
    /// Whether the lock stays on offer without a waiter.
    pub(super) linger: Linger,
    /// The number of offers so far.
    offers: u64,
    /// The value of `offers` at the last check.
    offers_at_check: u64,
    /// The number of waiters to wake for the current offer.
    pub(super) woken: usize,
}

impl<H: 'static> Contention<H> {
    const NEW: Self = Self {
        waiters: Waiters::NEW,
        offer: None,
        linger: Linger { until: None, is_watched: false, is_wanted: false },
        offers: 0,
        offers_at_check: 0,
        woken: 1,
    };
    const NONE: &Self = &Self::NEW;
}

/// The queue of one key.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent fact")]
pub(super) struct LocalQueue<H: HandedOff> {
    /// `None` until somebody else wants the key.
    contention: Option<Box<Contention<H>>>,
    /// The last known status of the key, from which the error of callers that give up is made.
    pub(super) status: KeyStatus,
    /// What the last holder of the permit has left to the next one.
    pub(super) left: Option<Box<H::ToNext>>,
    /// The number of the current grant of the permit; zero while the permit is on offer.
    pub(super) grant: u64,
    /// The number of the first grant since the key was last forgotten.
    pub(super) first_grant: u64,
    /// The holder of the permit, while it is registered.
    pub(super) holder: Option<Arc<dyn PermitHolder>>,
    /// Whether a caller that does not queue has wanted the key since the holder was registered.
    pub(super) asked: bool,
    /// Whether calls may wait for the key that are not in this queue.
    pub(super) is_own: bool,
    /// Whether calls of this process may wait for the key that are not in this queue: those of the other
    /// side of a read-write lock, or those that want a permit at once.
    pub(super) is_one_side: bool,
    /// Whether the holder was ready at the last patrol.
    pub(super) was_ready: bool,
    /// The number of the last check.
    pub(super) check: u64,
    /// Whether the key is in the list of keys to check.
    pub(super) is_listed: bool,
    /// Whether the key is in the list of keys to patrol.
    pub(super) is_patrolled: bool,
}

impl<H: HandedOff> LocalQueue<H> {
    pub(super) fn new(grant: u64) -> Self {
        Self {
            contention: None,
            status: KeyStatus::Acquiring(BootInstant::now()),
            left: None,
            grant,
            first_grant: grant,
            holder: None,
            asked: false,
            is_own: false,
            is_one_side: false,
            was_ready: false,
            check: 0,
            is_listed: false,
            is_patrolled: false,
        }
    }

    /// The queue of a call that shares it with no other call.
    pub(super) fn of_one_call(grant: u64) -> Self {
        Self { is_own: true, ..Self::new(grant) }
    }

    /// For reading. A queue without contention has no waiters and no offer.
    pub(super) fn contention(&self) -> &Contention<H> {
        self.contention.as_deref().unwrap_or(Contention::NONE)
    }

    /// For changes. Allocates what contention needs.
    pub(super) fn contention_mut(&mut self) -> &mut Contention<H> {
        self.contention.get_or_insert_with(|| Box::new(Contention::NEW))
    }

    /// Has all waiters polled, without an offer.
    pub(super) fn poll_all(&mut self, wakers: &mut Wakers) {
        if let Some(contention) = &mut self.contention {
            contention.waiters.poll_all(wakers);
        }
    }

    /// The store does not report other processes that begin to wait.
    pub(super) fn unwatch(&mut self) {
        if let Some(contention) = &mut self.contention {
            contention.linger.is_watched = false;
        }
    }

    /// Removes and wakes all waiters, and withdraws the offer. Returns the number of waiters, and the offer.
    pub(super) fn end_contention(&mut self, wakers: &mut Wakers) -> (usize, Option<Offered<H>>) {
        let Some(contention) = &mut self.contention else { return (0, None) };
        (contention.waiters.clear(wakers), contention.offer.take())
    }

    /// Ends the lingering. Returns until when the lock would have lingered.
    pub(super) fn take_linger(&mut self) -> Option<BootInstant> {
        self.contention.as_mut()?.linger.until.take()
    }

    /// Whether a registered holder has to be patrolled, because other callers want the key.
    pub(super) fn has_holder(&self, closed: bool) -> bool {
        let is_wanted = self.contention().waiters.awake > 0 || self.asked;
        self.holder.is_some() && (is_wanted || self.is_quiet() || closed)
    }

    /// Whether no call is known to wait behind the holder, but one may.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_own || self.is_one_side && self.contention().waiters.awake == 0 && !self.asked
    }

    /// Whether other callers want the key, and the future of its holder is ready.
    pub(super) fn has_ready_holder(&self, closed: bool) -> bool {
        self.has_holder(closed) && self.holder.as_ref().is_some_and(|holder| holder.is_ready())
    }

    /// Removes the registered holder, which no longer waits or no longer has the permit.
    pub(super) fn take_holder(&mut self) -> Option<Arc<dyn PermitHolder>> {
        (self.asked, self.was_ready) = (false, false);
        self.holder.take()
    }

    /// Makes an offer, and wakes the first waiters.
    pub(super) fn offer(&mut self, offer: Offered<H>, wakers: &mut Wakers) {
        let was_held = matches!(self.status, KeyStatus::HeldHere(_) | KeyStatus::Releasing(_));
        if was_held && matches!(offer, Offered::Permit) {
            self.status = KeyStatus::Acquiring(BootInstant::now());
        }
        self.grant = 0;
        let contention = self.contention_mut();
        if matches!(offer, Offered::Permit) {
            contention.linger = Linger::default();
        }
        contention.offer = Some(offer);
        contention.offers += 1;
        contention.woken = if contention.waiters.stalled.is_empty() { 1 } else { 2 };
        contention.waiters.wake(contention.woken, wakers);
    }

    /// Takes the current offer, as the next grant.
    pub(super) fn take(&mut self, grants: &mut u64) -> Option<Offered<H>> {
        let mut offer = self.contention.as_mut()?.offer.take()?;
        *grants += 1;
        self.grant = *grants;
        if let Offered::Handoff(handoff) = &mut offer {
            handoff.set_grant(self.grant);
            self.status = KeyStatus::HeldHere(Caller::here());
        }
        Some(offer)
    }

    /// Checks the current offer. If it is the same as at the last check, more waiters are woken.
    /// Returns a lock that no waiter takes.
    pub(super) fn check_offer(&mut self, wakers: &mut Wakers) -> Option<Offered<H>> {
        let contention = self.contention_mut();
        if contention.offers_at_check == contention.offers {
            contention.waiters.stall();
            contention.woken = (contention.woken * 2).min(MOST_WOKEN);
            contention.waiters.wake(contention.woken, wakers);
        }
        contention.offers_at_check = contention.offers;
        self.take_unwanted()
    }

    /// Withdraws an offer that no waiter can take. A permit remains on offer for stalled waiters; a
    /// lock does not.
    pub(super) fn take_unwanted(&mut self) -> Option<Offered<H>> {
        let contention = self.contention.as_mut()?;
        let is_lock = matches!(contention.offer, Some(Offered::Handoff(_)));
        let unwanted = contention.waiters.is_empty() || is_lock && contention.waiters.awake == 0;
        contention.offer.take_if(|_| unwanted)
    }

    /// Takes what was left to the next call for permits, if none is awake to use it: others could have the
    /// permits.
    pub(super) fn take_unwanted_left(&mut self, key: &HashedKey) -> Option<Box<H::ToNext>> {
        let is_unwanted = self.contention().offer.is_some() && self.contention().waiters.awake == 0;
        self.left.take_if(|_| key.own == PERMITS && is_unwanted)
    }
}

/// The waiters of one key, in FIFO order.
#[derive(Debug)]
pub(super) struct Waiters {
    /// The slots by number. Waiters that leave or are stalled leave empty slots, which are removed
    /// in bulk.
    slots: VecDeque<(u64, Option<WaiterSlot>)>,
    last_number: u64,
    /// The number of slots that are not empty.
    pub(super) awake: usize,
    /// The numbers of waiters that were woken for an offer and not polled.
    pub(super) stalled: BTreeSet<u64>,
}

/// One waiter.
#[derive(Debug, Default)]
pub(super) struct WaiterSlot {
    /// The waker of the task. `None` before the first poll, and after the waker was called.
    waker: Option<Waker>,
    /// Whether the waiter was woken for an offer since it was last polled. It may then take the
    /// current offer.
    woken: bool,
}

/// The largest number by which the empty slots may exceed the other slots.
pub(super) const EMPTY_SLOTS: usize = 64;

impl Waiters {
    const NEW: Self =
        Self { slots: VecDeque::new(), last_number: 0, awake: 0, stalled: BTreeSet::new() };

    /// The number of waiters.
    pub(super) fn count(&self) -> usize {
        self.awake + self.stalled.len()
    }

    /// The number of the next waiter.
    pub(super) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(super) fn push(&mut self) -> u64 {
        let number = self.number();
        self.slots.push_back((number, Some(WaiterSlot::default())));
        self.awake += 1;
        number
    }

    /// Puts a waiter back at its place, as a stalled waiter.
    pub(super) fn push_stalled(&mut self, number: u64) {
        self.stalled.insert(number);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.awake == 0 && self.stalled.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.awake + self.stalled.len()
    }

    /// Removes a waiter if it may take the current offer.
    pub(super) fn remove_woken(&mut self, number: u64) -> bool {
        if self.stalled.remove(&number) {
            return true;
        }
        let Ok(at) = self.index(number) else { return false };
        let woken = self.slots[at].1.take_if(|slot| slot.woken).is_some();
        self.awake -= usize::from(woken);
        woken
    }

    /// Wakes the first `count` waiters, unless they were woken before.
    pub(super) fn wake(&mut self, count: usize, wakers: &mut Wakers) {
        while let Some((_, None)) = self.slots.front() {
            self.slots.pop_front();
        }
        let awake = self.slots.iter_mut().filter_map(|(_, slot)| slot.as_mut());
        for slot in awake.take(count) {
            slot.woken = true;
            wakers.extend(slot.waker.take());
        }
    }

    fn poll_all(&mut self, wakers: &mut Wakers) {
        for slot in self.slots.iter_mut().filter_map(|(_, slot)| slot.as_mut()) {
            wakers.extend(slot.waker.take());
        }
    }

    /// Marks waiters that were woken and not polled as stalled.
    fn stall(&mut self) {
        for (number, slot) in &mut self.slots {
            if slot.take_if(|slot| slot.woken).is_some() {
                self.awake -= 1;
                self.stalled.insert(*number);
            }
        }
    }

    /// Stores the waker of a waiter that was polled and found no offer. Returns its previous waker.
    pub(super) fn wait(&mut self, number: u64, waker: Waker) -> Option<Waker> {
        let slot = WaiterSlot { waker: Some(waker), woken: false };
        let at = self.index(number);
        if self.stalled.remove(&number) {
            self.awake += 1;
            match at {
                Ok(empty) => self.slots[empty].1 = Some(slot),
                Err(at) => self.slots.insert(at, (number, Some(slot))),
            }
            return None;
        }
        self.slots[at.ok()?].1.replace(slot)?.waker
    }

    /// Removes a waiter; `None` if it is not here.
    pub(super) fn remove(&mut self, number: u64) -> Option<WaiterSlot> {
        if self.stalled.remove(&number) {
            return Some(WaiterSlot::default());
        }
        let at = self.index(number).ok()?;
        let slot = self.slots[at].1.take()?;
        self.awake -= 1;
        if self.slots.len() > 2 * self.awake + EMPTY_SLOTS {
            self.slots.retain(|(_, slot)| slot.is_some());
        }
        Some(slot)
    }

    /// Removes and wakes all waiters. Returns their number.
    pub(super) fn clear(&mut self, wakers: &mut Wakers) -> usize {
        let waiters = self.len();
        for (_, slot) in self.slots.drain(..) {
            wakers.extend(slot.and_then(|slot| slot.waker));
        }
        self.awake = 0;
        self.stalled.clear();
        waiters
    }

    fn index(&self, number: u64) -> Result<usize, usize> {
        // Most look-ups are for the first waiter.
        if self.slots.front().is_some_and(|(first, _)| *first == number) {
            return Ok(0);
        }
        self.slots.binary_search_by_key(&number, |(number, _)| *number)
    }

    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }
}

/// Wakers to call after the queues are unlocked, because they are user code.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    fn extend(&mut self, waker: Option<Waker>) {
        match waker {
            Some(waker) if self.first.is_some() => self.more.push(waker),
            Some(waker) => self.first = Some(waker),
            None => {}
        }
    }

    /// Calls each waker separately, so that a panic does not keep the other tasks asleep.
    pub(super) fn wake(self) {
        for waker in self.first.into_iter().chain(self.more) {
            contained(|| waker.wake());
        }
    }
}
