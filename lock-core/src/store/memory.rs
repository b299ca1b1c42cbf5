//! Locks in this process's memory, for tests and for running without a server. They exclude only
//! the tasks of one process. The store keeps all other promises. It has no replicas that a lock could
//! be missing on, so every request counts as acknowledged.

mod asker;
pub mod backend;
mod clients;
mod counted;
mod layouts;
mod queues;
mod records;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use self::queues::{MemoryQueues, QueuedClaim};
use super::announcements::{Announced, Announcement};
use super::contract::{
    Acquired, Capabilities, Claim, Extension, Extensions, Fenced, Grant, Lane, Layout, Left,
    LockStore, Mode, ModeChange, ModeChanged, Release, Released, ReleasedBatch, Renewal, Renewed,
    Resource, SendTrace, SetAcquired, SetClaim, StoreAnswer, StoreError,
};
use super::different_limits::DifferentLimits;
use super::owner::OwnerId;
use super::periods::{RunEnd, RunEnded, RunRecord, RunStart, RunStarted};
use super::queueing::{Queued, Queueing};
use super::subscriptions::{Listener, QueueMessage, Subscription, Subscriptions};
use crate::capacity::Peak;
use crate::clock::{BootInstant, unix_time};
use crate::maybe_ready::MaybeReady;
use crate::replicas::RequiredReplicas;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::timeout::RequestTimeout;
use counted::CountedLocks;
use records::{Clocks, Runs};

/// The number of keys at which expired keys are first removed.
const FIRST_PURGE: usize = 1024;

/// The number of the only connection, which never breaks.
const CONNECTION: u64 = 1;

/// One handle to a store.
#[derive(Debug)]
pub struct MemoryStore {
    shared: Arc<MemoryState>,
    layout: Layout,
}

#[derive(Debug)]
struct MemoryState {
    keys: Mutex<Keys>,
    subscriptions: Arc<Subscriptions>,
    limits: DifferentLimits,
}

#[derive(Debug)]
struct Keys {
    entries: HashMap<Box<str>, StoredLock>,
    peak: Peak,
    /// The number of entries at which expired entries are removed.
    purge_at: usize,
    /// What the owners of keys have announced.
    announcements: HashMap<Box<str>, (OwnerId, String)>,
    /// The records of the last runs.
    runs: Runs,
    /// The highest fencing token so far.
    fence: u64,
    queues: MemoryQueues,
    read_write: CountedLocks,
    semaphores: CountedLocks,
}

/// A message to a claim, which is sent when the keys are unlocked.
type Message = (Arc<Listener>, QueueMessage);

#[derive(Debug)]
struct StoredLock {
    /// `None` after the release of a key that stays taken for its `min_hold`.
    owner: Option<OwnerId>,
    expires: BootInstant,
}

impl StoredLock {
    fn is_owned_by(&self, owner: OwnerId) -> bool {
        self.owner == Some(owner)
    }
}

impl MemoryStore {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        lock(&self.shared.keys)
    }
}

impl Keys {
    fn new() -> Self {
        Self {
            entries: HashMap::new(),
            peak: Peak::default(),
            purge_at: FIRST_PURGE,
            announcements: HashMap::new(),
            runs: Runs::default(),
            fence: 0,
            queues: MemoryQueues::default(),
            read_write: CountedLocks::default(),
            semaphores: CountedLocks::default(),
        }
    }

    fn live(&mut self, key: &str, now: BootInstant) -> Option<&mut StoredLock> {
        self.entries.get_mut(key).filter(|entry| entry.expires > now)
    }

