//! Read-write locks in the memory store. See `redis/read_write/settle.lua` for whose turn it is.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::queues::{MOST_AHEAD, QueuedClaim};
use super::{FIRST_PURGE, MemoryStore, Message};
use crate::capacity::Peak;
use crate::clock::BootInstant;
use crate::store::contract::{
    Acquired, Claim, Grant, Layout, Left, Mode, ModeChange, ModeChanged, Queued, Queueing, Release,
    Released, Renewal, Renewed, StoreError,
};
use crate::store::key_holder::KeyHolder;
use crate::store::owner::OwnerId;
use crate::store::queueing::{QueueTicket, transfer_term};
use crate::store::subscriptions::{Listener, QueueMessage};

/// All read-write locks.
#[derive(Debug, Default)]
pub(super) struct ReadWriteLocks {
    by_key: HashMap<Box<str>, SharedLock>,
    peak: Peak,
    purge_at: usize,
    /// The last ticket.
    tickets: u64,
}

/// A lock that has holders, or for which claims wait.
#[derive(Debug, Default)]
struct SharedLock {
    holders: Vec<ModeHolder>,
    writers: BTreeMap<u64, QueuedClaim>,
    readers: BTreeMap<u64, QueuedClaim>,
}

#[derive(Debug)]
struct ModeHolder {
    /// `None` after the release of a key that stays taken for its `min_hold`.
    owner: Option<OwnerId>,
    is_writer: bool,
    expires: BootInstant,
}

/// Returns the listener of a claim that waits.
pub(super) type Waits<'a> = &'a dyn Fn(OwnerId) -> Option<Arc<Listener>>;

impl SharedLock {
    /// Ends the leases that are over. Returns whether a writer had one.
    fn end_leases(&mut self, now: BootInstant) -> bool {
        let is_over = |holder: &ModeHolder| holder.expires <= now;
        let writer_ended = self.holders.iter().any(|holder| holder.is_writer && is_over(holder));
        self.holders.retain(|holder| !is_over(holder));
        writer_ended
    }

    fn has_writer(&self) -> bool {
        self.holders.iter().any(|holder| holder.is_writer)
    }

    fn waiting(&self) -> usize {
        self.writers.len() + self.readers.len()
    }

    fn own(&mut self, owner: OwnerId) -> Option<&mut ModeHolder> {
        self.holders.iter_mut().find(|holder| holder.owner == Some(owner))
    }

    /// Gives the lock to the claims whose turn it is; after a writer, that is the turn of the readers.
    fn settle(&mut self, after_writer: bool, now: BootInstant, waits: Waits<'_>) -> Vec<Message> {
        let mut messages = Vec::new();
        if self.has_writer() {
            return messages;
        }
        self.writers.retain(|_, claim| waits(claim.owner).is_some());
        let first_writer = self.writers.keys().next().copied().filter(|_| !after_writer);
        let later = first_writer.map(|first| self.readers.split_off(&first)).unwrap_or_default();
        for claim in std::mem::replace(&mut self.readers, later).into_values() {
            messages.extend(self.admit(claim, false, now, waits));
        }
        if messages.is_empty()
            && self.holders.is_empty()
            && let Some((_, claim)) = self.writers.pop_first()
        {
            messages.extend(self.admit(claim, true, now, waits));
        }
        messages
    }

    fn admit(
        &mut self,
        QueuedClaim { owner, ticket, term }: QueuedClaim,
        is_writer: bool,
        now: BootInstant,
        waits: Waits<'_>,
    ) -> Option<Message> {
        let listener = waits(owner)?;
        self.holders.push(ModeHolder { owner: Some(owner), is_writer, expires: now.after(term) });
        Some((listener, QueueMessage::Transfer { ticket, term }))
    }

    fn leave_queue(&mut self, owner: OwnerId) {
        for claims in [&mut self.writers, &mut self.readers] {
            claims.retain(|_, claim| claim.owner != owner);
        }
    }

    /// The rest of the lease that ends last.
    fn left(&self, now: BootInstant) -> Duration {
        let last = self.holders.iter().map(|holder| holder.expires).max();
        last.map_or(Duration::ZERO, |expires| expires.since(now))
    }

