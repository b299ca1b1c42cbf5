//! Semaphores in the memory store. See `redis/semaphore/settle.lua` for whose turn it is.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::queues::{MOST_AHEAD, QueuedClaim};
use super::read_write::Waits;
use super::{FIRST_PURGE, MemoryStore, Message};
use crate::capacity::Peak;
use crate::clock::BootInstant;
use crate::permits::Permits;
use crate::store::contract::{
    Acquired, Claim, Grant, Layout, Left, Mode, Queued, Queueing, Release, Released, Renewal,
    Renewed, StoreError,
};
use crate::store::key_holder::KeyHolder;
use crate::store::owner::OwnerId;
use crate::store::queueing::{QueueTicket, transfer_term};
use crate::store::subscriptions::QueueMessage;

/// All semaphores.
#[derive(Debug, Default)]
pub(super) struct Semaphores {
    by_key: HashMap<Box<str>, CountedLock>,
    peak: Peak,
    purge_at: usize,
    /// The last ticket.
    tickets: u64,
}

/// A semaphore that has holders, or for which claims wait.
#[derive(Debug, Default)]
struct CountedLock {
    holders: Vec<PermitHolding>,
    claims: BTreeMap<u64, (QueuedClaim, Permits)>,
}

#[derive(Debug)]
struct PermitHolding {
    /// `None` after the release of permits that stay taken for their `min_hold`.
    owner: Option<OwnerId>,
    permits: Permits,
    expires: BootInstant,
}

impl CountedLock {
    fn end_leases(&mut self, now: BootInstant) {
        self.holders.retain(|holder| holder.expires > now);
    }

    fn fits(&self, permits: Permits) -> bool {
        let taken: u64 = self.holders.iter().map(|holder| u64::from(holder.permits.count())).sum();
        taken + u64::from(permits.count()) <= u64::from(permits.limit())
    }

    fn own(&mut self, owner: OwnerId) -> Option<&mut PermitHolding> {
        self.holders.iter_mut().find(|holder| holder.owner == Some(owner))
    }

    /// Gives permits to the claims whose turn it is.
    fn settle(&mut self, now: BootInstant, waits: Waits<'_>) -> Vec<Message> {
        let mut messages = Vec::new();
        while let Some(first) = self.claims.first_entry() {
            let (QueuedClaim { owner, ticket, term }, permits) = *first.get();
            let listener = waits(owner);
            if listener.is_some() && !self.fits(permits) {
                break;
            }
            self.claims.pop_first();
            if let Some(listener) = listener {
                let (owner, expires) = (Some(owner), now.after(term));
                self.holders.push(PermitHolding { owner, permits, expires });
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
}

impl Semaphores {
    /// Whether a semaphore of this key has a holder.
    pub(super) fn is_held(&self, key: &str, now: BootInstant) -> bool {
        self.holder(key, now).is_some()
    }

    /// One of the holders.
    pub(super) fn holder(&self, key: &str, now: BootInstant) -> Option<KeyHolder> {
        let mut holders = self.by_key.get(key)?.holders.iter();
        holders.find(|holder| holder.expires > now).map(|holder| KeyHolder::of(holder.owner))
    }

    pub(super) fn waiting(&self, key: &str) -> usize {
        self.by_key.get(key).map_or(0, |lock| lock.claims.len())
    }

    /// Also returns the limit of a holder, if it is another one and the claim has to wait.
    fn try_acquire(
        &mut self,
        claim: Claim<'_>,
        permits: Permits,
        now: BootInstant,
        waits: Waits<'_>,
    ) -> ((Acquired, Option<u32>), Vec<Message>) {
        let (owner, expires) = (claim.owner, now.after(claim.term));
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
        if lock.claims.is_empty() && lock.fits(permits) {
            lock.holders.push(PermitHolding { owner: Some(owner), permits, expires });
            return (granted, messages);
        }
        let left = lock.left(now);
        let mut limits = lock.holders.iter().map(|holder| holder.permits.limit());
        let other = limits.find(|limit| *limit != permits.limit());
        if claim.queueing == Queueing::None {
            return ((Acquired::Busy(left), other), messages);
        }
        let queued = lock.claims.iter().find(|(_, (claim, _))| claim.owner == owner);
        let ticket = queued.map(|(ticket, _)| *ticket);
        let ticket = if let Some(ticket) = ticket {
            ticket
        } else {
            self.tickets += 1;
            let (ticket, term) = (QueueTicket(self.tickets), transfer_term(claim.term));
            lock.claims.insert(self.tickets, (QueuedClaim { owner, ticket, term }, permits));
            self.tickets
        };
        let ahead = lock.claims.range(..ticket).take(MOST_AHEAD).count();
        let queued = Queued { left, ticket: QueueTicket(ticket), ahead };
        ((Acquired::Queued(queued), other), messages)
    }

    pub(super) fn renew(&mut self, renewal: &Renewal<'_>, now: BootInstant) -> Renewed {
        let lock = self.by_key.get_mut(renewal.resource.key);
        let own = lock.and_then(|lock| lock.own(renewal.owner)).filter(|own| own.expires > now);
        let Some(own) = own else { return Renewed::Gone };
        own.expires = own.expires.max(now.after(renewal.term));
        Renewed::Extended
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
        (if own.is_some() { Released::Freed { woken } } else { Released::Gone }, messages)
    }

    /// Removes semaphores without holders whenever the map has doubled, so that abandoned keys do not
    /// accumulate.
    fn purge(&mut self, now: BootInstant) {
        if self.by_key.len() >= self.purge_at.max(FIRST_PURGE) {
            let before = self.by_key.len();
            self.by_key.retain(|_, lock| {
                !lock.claims.is_empty() || lock.holders.iter().any(|holder| holder.expires > now)
            });
            self.peak.give_back(&mut self.by_key, before);
            self.purge_at = self.by_key.len() * 2;
        }
    }
}

impl MemoryStore {
    /// A claim in the layout [`Semaphore`](Layout::Semaphore).
    pub(super) fn claim_permits(&self, claim: Claim<'_>) -> Result<Acquired, StoreError> {
        let (key, mode) = (claim.resource.key, claim.resource.mode);
        let Mode::Permits(permits) = mode else {
            return Err(StoreError::Refused("a semaphore has permits only".to_owned()));
        };
        let (acquired, other) = self.change(key, |keys, now, waits| {
            if let Some(other) = keys.other_layout(key, Layout::Semaphore, now) {
                return (Err(other), Vec::new());
            }
            let (acquired, messages) = keys.semaphores.try_acquire(claim, permits, now, waits);
            (Ok(acquired), messages)
        })?;
        if let Some(other) = other {
            self.shared.limits.found(key, permits.limit(), other);
        }
        Ok(acquired)
    }

    pub(super) fn release_permits(&self, release: &Release<'_>) -> Released {
        self.change(release.resource.key, |keys, now, waits| {
            keys.semaphores.release(release, now, waits)
        })
    }
}