    /// `waits` returns the listener of a claim that waits.
    fn try_acquire(
        &mut self,
        claim: Claim<'_>,
        now: BootInstant,
        waits: impl Fn(OwnerId) -> Option<Arc<Listener>>,
    ) -> (Acquired, Option<Message>) {
        let (key, expires) = (claim.resource.key, now.after(claim.term));
        let mut message = None;
        // The key has expired. The first claim in its queue comes first.
        if self.live(key, now).is_none()
            && self.queues.first(key).is_some_and(|first| first != claim.owner)
        {
            message = self.transfer(key, now, waits);
        }
        let acquired = match self.live(key, now) {
            Some(entry) if entry.is_owned_by(claim.owner) => {
                // A late attempt must not shorten a lease that was extended since.
                entry.expires = entry.expires.max(expires);
                Acquired::Granted(Grant::of(claim.term))
            }
            Some(entry) => {
                let left = Left::Time(entry.expires.since(now));
                if claim.queueing == Queueing::None {
                    Acquired::Busy(left)
                } else {
                    let (ticket, ahead) = self.queues.enter(key, claim.owner, claim.term);
                    Acquired::Queued(Queued { left, ticket, ahead })
                }
            }
            None => {
                self.purge(now);
                self.queues.leave(key, claim.owner);
                self.entries.insert(key.into(), StoredLock { owner: Some(claim.owner), expires });
                Acquired::Granted(Grant::of(claim.term))
            }
        };
        (acquired, message)
    }

    /// A key that has expired is not free for a set if claims wait in its queue, which come first.
    fn try_acquire_all(&mut self, claim: &SetClaim<'_>, now: BootInstant) -> SetAcquired {
        let is_free = |keys: &mut Self, key: &str| match keys.live(key, now) {
            Some(entry) => entry.is_owned_by(claim.owner),
            None => {
                keys.queues.first(key).is_none()
                    && keys.other_layout(key, Layout::TOKEN, now).is_none()
            }
        };
        if let Some(busy) = claim.keys.iter().position(|key| !is_free(self, key)) {
            return SetAcquired::Busy(busy);
        }
        self.purge(now);
        let expires = now.after(claim.term);
        for key in claim.keys {
            self.entries.insert((*key).into(), StoredLock { owner: Some(claim.owner), expires });
        }
        SetAcquired::Granted
    }

    /// Gives a key to the first claim in its queue that still waits.
    fn transfer(
        &mut self,
        key: &str,
        now: BootInstant,
        waits: impl Fn(OwnerId) -> Option<Arc<Listener>>,
    ) -> Option<Message> {
        loop {
            let QueuedClaim { owner, ticket, term } = self.queues.pop(key)?;
            if let Some(listener) = waits(owner) {
                let lock = StoredLock { owner: Some(owner), expires: now.after(term) };
                self.entries.insert(key.into(), lock);
                return Some((listener, QueueMessage::Transfer { ticket, term }));
            }
        }
    }

    fn renew(&mut self, renewal: &Renewal<'_>, now: BootInstant) -> Renewed {
        match renewal.resource.mode {
            Mode::Exclusive => {}
            Mode::Read | Mode::Write => return self.read_write.renew(renewal, now),
            Mode::Permits(_) => return self.semaphores.renew(renewal, now),
        }
        match self.live(renewal.resource.key, now) {
            Some(entry) if entry.is_owned_by(renewal.owner) => {
                entry.expires = entry.expires.max(now.after(renewal.term));
                Renewed::Extended
            }
            Some(_) => Renewed::Taken,
            None => Renewed::Gone,
        }
    }

    /// `waits` returns the listener of a claim that waits.
    fn release(
        &mut self,
        release: &Release<'_>,
        now: BootInstant,
        waits: impl Fn(OwnerId) -> Option<Arc<Listener>>,
    ) -> (Released, Option<Message>) {
        let Release { resource: Resource { key, .. }, owner, keep, .. } = *release;
        let was_first = self.queues.first(key) == Some(owner);
        self.queues.leave(key, owner);
        let message = match self.live(key, now) {
            Some(entry) if entry.is_owned_by(owner) && keep.is_zero() => {
                let message = self.transfer(key, now, waits);
                if message.is_none() {
                    let before = self.entries.len();
                    self.entries.remove(key);
                    self.announcements.remove(key);
                    self.peak.give_back(&mut self.entries, before);
                }
                message
            }
            Some(entry) if entry.is_owned_by(owner) => {
                entry.owner = None;
                entry.expires = now.after(keep);
                // The first claim would sleep until the end of the lease.
                let first = self.queues.first(key).and_then(waits);
                first.map(|first| (first, QueueMessage::Attempt { after: Duration::ZERO }))
            }
            Some(_) => {
                // Only the claim that has left may have known when the key becomes free.
                let next = self.queues.first(key).filter(|_| was_first).and_then(waits);
                let attempt = QueueMessage::Attempt { after: Duration::ZERO };
                return (Released::Taken, next.map(|next| (next, attempt)));
            }
            None => return (Released::Gone, None),
        };
        let is_transfer = matches!(message, Some((_, QueueMessage::Transfer { .. })));
        (Released::Freed { woken: usize::from(is_transfer) }, message)
    }

