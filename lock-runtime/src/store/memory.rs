//! Locks in this process's memory, for tests and for running without a server. They exclude only
//! the tasks of one process. The store keeps all other promises. It has no replicas that a lock could
//! be missing on, so every request counts as acknowledged.

mod queues;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use self::queues::{MemoryQueues, QueuedClaim};
use super::announcements::{Announced, Announcement};
use super::contract::{
    Acquired, Backend, BackgroundRuntimes, Capabilities, Claim, Fenced, Grant, Lane, Left,
    LockStore, Release, Released, ReleasedBatch, Renewal, Renewed, Resource, SendTrace,
    SetAcquired, SetClaim, Slot, StoreError,
};
use super::hold_reports::HoldReports;
use super::owner::OwnerId;
use super::queueing::{Queued, Queueing};
use super::subscriptions::{Listener, QueueMessage, Subscription, Subscriptions};
use crate::capacity::Peak;
use crate::clock::BootInstant;
use crate::maybe_ready::MaybeReady;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::timeout::RequestTimeout;
use crate::wire_format::WireFormat;

/// The number of keys at which expired keys are first removed.
const FIRST_PURGE: usize = 1024;

/// The number of the only connection, which never breaks.
const CONNECTION: u64 = 1;

/// The named stores, for as long as a client uses them.
static NAMED: Mutex<Vec<(String, Weak<MemoryBackend>)>> = Mutex::new(Vec::new());

/// A store, with one handle for each layout. The layouts do not differ, but the engine treats locks
/// of different handles as different locks, as with other stores.
pub(crate) struct MemoryBackend {
    handles: [Arc<MemoryStore>; WireFormat::ALL.len()],
}

/// One handle to a store.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    shared: Arc<MemoryState>,
    format: WireFormat,
}

#[derive(Debug)]
struct MemoryState {
    keys: Mutex<Keys>,
    subscriptions: Arc<Subscriptions>,
}

#[derive(Debug)]
struct Keys {
    entries: HashMap<Box<str>, StoredLock>,
    peak: Peak,
    /// The number of entries at which expired entries are removed.
    purge_at: usize,
    /// What the owners of keys have announced.
    announcements: HashMap<Box<str>, (OwnerId, String)>,
    /// The highest fencing token so far.
    fence: u64,
    queues: MemoryQueues,
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

impl MemoryBackend {
    /// Creates a store.
    pub(crate) fn new() -> Arc<Self> {
        let (keys, subscriptions) = (Mutex::new(Keys::new()), Subscriptions::local());
        let shared = Arc::new(MemoryState { keys, subscriptions });
        let handle = |format| Arc::new(MemoryStore { shared: Arc::clone(&shared), format });
        Arc::new(Self { handles: WireFormat::ALL.map(handle) })
    }

    /// Returns the store of this name, which all clients of this process that use the name share.
    pub(crate) fn named(name: &str) -> Arc<Self> {
        let mut named = lock(&NAMED);
        named.retain(|(_, store)| store.strong_count() > 0);
        if let Some(store) = named.iter().find(|(n, _)| n == name).and_then(|(_, s)| s.upgrade()) {
            return store;
        }
        let store = Self::new();
        named.push((name.to_owned(), Arc::downgrade(&store)));
        store
    }
}

impl Backend for MemoryBackend {
    fn adopt(&self, _: &BackgroundRuntimes, _: HoldReports) {}

    fn handle(&self, format: WireFormat) -> Arc<dyn LockStore> {
        Arc::clone(&self.handles[format.index()]) as Arc<dyn LockStore>
    }
}

impl MemoryStore {
    /// A handle to a new store.
    #[cfg(test)]
    pub(crate) fn new() -> Arc<Self> {
        Arc::clone(&MemoryBackend::new().handles[0])
    }

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
            fence: 0,
            queues: MemoryQueues::default(),
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
            None => keys.queues.first(key).is_none(),
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
            Some(_) => return (Released::Taken, None),
            None => return (Released::Gone, None),
        };
        let is_transfer = matches!(message, Some((_, QueueMessage::Transfer { .. })));
        (Released::Freed { woken: usize::from(is_transfer) }, message)
    }

    /// The next token is at least the wall clock in µs, so that the tokens of this process are
    /// above those of an earlier one.
    fn fence(&mut self, key: &str, owner: OwnerId, now: BootInstant, wall_clock: u64) -> Fenced {
        match self.live(key, now) {
            Some(entry) if entry.is_owned_by(owner) => {
                self.fence = wall_clock.max(self.fence.saturating_add(1));
                Fenced::With(self.fence)
            }
            Some(_) => Fenced::Taken,
            None => Fenced::Gone,
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
        let waits = |owner| self.shared.subscriptions.listener(claim.resource.key, owner);
        let (acquired, message) = self.keys().try_acquire(claim, BootInstant::now(), waits);
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

    fn slot(&self, _: &str) -> Option<Slot> {
        Some(Slot::ONLY)
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
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let wall_clock = u64::try_from(since_1970.unwrap_or_default().as_micros());
        let wall_clock = wall_clock.unwrap_or_default();
        let now = BootInstant::now();
        MaybeReady::ready(Ok(self.keys().fence(resource.key, owner, now, wall_clock.max(at_least))))
    }

    fn announce<'a>(
        &'a self,
        announcement: Announcement<'a>,
    ) -> MaybeReady<'a, Result<Announced, StoreError>> {
        let Announcement { key, owner, text, .. } = announcement;
        let mut keys = self.keys();
        let announced = match keys.live(key, BootInstant::now()) {
            Some(entry) if entry.is_owned_by(owner) => Announced::Done,
            Some(_) => Announced::Taken,
            None => Announced::Gone,
        };
        if announced == Announced::Done {
            keys.announcements.insert(key.into(), (owner, text.to_owned()));
        }
        MaybeReady::ready(Ok(announced))
    }

    fn announced<'a>(
        &'a self,
        key: &'a str,
    ) -> MaybeReady<'a, Result<Option<(String, Left)>, StoreError>> {
        let mut keys = self.keys();
        let now = BootInstant::now();
        let Some(entry) = keys.live(key, now) else { return MaybeReady::ready(Ok(None)) };
        let (holder, left) = (entry.owner, Left::Time(entry.expires.since(now)));
        let announced = keys.announcements.get(key).filter(|(owner, _)| Some(*owner) == holder);
        MaybeReady::ready(Ok(announced.map(|(_, text)| (text.clone(), left))))
    }

    fn count_waiters<'a>(
        &'a self,
        resource: Resource<'a>,
    ) -> MaybeReady<'a, Result<usize, StoreError>> {
        MaybeReady::ready(Ok(self.keys().queues.len(resource.key)))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { queues: true, ..Capabilities::ALL }
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
        self.shared.subscriptions.listen(resource.key, resource.key, self.format, owner)
    }

    fn layout(&self) -> &'static str {
        self.format.value()
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

impl MemoryStore {
    fn release_now(&self, release: &Release<'_>) -> Released {
        let waits = |owner| self.shared.subscriptions.listener(release.resource.key, owner);
        let (released, message) = self.keys().release(release, BootInstant::now(), waits);
        send(message);
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
