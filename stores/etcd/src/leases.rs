//! Leases of etcd.
//!
//! All holds that are renewed share one lease per term: one message keeps them all. Its time to live is a second longer than
//! the term, rounded up, so that most acquires find it fresh enough: a grant is for the whole term, and the lease has to
//! last as long. When half of that second has passed, one of the acquires has it extended meanwhile. If it is older than that
//! second, the acquires wait for the extension.
//!
//! A shared lease that is *retired* gets no new holds, and the next acquire grants another one. It is retired when a request
//! that attaches a key to it, or frees one, has no answer: as long as the lease lives, that request may leave a key behind.
//! When the other holds have ended, the lease is revoked, and whatever it has left is gone. If such a request turns out to
//! have attached a key while the revocation is on its way, the key is moved to another lease. A lease that was reported
//! missing gets no holds either.
//!
//! **Extensions.** A member that was suspended may answer a request to extend a lease that it received while it was the
//! leader, although another leader has taken over and counts the lease from another moment. An extension therefore counts
//! only when a transaction that was sent after its answer has succeeded in the same term of raft: then there was no other
//! leader in between.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::errors::EtcdFailure;
use super::members::{Members, Method};
use super::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use super::presence::LeasePresence;
use lock_core::clock::BootInstant;
use lock_core::safeguard::Safeguard;
use lock_core::store::per_runtime::PerRuntime;
use lock_core::sync::{Mutex, lock};

/// By how much the time to live of a shared lease exceeds the term.
const SLACK: u64 = 1;

/// How much of that is left when an acquire has the lease extended, although it would still be fresh enough.
const EARLY: Duration = Duration::from_millis(500);

/// After such an extension began, the other acquires do not begin another one for so long.
const EXTENDING: Duration = Duration::from_millis(200);

/// How long a mark that a client waits for a key lasts at most. Waiting calls make an attempt every five seconds, which makes
/// the mark again.
const MARKED: Duration = Duration::from_secs(60);

/// How long marks get the same lease. It is not extended, so they end.
const MARKING: Duration = Duration::from_secs(30);

/// The number of revoked leases that are remembered.
const REMEMBERED: usize = 1000;

/// Whole seconds, rounded up.
pub(super) fn seconds(term: Duration) -> u64 {
    term.as_secs() + u64::from(term.subsec_nanos() > 0)
}

/// An answer to a request that extends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extended {
    Alive(LeaseExtension),
    /// The lease does not exist, or its leader has changed.
    Missing,
}

/// An extension, which counts if it is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeaseExtension {
    /// The lease lasts at least until then.
    pub(super) until: BootInstant,
    /// The term of raft in which the member was that has answered.
    raft_term: u64,
}

impl LeaseExtension {
    /// Whether a transaction that was sent later, and was answered in this term of raft, confirms the extension.
    pub(super) fn is_confirmed_in(&self, raft_term: u64) -> bool {
        let is_same = self.raft_term == raft_term && raft_term != 0;
        is_same || !Safeguard::ExtensionsAreConfirmed.is_on()
    }
}

impl Members {
    /// A new lease: its number, and until when it lasts at least.
    pub(super) async fn grant_lease(&self, ttl: u64) -> Result<(i64, BootInstant), EtcdFailure> {
        let sent = BootInstant::now();
        let ttl = i64::try_from(ttl).unwrap_or(i64::MAX);
        let answer: LeaseGrantResponse =
            self.call(Method::LEASE_GRANT, &LeaseGrantRequest { ttl }).await?;
        // The server gives more than it is asked for if that is below its minimum.
        Ok((answer.id, sent.after(Duration::from_secs(u64::try_from(answer.ttl).unwrap_or(0)))))
    }

    pub(super) async fn extend_lease(&self, id: i64) -> Result<Extended, EtcdFailure> {
        let sent = BootInstant::now();
        let answer: LeaseKeepAliveResponse =
            self.call(Method::KEEP_ALIVE, &LeaseKeepAliveRequest { id }).await?;
        let raft_term = answer.header.map_or(0, |header| header.raft_term);
        Ok(match u64::try_from(answer.ttl) {
            Ok(ttl) if ttl > 0 => Extended::Alive(LeaseExtension {
                until: sent.after(Duration::from_secs(ttl)),
                raft_term,
            }),
            _ => Extended::Missing,
        })
    }

