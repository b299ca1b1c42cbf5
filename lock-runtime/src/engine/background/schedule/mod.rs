//! The schedule of the renewals and deadlines of all leases.
//!
//! Every held lease has one entry, at the instant of its next renewal or of its deadline. A renewal
//! is due a third of the term after the last extension, or a little earlier, together with other
//! leases. While a renewal is in flight, the entry is at the deadline, so that a request without an
//! answer cannot hide a deadline. The entry of a fixed lease is always at the deadline. A failed
//! renewal is repeated after a short pause with jitter, which grows, until the deadline has passed.
//!
//! The schedule is plain data behind one lock: a map insertion per grant and a removal per release.
//! The background thread sleeps until the first entry, and is woken only for an earlier one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::jittered;
use crate::clock::BootInstant;
use crate::engine::handoff::Lease;
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, MutexGuard, lock};

/// The number of grid points per term. Renewals are due at grid points, so that one request renews,
/// a little early, leases that were granted at about the same time.
const GRID_PER_TERM: u32 = 30;

/// The largest number of entries that are taken at a time, so that the schedule is locked briefly.
const AT_ONCE: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Schedule {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// The held leases, by instant.
    held: BTreeMap<Position, Entry>,
    /// Lost leases whose keys are left to their holders, by the instant at which the key has
    /// expired.
    left: BTreeMap<Position, Arc<Lease>>,
    /// The number of the last entry.
    last: u64,
    /// The end of the background thread's sleep; `None` if the thread sleeps until it is woken.
    armed: Option<BootInstant>,
}

/// The instant of an entry, and its number, which distinguishes entries of one instant. (Addresses would too, but then no
/// run of a simulation could be repeated.)
type Position = (BootInstant, u64);

#[derive(Debug)]
struct Entry {
    lease: Arc<Lease>,
    action: Action,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Renew,
    Expire,
}

/// The leases that are due.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Leases to renew. They remain scheduled, at their deadlines.
    pub(crate) renew: Vec<Arc<Lease>>,
    /// Leases whose deadline has passed. They are no longer scheduled.
    pub(crate) expired: Vec<Arc<Lease>>,
    /// Lost leases whose key has expired, although their holders have not left.
    pub(crate) over: Vec<Arc<Lease>>,
    /// The instant of the next entry.
    pub(crate) next: Option<BootInstant>,
}

impl Schedule {
    /// Adds a granted lease. Returns whether the background thread has to be woken.
    pub(crate) fn add(&self, lease: &Arc<Lease>) -> bool {
        let mut entries = self.lock();
        // A renewal that is due in the past is due now.
        let at = entries.plan(lease, BootInstant::PAST);
        entries.armed.is_none_or(|armed| at < armed)
    }

    /// Adds a lease again whose entry was taken at its deadline, if the lease was extended since.
    /// Returns whether the background thread has to be woken.
    pub(crate) fn add_again(&self, lease: &Arc<Lease>) -> bool {
        let (mut entries, now) = (self.lock(), BootInstant::now());
        // The entries are locked during this check. A lease that ends later is therefore removed
        // after it has been added.
        if !lease.is_valid(now) {
            return false;
        }
        entries.remove(lease);
        let at = entries.plan(lease, now);
        entries.armed.is_none_or(|armed| at < armed)
    }

    /// Removes a lease that was released or lost.
    pub(crate) fn remove(&self, lease: &Arc<Lease>) {
        self.lock().remove(lease);
    }

    /// Adds a lost lease whose key is left to its holders, at the instant at which the key has
    /// expired. Returns whether the background thread has to be woken.
    pub(crate) fn leave(&self, lease: &Arc<Lease>) -> bool {
        let (mut entries, at) = (self.lock(), lease.gone_by());
        entries.remove(lease);
        let position = entries.assign(lease, at);
        entries.left.insert(position, Arc::clone(lease));
        entries.armed.is_none_or(|armed| at < armed)
    }

    /// Moves the entry of a lease whose deadline or term has changed. Returns whether the
    /// background thread has to be woken.
    pub(crate) fn reschedule(&self, lease: &Arc<Lease>) -> bool {
        self.move_to(lease, None)
    }

    /// Moves the entry of a lease whose renewal has failed: the next renewal is due after `pause`.
    /// Returns whether the background thread has to be woken.
    pub(crate) fn retry(&self, lease: &Arc<Lease>, pause: Duration) -> bool {
        self.move_to(lease, Some(BootInstant::now().after(pause)))
    }

    /// Makes a renewal of a lease due at this time, unless one is due earlier. Returns when one is due;
    /// `None` if the lease has ended.
    pub(crate) fn verify_by(&self, lease: &Arc<Lease>, at: BootInstant) -> Option<BootInstant> {
        let mut entries = self.lock();
        let position = position(lease);
        let action = entries.held.get(&position)?.action;
        if !lease.verify() || action == Action::Renew && position.0 <= at {
            return Some(position.0);
        }
        if at < lease.deadline() {
            entries.held.remove(&position);
            entries.put(lease, at, Action::Renew);
        }
        Some(at)
    }