    /// The next token is at least the wall clock in µs, so that the tokens of this process are
    /// above those of an earlier one.
    fn fence(
        &mut self,
        resource: Resource<'_>,
        owner: OwnerId,
        now: BootInstant,
        wall_clock: u64,
    ) -> Fenced {
        let (term, acknowledged_by) = (Duration::ZERO, RequiredReplicas::NONE);
        // A renewal that extends nothing tells whether the owner has the resource.
        match self.renew(&Renewal { resource, owner, term, acknowledged_by }, now) {
            Renewed::Extended => {
                self.fence = wall_clock.max(self.fence.saturating_add(1));
                Fenced::With(self.fence)
            }
            Renewed::Taken | Renewed::AsReader => Fenced::Taken,
            Renewed::Gone => Fenced::Gone,
        }
    }

    /// Removes expired entries whenever the map has doubled, so that abandoned keys do not
    /// accumulate.
    fn purge(&mut self, now: BootInstant) {
        if self.entries.len() >= self.purge_at {
            let before = self.entries.len();
            self.entries.retain(|_, entry| entry.expires > now);
            self.announcements.retain(|key, _| self.entries.contains_key(key));
            self.peak.give_back(&mut self.entries, before);
            self.purge_at = FIRST_PURGE.max(self.entries.len() * 2);
        }
    }
}