    /// Ends a lease, and removes its keys. It does not matter whether there was one.
    pub(super) async fn revoke_lease(&self, id: i64) -> Result<(), EtcdFailure> {
        let revoked = self.call(Method::LEASE_REVOKE, &LeaseRevokeRequest { id }).await;
        match revoked {
            Ok(LeaseRevokeResponse {}) | Err(EtcdFailure::LeaseGone) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// The rest of a lease; `None` if it has ended.
    pub(super) async fn rest_of_lease(&self, id: i64) -> Result<Option<Duration>, EtcdFailure> {
        let request = LeaseTimeToLiveRequest { id };
        let answer: LeaseTimeToLiveResponse = self.call(Method::LEASE_TIME, &request).await?;
        // The answer is rounded down.
        Ok(u64::try_from(answer.ttl).ok().map(|rest| Duration::from_secs(rest + 1)))
    }
}

/// A lease for a key that is about to be acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attachable {
    pub(super) id: i64,
    /// Whether it is known to last long enough. Otherwise, that is so if the extension is confirmed.
    lasts: bool,
    /// An extension that is confirmed by a later transaction.
    unconfirmed: Option<LeaseExtension>,
}

impl Attachable {
    /// A lease that was granted just now.
    pub(super) fn new(id: i64) -> Self {
        Self { id, lasts: true, unconfirmed: None }
    }
}

/// The shared leases of a client.
#[derive(Default)]
pub(super) struct SharedLeases {
    by_ttl: Mutex<HashMap<u64, Arc<LeaseSlot>>>,
    /// The leases that are retired, and not known to have ended.
    retired: Mutex<Vec<i64>>,
    /// The lease of marks, and until when marks get it.
    of_marks: Mutex<Option<(i64, BootInstant)>>,
    /// Locked during a request for that lease, as that of a slot.
    asking_for_marks: PerRuntime<Arc<tokio::sync::Mutex<()>>>,
    /// The leases that were last revoked, whether or not there is an answer. An answer that has found a key with one of them
    /// may be older.
    revoked: Mutex<VecDeque<i64>>,
    /// What is written beside each of these leases, if the client tells anything about itself.
    presence: Mutex<Option<Arc<LeasePresence>>>,
}

/// The current lease of one time to live.
#[derive(Default)]
struct LeaseSlot {
    current: Mutex<Option<SharedLease>>,
    /// Locked during a request for the lease, so that acquires at the same time share it. Those of a runtime do not wait for
    /// another one, which may be blocked.
    asking: PerRuntime<Arc<tokio::sync::Mutex<()>>>,
}

#[derive(Debug, Clone, Copy)]
struct SharedLease {
    id: i64,
    /// It lasts at least until then.
    until: BootInstant,
    /// The last extension, if no transaction has confirmed it yet.
    unconfirmed: Option<LeaseExtension>,
    /// Until then, an acquire is expected to extend it.
    extending_until: BootInstant,
}

impl SharedLease {
    fn new(id: i64, until: BootInstant) -> Self {
        Self { id, until, unconfirmed: None, extending_until: BootInstant::PAST }
    }
}

/// What an acquire may do with the current lease.
#[derive(Debug, PartialEq, Eq)]
enum Freshness {
    /// Use it.
    Fresh(Attachable),
    /// The same, but have it extended, for the later ones.
    Aging(Attachable),
    Stale,
}

impl LeaseSlot {
    /// Whether the current lease lasts until then.
    fn freshness(&self, until: BootInstant) -> Freshness {
        let mut current = lock(&self.current);
        let Some(lease) = current.as_mut() else { return Freshness::Stale };
        let is_extended =
            |until| lease.unconfirmed.is_some_and(|extension| extension.until >= until);
        let lasts = lease.until >= until;
        if !lasts && !is_extended(until) {
            return Freshness::Stale;
        }
        let (attachable, now) = (
            Attachable { id: lease.id, lasts, unconfirmed: lease.unconfirmed },
            BootInstant::now(),
        );
        let early = until.after(EARLY);
        if lease.until >= early || is_extended(early) || lease.extending_until > now {
            return Freshness::Fresh(attachable);
        }
        lease.extending_until = now.after(EXTENDING);
        Freshness::Aging(attachable)
    }

    /// The lease was extended.
    fn extended(&self, id: i64, extension: LeaseExtension) {
        if let Some(lease) = lock(&self.current).as_mut().filter(|lease| lease.id == id) {
            lease.unconfirmed = Some(extension);
        }
    }
}

impl SharedLeases {
    /// Has this written beside each lease from now on.
    pub(super) fn introduce(&self, presence: Option<LeasePresence>) {
        *lock(&self.presence) = presence.map(Arc::new);
    }

    fn slot(&self, term: Duration) -> Arc<LeaseSlot> {
        let ttl = seconds(term) + SLACK;
        Arc::clone(lock(&self.by_ttl).entry(ttl).or_default())
    }

    /// A lease of this term that lasts at least until this time.
    pub(super) async fn lasting(
        self: &Arc<Self>,
        members: &Arc<Members>,
        term: Duration,
        until: BootInstant,
    ) -> Result<Attachable, EtcdFailure> {
        let slot = self.slot(term);
        match slot.freshness(until) {
            Freshness::Fresh(known) => return Ok(known),
            Freshness::Aging(known) => {
                let (leases, members) = (Arc::clone(self), Arc::clone(members));
                tokio::spawn(async move {
                    let asking = slot.asking.here(Arc::default);
                    let _asking = asking.lock().await;
                    // If it fails, the acquire that needs it reports that.
                    let _ = leases.extend(&members, &slot, known.id).await;
                });
                return Ok(known);
            }
            Freshness::Stale => {}
        }
        let asking = slot.asking.here(Arc::default);
        let _asking = asking.lock().await;
        if let Freshness::Fresh(fresh) | Freshness::Aging(fresh) = slot.freshness(until) {
            return Ok(fresh);
        }
        let current = *lock(&slot.current);
        if let Some(lease) = current.filter(|lease| lease.until > BootInstant::now()) {
            let extension = self.extend(members, &slot, lease.id).await?;
            if extension.is_some_and(|extension| extension.until >= until) {
                return Ok(Attachable { id: lease.id, lasts: false, unconfirmed: extension });
            }
        }
        let (id, lasts_until) = members.grant_lease(seconds(term) + SLACK).await?;
        if let Some(presence) = &*lock(&self.presence) {
            presence.write(members, id);
        }
        let mut current = lock(&slot.current);
        // That of another runtime may be newer, if this one was blocked.
        if current.is_none_or(|current| current.until < lasts_until) {
            *current = Some(SharedLease::new(id, lasts_until));
        }
        Ok(Attachable::new(id))
    }