    /// Lets the first claim that waits make an attempt.
    fn first_waits(&self, waits: Waits<'_>) -> Option<Message> {
        let mut claims = self.writers.values().chain(self.readers.values());
        let first = claims.find_map(|claim| waits(claim.owner))?;
        Some((first, QueueMessage::Attempt { after: Duration::ZERO }))
    }
}

impl ReadWriteLocks {
    /// Whether a lock of this key has a holder.
    pub(super) fn is_held(&self, key: &str, now: BootInstant) -> bool {
        self.holder(key, now).is_some()
    }

    /// One of the holders.
    pub(super) fn holder(&self, key: &str, now: BootInstant) -> Option<KeyHolder> {
        let mut holders = self.by_key.get(key)?.holders.iter();
        holders.find(|holder| holder.expires > now).map(|holder| KeyHolder::of(holder.owner))
    }

    pub(super) fn waiting(&self, key: &str) -> usize {
        self.by_key.get(key).map_or(0, SharedLock::waiting)
    }

    fn try_acquire(
        &mut self,
        claim: Claim<'_>,
        now: BootInstant,
        waits: Waits<'_>,
    ) -> (Acquired, Vec<Message>) {
        let (owner, is_writer) = (claim.owner, claim.resource.mode == Mode::Write);
        let (granted, expires) = (Acquired::Granted(Grant::of(claim.term)), now.after(claim.term));
        self.purge(now);
        let lock = self.by_key.entry(claim.resource.key.into()).or_default();
        let after_writer = lock.holders.is_empty() || lock.end_leases(now);
        let messages = lock.settle(after_writer, now, waits);
        if let Some(own) = lock.own(owner) {
            // A late attempt must not shorten a lease that was extended since.
            own.expires = own.expires.max(expires);
            return (granted, messages);
        }
        let is_free = lock.holders.is_empty() || !is_writer && !lock.has_writer();
        let is_queued = |claims: &BTreeMap<u64, QueuedClaim>| {
            claims.iter().find(|(_, claim)| claim.owner == owner).map(|(ticket, _)| *ticket)
        };
        if is_free && lock.waiting() == 0 {
            lock.holders.push(ModeHolder { owner: Some(owner), is_writer, expires });
            return (granted, messages);
        }
        let left = Left::Time(lock.left(now));
        if claim.queueing == Queueing::None {
            return (Acquired::Busy(left), messages);
        }
        let claims = if is_writer { &mut lock.writers } else { &mut lock.readers };
        let ticket = is_queued(claims).unwrap_or_else(|| {
            self.tickets += 1;
            let (ticket, term) = (QueueTicket(self.tickets), transfer_term(claim.term));
            claims.insert(self.tickets, QueuedClaim { owner, ticket, term });
            self.tickets
        });
        let before = claims.range(..ticket).take(MOST_AHEAD).count();
        // A reader waits for one writer only.
        let ahead = before + usize::from(!is_writer && !lock.writers.is_empty());
        (Acquired::Queued(Queued { left, ticket: QueueTicket(ticket), ahead }), messages)
    }

    pub(super) fn renew(&mut self, renewal: &Renewal<'_>, now: BootInstant) -> Renewed {
        let lock = self.by_key.get_mut(renewal.resource.key);
        let Some(lock) = lock else { return Renewed::Gone };
        let is_taken = lock.holders.iter().any(|other| other.is_writer && other.expires > now);
        match lock.own(renewal.owner).filter(|own| own.expires > now) {
            Some(own) => {
                own.expires = own.expires.max(now.after(renewal.term));
                if renewal.resource.mode == Mode::Write && !own.is_writer {
                    return Renewed::AsReader;
                }
                Renewed::Extended
            }
            None if is_taken => Renewed::Taken,
            None => Renewed::Gone,
        }
    }