impl LockStore for MemoryStore {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        _: RequestTimeout,
        trace: &'a SendTrace,
    ) -> MaybeReady<'a, Result<Acquired, StoreError>> {
        trace.sent(CONNECTION);
        match self.layout {
            Layout::Wire(_) | Layout::Vote => {}
            Layout::ReadWrite | Layout::Semaphore => {
                return MaybeReady::ready(self.claim_counted(claim));
            }
        }
        let waits = |owner| self.shared.subscriptions.listener(claim.resource.key, owner);
        let mut keys = self.keys();
        let now = BootInstant::now();
        if let Some(other) = keys.other_layout(claim.resource.key, self.layout, now) {
            return MaybeReady::ready(Err(other));
        }
        let (acquired, message) = keys.try_acquire(claim, now, waits);
        drop(keys);
        send(message);
        MaybeReady::ready(Ok(acquired))
    }

    fn try_acquire_all<'a>(
        &'a self,
        claim: SetClaim<'a>,
        _: RequestTimeout,
        trace: &'a SendTrace,
    ) -> MaybeReady<'a, Result<SetAcquired, StoreError>> {
        trace.sent(CONNECTION);
        MaybeReady::ready(Ok(self.keys().try_acquire_all(&claim, BootInstant::now())))
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        let mut keys = self.keys();
        // The clock is read while the keys are locked. With an earlier reading, this call could
        // revive a key that was reported gone meanwhile.
        let now = BootInstant::now();
        MaybeReady::ready(batch.iter().map(|renewal| Ok(keys.renew(renewal, now))).collect())
    }

    fn release<'a>(
        &'a self,
        release: Release<'a>,
        _: Lane,
    ) -> MaybeReady<'a, Result<Released, StoreError>> {
        MaybeReady::ready(Ok(self.release_now(&release)))
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        _: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        let answers = batch.iter().map(|release| Ok(self.release_now(release))).collect();
        MaybeReady::ready(ReleasedBatch { connection: NonZeroU64::new(CONNECTION), answers })
    }

    fn fence<'a>(
        &'a self,
        resource: Resource<'a>,
        owner: OwnerId,
        at_least: u64,
    ) -> MaybeReady<'a, Result<Fenced, StoreError>> {
        let wall_clock = u64::try_from(unix_time().as_micros()).unwrap_or_default();
        let now = BootInstant::now();
        MaybeReady::ready(Ok(self.keys().fence(resource, owner, now, wall_clock.max(at_least))))
    }

    fn announce<'a>(
        &'a self,
        announcement: Announcement<'a>,
    ) -> MaybeReady<'a, Result<Announced, StoreError>> {
        MaybeReady::ready(Ok(self.keys().announce(&announcement, BootInstant::now())))
    }

    fn announced<'a>(
        &'a self,
        key: &'a str,
    ) -> MaybeReady<'a, Result<Option<(String, Left)>, StoreError>> {
        MaybeReady::ready(Ok(self.keys().announced(key, BootInstant::now())))
    }

    fn start_run<'a>(&'a self, start: RunStart<'a>) -> StoreAnswer<'a, RunStarted> {
        MaybeReady::ready(Ok(self.keys().start_run(&start, Clocks::now())))
    }

    fn end_run<'a>(&'a self, end: RunEnd<'a>) -> StoreAnswer<'a, RunEnded> {
        MaybeReady::ready(Ok(self.keys().end_run(&end, Clocks::now())))
    }

    fn last_run<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<RunRecord>> {
        MaybeReady::ready(Ok(self.keys().last_run(key, BootInstant::now())))
    }

    fn change_mode<'a>(&'a self, change: ModeChange<'a>) -> StoreAnswer<'a, ModeChanged> {
        MaybeReady::ready(Ok(self.change_counted(&change)))
    }

    fn count_waiters<'a>(
        &'a self,
        resource: Resource<'a>,
        _: Lane,
    ) -> MaybeReady<'a, Result<usize, StoreError>> {
        let mut keys = self.keys();
        MaybeReady::ready(Ok(match self.layout {
            Layout::Wire(_) | Layout::Vote => keys.queues.len(resource.key),
            layout => keys.counted(layout).waiting(resource.key),
        }))
    }

    fn capabilities(&self) -> Capabilities {
        const EACH: Extensions =
            Extensions::of(&[Extension::KeptKeys, Extension::Acknowledgements]);
        const PLAIN: Extensions = EACH
            .with(Extension::Tokens)
            .with(Extension::Runs)
            .with(Extension::Announcements)
            .with(Extension::SeveralKeys);
        let extensions = match self.layout {
            Layout::Wire(_) => PLAIN.with(Extension::Queues),
            Layout::Vote => PLAIN,
            Layout::ReadWrite => EACH.with(Extension::Queues).with(Extension::Tokens),
            Layout::Semaphore => EACH.with(Extension::Queues),
        };
        Capabilities { extensions, counts_waiters: true, ..Capabilities::PLAIN }
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
        self.shared.subscriptions.listen(resource.key, resource.key, self.layout, owner)
    }

    fn layout(&self) -> &'static str {
        self.layout.value()
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

impl MemoryStore {
    fn release_now(&self, release: &Release<'_>) -> Released {
        match self.layout {
            Layout::Wire(_) | Layout::Vote => {}
            Layout::ReadWrite | Layout::Semaphore => return self.release_counted(release),
        }
        let waits = |owner| self.shared.subscriptions.listener(release.resource.key, owner);
        let (released, message) = self.keys().release(release, BootInstant::now(), waits);
        send(message);
        self.wake_voters(release, released);
        released
    }
}

/// Sends a message. Call this function without the keys locked.
fn send(message: Option<Message>) {
    if let Some((listener, message)) = message {
        listener.receive(message);
    }
}

#[cfg(test)]
mod tests;