    /// A lease for the mark that a client waits for a key. `None` if etcd grants none now: the key is not marked then.
    pub(super) async fn of_mark(&self, members: &Members) -> Option<i64> {
        let current = || {
            let current = lock(&self.of_marks).filter(|(_, until)| *until > BootInstant::now());
            current.map(|(id, _)| id)
        };
        if let Some(id) = current() {
            return Some(id);
        }
        let asking = self.asking_for_marks.here(Arc::default);
        let _asking = asking.lock().await;
        if let Some(id) = current() {
            return Some(id);
        }
        let until = BootInstant::now().after(MARKING);
        let (id, _) = members.grant_lease(seconds(MARKED)).await.ok()?;
        *lock(&self.of_marks) = Some((id, until));
        Some(id)
    }

    /// Extends a lease. `None` if it cannot be used any more.
    async fn extend(
        &self,
        members: &Members,
        slot: &LeaseSlot,
        id: i64,
    ) -> Result<Option<LeaseExtension>, EtcdFailure> {
        match members.extend_lease(id).await {
            Ok(Extended::Alive(extension)) => {
                slot.extended(id, extension);
                return Ok(Some(extension));
            }
            Ok(Extended::Missing) => self.missing(id),
            // It has a key that the user may not write any more.
            Err(failure) if failure.is_missing_permission() => {
                self.retire(id);
            }
            Err(failure) => return Err(failure),
        }
        Ok(None)
    }

    /// Whether a lease lasts as long as was asked for, now that a transaction about it was answered in this term of raft.
    pub(super) fn lasts(&self, lease: &Attachable, raft_term: u64) -> bool {
        let Some(extension) = lease.unconfirmed else { return lease.lasts };
        if extension.is_confirmed_in(raft_term) {
            self.confirmed(lease.id, extension);
            return true;
        }
        self.change(lease.id, |current| {
            current.unconfirmed = current.unconfirmed.filter(|other| *other != extension);
        });
        lease.lasts
    }

    /// An extension of a lease was confirmed.
    pub(super) fn confirmed(&self, id: i64, extension: LeaseExtension) {
        self.change(id, |lease| {
            lease.until = lease.until.max(extension.until);
            lease.unconfirmed = lease.unconfirmed.filter(|other| other.until > lease.until);
        });
    }

    fn change(&self, id: i64, change: impl Fn(&mut SharedLease)) {
        for slot in lock(&self.by_ttl).values() {
            if let Some(lease) = lock(&slot.current).as_mut().filter(|lease| lease.id == id) {
                change(lease);
            }
        }
    }

    /// A lease was not found, and gets no holds. A retired one is still revoked, for a definite answer.
    pub(super) fn missing(&self, id: i64) {
        self.drop_current(id);
        // It may have been the one of the mark.
        *lock(&self.of_marks) = None;
    }

    /// The revocation of a retired lease is about to be sent.
    pub(super) fn begin_revocation(&self, id: i64) {
        let mut revoked = lock(&self.revoked);
        if !revoked.contains(&id) {
            revoked.truncate(REMEMBERED - 1);
            revoked.push_front(id);
        }
    }

    /// Whether the revocation of a lease was sent.
    pub(super) fn is_being_revoked(&self, id: i64) -> bool {
        lock(&self.revoked).contains(&id)
    }

    /// A lease does not exist any more.
    pub(super) fn ended(&self, id: i64) {
        self.drop_current(id);
        lock(&self.retired).retain(|retired| *retired != id);
    }

    /// A lease gets no more holds. Returns whether that is new.
    pub(super) fn retire(&self, id: i64) -> bool {
        let mut retired = lock(&self.retired);
        let is_new = !retired.contains(&id);
        if is_new {
            retired.push(id);
        }
        self.drop_current(id);
        is_new
    }

    pub(super) fn is_retired(&self, id: i64) -> bool {
        lock(&self.retired).contains(&id)
    }

    /// The retired leases.
    pub(super) fn retired(&self) -> Vec<i64> {
        lock(&self.retired).clone()
    }

    fn drop_current(&self, id: i64) {
        for slot in lock(&self.by_ttl).values() {
            let mut current = lock(&slot.current);
            if current.is_some_and(|lease| lease.id == id) {
                *current = None;
            }
        }
    }
}

#[cfg(test)]
mod tests;