    /// Makes a renewal of each lease due at `now`, also of fixed leases, which it does not extend.
    pub(crate) fn verify_all(&self, now: BootInstant) {
        for some in self.held().chunks(AT_ONCE) {
            let mut entries = self.lock();
            for lease in some {
                // A lease without an entry has ended since.
                if lease.verify() && entries.remove_held(lease) {
                    entries.put(lease, now, Action::Renew);
                }
            }
        }
    }

    /// Takes the leases that are due at `now`, or a part of them. The next call returns more.
    pub(crate) fn due(&self, now: BootInstant) -> Due {
        let mut due = Due::default();
        let mut entries = self.lock();
        while let Some(first) = entries.held.first_entry() {
            if first.key().0 > now || due.renew.len() + due.expired.len() == AT_ONCE {
                break;
            }
            let Entry { lease, action } = first.remove();
            match action {
                Action::Renew if lease.is_valid(now) => {
                    entries.put(&lease, lease.deadline(), Action::Expire);
                    due.renew.push(lease);
                }
                // The lease was extended since.
                Action::Expire if lease.is_valid(now) => {
                    entries.plan(&lease, now);
                }
                _ => due.expired.push(lease),
            }
        }
        while let Some(first) = entries.left.first_entry() {
            if first.key().0 > now || due.over.len() == AT_ONCE {
                break;
            }
            due.over.push(first.remove());
        }
        let next = entries.held.first_key_value().map(|((at, _), _)| *at);
        let next_left = entries.left.first_key_value().map(|((at, _), _)| *at);
        due.next = next.into_iter().chain(next_left).min();
        entries.armed = due.next;
        due
    }

    /// All held leases.
    pub(crate) fn held(&self) -> Vec<Arc<Lease>> {
        self.lock().held.values().map(|entry| Arc::clone(&entry.lease)).collect()
    }

    /// The number of held leases.
    pub(crate) fn len(&self) -> usize {
        self.lock().held.len()
    }

    fn move_to(&self, lease: &Arc<Lease>, retry: Option<BootInstant>) -> bool {
        let mut entries = self.lock();
        // A lease without an entry has ended, and must not be added again.
        if !entries.remove_held(lease) {
            return false;
        }
        let at = match retry {
            Some(at) if at < lease.deadline() => {
                entries.put(lease, at, Action::Renew);
                at
            }
            Some(_) => {
                entries.put(lease, lease.deadline(), Action::Expire);
                lease.deadline()
            }
            None => entries.plan(lease, BootInstant::now()),
        };
        entries.armed.is_none_or(|armed| at < armed)
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        lock(&self.entries)
    }
}

impl Entries {
    /// Adds the next entry of a lease, which follows from its last extension.
    fn plan(&mut self, lease: &Arc<Lease>, now: BootInstant) -> BootInstant {
        let (deadline, watches) = (lease.deadline(), lease.store().reports_changes());
        let (due, term) = lease.renewal_due(watches);
        let at = due.before_grid(term / GRID_PER_TERM).max(now).min(deadline);
        // A fixed lease is verified once, because the store begins to watch its key then.
        let begins_watch = || {
            watches && lease.is_fixed() && lease.is_unconfirmed() && at < deadline && lease.verify()
        };
        let action =
            if lease.can_be_renewed() || begins_watch() { Action::Renew } else { Action::Expire };
        let at = if action == Action::Renew { at } else { deadline };
        self.put(lease, at, action);
        at
    }

    fn put(&mut self, lease: &Arc<Lease>, at: BootInstant, action: Action) {
        let position = self.assign(lease, at);
        self.held.insert(position, Entry { lease: Arc::clone(lease), action });
    }

    /// A new position for a lease.
    fn assign(&mut self, lease: &Arc<Lease>, at: BootInstant) -> Position {
        self.last += 1;
        lease.scheduled.store(at.as_nanos(), Ordering::Relaxed);
        lease.entry_number.store(self.last, Ordering::Relaxed);
        (at, self.last)
    }

    /// Removes the entry of a held lease. Returns whether there was one.
    fn remove_held(&mut self, lease: &Arc<Lease>) -> bool {
        self.held.remove(&position(lease)).is_some()
    }

    fn remove(&mut self, lease: &Arc<Lease>) {
        let position = position(lease);
        if self.held.remove(&position).is_none() {
            self.left.remove(&position);
        }
    }
}

/// The position of a lease. Read with the entries locked.
fn position(lease: &Arc<Lease>) -> Position {
    let at = BootInstant::from_nanos(lease.scheduled.load(Ordering::Relaxed));
    (at, lease.entry_number.load(Ordering::Relaxed))
}

/// The pause before a failed renewal is repeated: from a thirtieth of the term, doubling up to a
/// sixth, with jitter.
pub(crate) fn retry_pause(term: Duration, failures: u32) -> Duration {
    let longest = term / 6;
    let pause = (term / 30).saturating_mul(1 << failures.saturating_sub(1).min(8)).min(longest);
    jittered(pause)
}

#[cfg(test)]
mod tests;