    fn release(
        &mut self,
        release: &Release<'_>,
        now: BootInstant,
        waits: Waits<'_>,
    ) -> (Released, Vec<Message>) {
        let Some(lock) = self.by_key.get_mut(release.resource.key) else {
            return (Released::Gone, Vec::new());
        };
        let waited = lock.waiting();
        lock.leave_queue(release.owner);
        let before = lock.left(now);
        let mut after_writer = lock.end_leases(now);
        let own = lock.holders.iter().position(|holder| holder.owner == Some(release.owner));
        let released = match own {
            None if lock.has_writer() => Released::Taken,
            None => Released::Gone,
            Some(own) if release.keep.is_zero() => {
                after_writer |= lock.holders.swap_remove(own).is_writer;
                Released::Freed { woken: 0 }
            }
            Some(own) => {
                let own = &mut lock.holders[own];
                (own.owner, own.expires) = (None, now.after(release.keep));
                // The first claim would sleep until the end of the lease.
                let messages = lock.first_waits(waits).into_iter().collect();
                return (Released::Freed { woken: 0 }, messages);
            }
        };
        let mut messages = lock.settle(after_writer, now, waits);
        if messages.is_empty() && (lock.left(now) < before || lock.waiting() < waited) {
            // The first claim would sleep for longer than necessary, because the last lease ends earlier
            // now, or only the claim that has left knew its end.
            messages.extend(lock.first_waits(waits));
        }
        let woken = usize::from(!messages.is_empty() || lock.waiting() > 0);
        if lock.holders.is_empty() && lock.waiting() == 0 {
            let before = self.by_key.len();
            self.by_key.remove(release.resource.key);
            self.peak.give_back(&mut self.by_key, before);
        }
        let is_freed = matches!(released, Released::Freed { .. });
        (if is_freed { Released::Freed { woken } } else { released }, messages)
    }

    fn change_mode(
        &mut self,
        change: &ModeChange<'_>,
        now: BootInstant,
        waits: Waits<'_>,
    ) -> (ModeChanged, Vec<Message>) {
        let Some(lock) = self.by_key.get_mut(change.key) else {
            return (ModeChanged::Gone, Vec::new());
        };
        let writer_ended = lock.end_leases(now);
        let is_taken = lock.has_writer();
        let Some(own) = lock.own(change.owner) else {
            return (if is_taken { ModeChanged::Taken } else { ModeChanged::Gone }, Vec::new());
        };
        match (own.is_writer, change.to == Mode::Write) {
            (true, false) => {
                own.is_writer = false;
                (ModeChanged::Done, lock.settle(true, now, waits))
            }
            (false, true) => {
                let messages = lock.settle(writer_ended, now, waits);
                if lock.holders.len() > 1 || lock.waiting() > 0 {
                    return (ModeChanged::Busy, messages);
                }
                lock.holders.iter_mut().for_each(|own| own.is_writer = true);
                (ModeChanged::Done, messages)
            }
            _ => (ModeChanged::Done, Vec::new()),
        }
    }

    /// Removes locks without holders whenever the map has doubled, so that abandoned keys do not
    /// accumulate.
    fn purge(&mut self, now: BootInstant) {
        if self.by_key.len() >= self.purge_at.max(FIRST_PURGE) {
            let before = self.by_key.len();
            self.by_key.retain(|_, lock| {
                lock.waiting() > 0 || lock.holders.iter().any(|holder| holder.expires > now)
            });
            self.peak.give_back(&mut self.by_key, before);
            self.purge_at = self.by_key.len() * 2;
        }
    }
}

impl MemoryStore {
    /// A claim in the layout [`ReadWrite`](Layout::ReadWrite).
    pub(super) fn claim_read_write(&self, claim: Claim<'_>) -> Result<Acquired, StoreError> {
        let key = claim.resource.key;
        self.change(key, |keys, now, waits| {
            if let Some(other) = keys.other_layout(key, Layout::ReadWrite, now) {
                return (Err(other), Vec::new());
            }
            let (acquired, messages) = keys.read_write.try_acquire(claim, now, waits);
            (Ok(acquired), messages)
        })
    }

    pub(super) fn release_read_write(&self, release: &Release<'_>) -> Released {
        self.change(release.resource.key, |keys, now, waits| {
            keys.read_write.release(release, now, waits)
        })
    }

    pub(super) fn change_read_write(&self, change: &ModeChange<'_>) -> ModeChanged {
        self.change(change.key, |keys, now, waits| keys.read_write.change_mode(change, now, waits))
    }
}
