//! Locks that are shares of a capacity, in the memory store: read-write locks and semaphores. Claims are served in the order
//! in which they came; see `stores/redis/src/scripts/counted/settle.lua`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::queues::{MOST_AHEAD, QueuedClaim};
use super::{FIRST_PURGE, Keys, MemoryStore, Message};
use crate::capacity::Peak;
use crate::clock::BootInstant;
use crate::store::contract::{
    Acquired, Claim, Grant, Layout, Left, Mode, ModeChange, ModeChanged, Queued, Queueing, Release,
    Released, Renewal, Renewed, StoreError,
};
use crate::store::key_holder::KeyHolder;
use crate::store::layout::Shares;
use crate::store::owner::OwnerId;
use crate::store::queueing::{QueueTicket, transfer_term};
use crate::store::subscriptions::{Listener, QueueMessage};

/// All counted locks of one layout.
#[derive(Debug, Default)]
pub(super) struct CountedLocks {
    by_key: HashMap<Box<str>, CountedLock>,
    peak: Peak,
    purge_at: usize,
    /// The last ticket.
    tickets: u64,
}

/// A lock that has holders, or for which claims wait.
#[derive(Debug, Default)]
struct CountedLock {
    holders: Vec<ShareHolder>,
    claims: BTreeMap<u64, (QueuedClaim, Shares)>,
}

#[derive(Debug)]
struct ShareHolder {
    /// `None` after the release of shares that stay taken for their `min_hold`.
    owner: Option<OwnerId>,
    shares: Shares,
    expires: BootInstant,
}

/// Returns the listener of a claim that waits.
pub(super) type Waits<'a> = &'a dyn Fn(OwnerId) -> Option<Arc<Listener>>;

/// The shares of a mode. Exclusive locks are not counted.
fn shares_of(mode: Mode) -> Shares {
    mode.shares().unwrap_or(Shares { count: 1, capacity: 1 })
}

impl CountedLock {
    fn end_leases(&mut self, now: BootInstant) {
        self.holders.retain(|holder| holder.expires > now);
    }

    fn taken(&self) -> u64 {
        self.holders.iter().map(|holder| holder.shares.count).sum()
    }

    fn fits(&self, shares: Shares) -> bool {
        self.taken() + shares.count <= shares.capacity
    }

    fn own(&mut self, owner: OwnerId) -> Option<&mut ShareHolder> {
        self.holders.iter_mut().find(|holder| holder.owner == Some(owner))
    }

    /// Gives shares to the claims whose turn it is: the first one, while it fits.
    fn settle(&mut self, now: BootInstant, waits: Waits<'_>) -> Vec<Message> {
        let mut messages = Vec::new();
        while let Some(first) = self.claims.first_entry() {
            let (QueuedClaim { owner, ticket, term }, shares) = *first.get();
            let listener = waits(owner);
            if listener.is_some() && !self.fits(shares) {
                break;
            }
            self.claims.pop_first();
            if let Some(listener) = listener {
                let (owner, expires) = (Some(owner), now.after(term));
                self.holders.push(ShareHolder { owner, shares, expires });
                messages.push((listener, QueueMessage::Transfer { ticket, term }));
            }
        }
        messages
    }

    /// Lets the first claim that waits make an attempt.
    fn first_waits(&self, waits: Waits<'_>) -> Option<Message> {
        let first = self.claims.values().find_map(|(claim, _)| waits(claim.owner))?;
        Some((first, QueueMessage::Attempt { after: Duration::ZERO }))
    }

    /// The rest of the lease that ends first.
    fn left(&self, now: BootInstant) -> Left {
        let next = self.holders.iter().map(|holder| holder.expires).min();
        Left::Time(next.map(|expires| expires.since(now)).unwrap_or_default())
    }

    fn is_unused(&self, now: BootInstant) -> bool {
        self.claims.is_empty() && self.holders.iter().all(|holder| holder.expires <= now)
    }
}

impl CountedLocks {
    /// One of the holders of a lock.
    pub(super) fn holder(&self, key: &str, now: BootInstant) -> Option<KeyHolder> {
        let mut holders = self.by_key.get(key)?.holders.iter();
        holders.find(|holder| holder.expires > now).map(|holder| KeyHolder::of(holder.owner))
    }

    pub(super) fn waiting(&self, key: &str) -> usize {
        self.by_key.get(key).map_or(0, |lock| lock.claims.len())
    }

    /// Also returns the capacity of a holder, if it is another one and the claim has to wait.
    fn try_acquire(
        &mut self,
        claim: Claim<'_>,
        now: BootInstant,
        waits: Waits<'_>,
    ) -> ((Acquired, Option<u64>), Vec<Message>) {
        let (owner, expires) = (claim.owner, now.after(claim.term));
        let shares = shares_of(claim.resource.mode);
        let granted = (Acquired::Granted(Grant::of(claim.term)), None);
        self.purge(now);
        let lock = self.by_key.entry(claim.resource.key.into()).or_default();
        lock.end_leases(now);
        let messages = lock.settle(now, waits);
        if let Some(own) = lock.own(owner) {
            // A late attempt must not shorten a lease that was extended since.
            own.expires = own.expires.max(expires);
            return (granted, messages);
        }
        if lock.claims.is_empty() && lock.fits(shares) {
            lock.holders.push(ShareHolder { owner: Some(owner), shares, expires });
            return (granted, messages);
        }
        let left = lock.left(now);
        let mut capacities = lock.holders.iter().map(|holder| holder.shares.capacity);
        let other = capacities.find(|capacity| *capacity != shares.capacity);
        if claim.queueing == Queueing::None {
            return ((Acquired::Busy(left), other), messages);
        }
        let queued = lock.claims.iter().find(|(_, (claim, _))| claim.owner == owner);
        let ticket = queued.map_or(self.tickets + 1, |(ticket, _)| *ticket);
        if ticket > self.tickets {
            self.tickets = ticket;
            let (ticket, term) = (QueueTicket(ticket), transfer_term(claim.term));
            lock.claims.insert(self.tickets, (QueuedClaim { owner, ticket, term }, shares));
        }
        let ahead = lock.claims.range(..ticket).take(MOST_AHEAD).count();
        let queued = Queued { left, ticket: QueueTicket(ticket), ahead };
        ((Acquired::Queued(queued), other), messages)
    }

