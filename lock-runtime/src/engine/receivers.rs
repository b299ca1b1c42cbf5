//! The calls of this process that take over permits of a semaphore which other calls of it leave.
//!
//! One call of a process at a time has the turn of a semaphore: the permit of its local queue. It waits in
//! the queue of the store, and the others behind it in the local queue. If it sleeps while another call of
//! this process leaves as many permits, it takes over the lease without a request. Its place in the queue of
//! the store then goes to the call that has the turn next, together with the permits that more calls have
//! left meanwhile: at most as many leases as there are calls that wait.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::handoff::{Handoff, Lease};
use super::lease::Terms;
use crate::capacity::Peak;
use crate::replicas::RequiredReplicas;
use crate::store::contract::{LockStore, Mode, is_same};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, Notify, lock};
use crate::user_code::contained;

/// The receivers of all semaphores, at most one for each key.
#[derive(Default)]
pub(crate) struct Receivers {
    slots: Mutex<Slots>,
    /// The number of slots. Written with `slots` locked, read without.
    count: AtomicUsize,
}

#[derive(Default)]
struct Slots {
    by_key: HashMap<Arc<str>, ReceiverSlot>,
    peak: Peak,
    /// The number of the last receiver.
    last: u64,
}

/// What a receiver can take over, and what it and the calls after it were offered.
struct ReceiverSlot {
    number: u64,
    mode: Mode,
    store: Arc<dyn LockStore>,
    term: Duration,
    acknowledged_by: RequiredReplicas,
    offered: VecDeque<Handoff>,
    woken: Arc<Notify>,
}

impl ReceiverSlot {
    /// Whether the receiver can take over this lease without a request.
    fn fits(&self, lease: &Lease) -> bool {
        lease.locked().mode == self.mode
            && is_same(lease.store(), &self.store)
            && lease.is_renewed()
            && lease.term() == self.term
            && lease.acknowledged_by() == self.acknowledged_by
    }
}

/// A call that waits. Dropping it passes what it was offered on.
pub(crate) struct Receiver {
    receivers: Arc<Receivers>,
    key: Arc<str>,
    number: u64,
    woken: Arc<Notify>,
}

impl fmt::Debug for Receivers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receivers").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Receivers {
    /// Whether any call waits for permits.
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// The number of claims of this process that wait in the store for permits of this key: 1 or 0.
    pub(super) fn claims(&self, key: &str) -> usize {
        usize::from(self.any() && lock(&self.slots).by_key.contains_key(key))
    }

    /// Adds the receiver of a key, which takes over leases with these terms, and was offered `offered`.
    pub(crate) fn register(
        self: &Arc<Self>,
        key: &Arc<str>,
        (store, mode): (&Arc<dyn LockStore>, Mode),
        terms: &Terms,
        offered: VecDeque<Handoff>,
    ) -> Receiver {
        let woken = Arc::new(Notify::new());
        let mut slots = lock(&self.slots);
        slots.last += 1;
        let number = slots.last;
        let slot = ReceiverSlot {
            number,
            mode,
            store: Arc::clone(store),
            term: terms.term,
            acknowledged_by: terms.acknowledged_by,
            offered,
            woken: Arc::clone(&woken),
        };
        let before = slots.by_key.insert(Arc::clone(key), slot);
        self.count.store(slots.by_key.len(), Ordering::Relaxed);
        drop(slots);
        // What it was offered goes to the new one.
        drop(before);
        Receiver { receivers: Arc::clone(self), key: Arc::clone(key), number, woken }
    }

    /// Offers a lock to the receiver of its key. Returns the lock if there is none that fits, or if the
    /// receiver was offered as many as this already.
    pub(super) fn give(&self, handoff: Handoff, most: usize) -> Result<(), Handoff> {
        let mut slots = lock(&self.slots);
        let lease = handoff.lease();
        let woken = match slots.by_key.get_mut(lease.key()) {
            Some(slot) if slot.offered.len() < most && slot.fits(lease) => {
                slot.offered.push_back(handoff);
                Arc::clone(&slot.woken)
            }
            _ => return Err(handoff),
        };
        drop(slots);
        contained(|| woken.notify_one());
        Ok(())
    }
}

impl Receiver {
    /// Takes the first offer.
    pub(crate) fn take(&self) -> Option<Handoff> {
        let mut slots = lock(&self.receivers.slots);
        let slot = slots.by_key.get_mut(&self.key)?;
        if slot.number == self.number { slot.offered.pop_front() } else { None }
    }

    /// Takes the offers for the next receiver, and receives no more.
    pub(crate) fn into_offered(self) -> VecDeque<Handoff> {
        self.remove().map_or_else(VecDeque::new, |slot| slot.offered)
    }

    fn remove(&self) -> Option<ReceiverSlot> {
        let mut slots = lock(&self.receivers.slots);
        if slots.by_key.get(&self.key).is_none_or(|slot| slot.number != self.number) {
            return None;
        }
        let Slots { by_key, peak, .. } = &mut *slots;
        let before = by_key.len();
        let slot = by_key.remove(&self.key);
        peak.give_back(by_key, before);
        self.receivers.count.store(by_key.len(), Ordering::Relaxed);
        slot
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // What it was offered is offered again, without the slots locked.
        drop(self.remove());
    }
}

/// Resolves when a receiver may have an offer; never without one.
pub(crate) async fn offered(receiver: Option<&Receiver>) {
    match receiver {
        Some(receiver) => receiver.woken.notified().await,
        None => std::future::pending().await,
    }
}