    pub(super) fn renew(&mut self, renewal: &Renewal<'_>, now: BootInstant) -> Renewed {
        let shares = shares_of(renewal.resource.mode);
        let Some(lock) = self.by_key.get_mut(renewal.resource.key) else { return Renewed::Gone };
        if let Some(own) = lock.own(renewal.owner).filter(|own| own.expires > now) {
            own.expires = own.expires.max(now.after(renewal.term));
            let is_less = own.shares.count < shares.count;
            return if is_less { Renewed::AsReader } else { Renewed::Extended };
        }
        lock.end_leases(now);
        if lock.fits(shares) { Renewed::Gone } else { Renewed::Taken }
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
        let waited = lock.claims.len();
        lock.claims.retain(|_, (claim, _)| claim.owner != release.owner);
        let has_left = lock.claims.len() < waited;
        lock.end_leases(now);
        let own = lock.holders.iter().position(|holder| holder.owner == Some(release.owner));
        let is_taken = own.is_none() && !lock.fits(shares_of(release.resource.mode));
        match own {
            None => {}
            Some(own) if release.keep.is_zero() => {
                lock.holders.swap_remove(own);
            }
            Some(own) => {
                let own = &mut lock.holders[own];
                (own.owner, own.expires) = (None, now.after(release.keep));
                // The first claim would sleep until the end of the lease.
                let messages = lock.first_waits(waits).into_iter().collect();
                return (Released::Freed { woken: 0 }, messages);
            }
        }
        let mut messages = lock.settle(now, waits);
        if messages.is_empty() && has_left {
            // Only the claim that has left may have known when the next lease ends.
            messages.extend(lock.first_waits(waits));
        }
        let woken = usize::from(!messages.is_empty() || !lock.claims.is_empty());
        if lock.holders.is_empty() && lock.claims.is_empty() {
            let before = self.by_key.len();
            self.by_key.remove(release.resource.key);
            self.peak.give_back(&mut self.by_key, before);
        }
        let released = match own {
            Some(_) => Released::Freed { woken },
            None if is_taken => Released::Taken,
            None => Released::Gone,
        };
        (released, messages)
    }

    fn change_mode(
        &mut self,
        change: &ModeChange<'_>,
        now: BootInstant,
        waits: Waits<'_>,
    ) -> (ModeChanged, Vec<Message>) {
        let shares = shares_of(change.to);
        let Some(lock) = self.by_key.get_mut(change.key) else {
            return (ModeChanged::Gone, Vec::new());
        };
        lock.end_leases(now);
        let Some(own) = lock.own(change.owner) else {
            let is_free = lock.fits(shares);
            return (if is_free { ModeChanged::Gone } else { ModeChanged::Taken }, Vec::new());
        };
        let before = own.shares.count;
        if shares.count <= before {
            own.shares = shares;
            return (ModeChanged::Done, lock.settle(now, waits));
        }
        // Those whose clients are gone may be the only ones that wait.
        let messages = lock.settle(now, waits);
        let fits = lock.taken() - before + shares.count <= shares.capacity;
        if !fits || !lock.claims.is_empty() {
            return (ModeChanged::Busy, messages);
        }
        if let Some(own) = lock.own(change.owner) {
            own.shares = shares;
        }
        (ModeChanged::Done, messages)
    }

    /// Removes locks without holders whenever the map has doubled, so that abandoned keys do not accumulate.
    fn purge(&mut self, now: BootInstant) {
        if self.by_key.len() >= self.purge_at.max(FIRST_PURGE) {
            let before = self.by_key.len();
            self.by_key.retain(|_, lock| !lock.is_unused(now));
            self.peak.give_back(&mut self.by_key, before);
            self.purge_at = self.by_key.len() * 2;
        }
    }
}

impl Keys {
    /// The counted locks of a layout.
    pub(super) fn counted(&mut self, layout: Layout) -> &mut CountedLocks {
        if layout == Layout::ReadWrite { &mut self.read_write } else { &mut self.semaphores }
    }
}

impl MemoryStore {
    pub(super) fn claim_counted(&self, claim: Claim<'_>) -> Result<Acquired, StoreError> {
        let (key, layout) = (claim.resource.key, self.layout);
        let (acquired, other) = self.change(key, |keys, now, waits| {
            if let Some(other) = keys.other_layout(key, layout, now) {
                return (Err(other), Vec::new());
            }
            let (acquired, messages) = keys.counted(layout).try_acquire(claim, now, waits);
            (Ok(acquired), messages)
        })?;
        if let (Some(other), Mode::Permits(permits)) = (other, claim.resource.mode) {
            let other = u32::try_from(other).unwrap_or(u32::MAX);
            self.shared.limits.found(key, permits.limit(), other);
        }
        Ok(acquired)
    }

    pub(super) fn release_counted(&self, release: &Release<'_>) -> Released {
        self.change(release.resource.key, |keys, now, waits| {
            keys.counted(self.layout).release(release, now, waits)
        })
    }

    pub(super) fn change_counted(&self, change: &ModeChange<'_>) -> ModeChanged {
        self.change(change.key, |keys, now, waits| {
            keys.counted(self.layout).change_mode(change, now, waits)
        })
    }
}
