//! Locks in this process's memory, for tests and for running without a server. They exclude only
//! the tasks of one process. The store keeps all other promises. It has no replicas that a lock could
//! be missing on, so every request counts as acknowledged.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use super::contract::{
    Acquired, Backend, BackgroundRuntimes, Claim, Fenced, Grant, Lane, Left, LockStore, Release,
    Released, ReleasedBatch, Renewal, Renewed, Resource, SendTrace, StoreError, VerifyHolds,
};
use super::owner::OwnerId;
use super::subscriptions::{Subscription, Subscriptions};
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
    /// The highest fencing token so far.
    fence: u64,
}

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
    fn adopt(&self, _: &BackgroundRuntimes, _: VerifyHolds) {}

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
        Self { entries: HashMap::new(), peak: Peak::default(), purge_at: FIRST_PURGE, fence: 0 }
    }

    fn live(&mut self, key: &str, now: BootInstant) -> Option<&mut StoredLock> {
        self.entries.get_mut(key).filter(|entry| entry.expires > now)
    }

    fn try_acquire(&mut self, claim: Claim<'_>, now: BootInstant) -> Acquired {
        let (key, expires) = (claim.resource.key, now.after(claim.term));
        match self.live(key, now) {
            Some(entry) if entry.is_owned_by(claim.owner) => {
                // A late attempt must not shorten a lease that was extended since.
                entry.expires = entry.expires.max(expires);
                Acquired::Granted(Grant::of(claim.term))
            }
            Some(entry) => Acquired::Busy(Left::Time(entry.expires.since(now))),
            None => {
                self.purge(now);
                self.entries.insert(key.into(), StoredLock { owner: Some(claim.owner), expires });
                Acquired::Granted(Grant::of(claim.term))
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

    fn release(&mut self, release: &Release<'_>, now: BootInstant) -> Released {
        let Release { resource: Resource { key, .. }, owner, keep, .. } = *release;
        match self.live(key, now) {
            Some(entry) if entry.is_owned_by(owner) => {
                if keep.is_zero() {
                    let before = self.entries.len();
                    self.entries.remove(key);
                    self.peak.give_back(&mut self.entries, before);
                } else {
                    entry.owner = None;
                    entry.expires = now.after(keep);
                }
                Released::Freed { woken: 0 }
            }
            Some(_) => Released::Taken,
            None => Released::Gone,
        }
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
        MaybeReady::ready(Ok(self.keys().try_acquire(claim, BootInstant::now())))
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
    ) -> MaybeReady<'a, Result<Fenced, StoreError>> {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let wall_clock = u64::try_from(since_1970.unwrap_or_default().as_micros());
        let wall_clock = wall_clock.unwrap_or_default();
        let now = BootInstant::now();
        MaybeReady::ready(Ok(self.keys().fence(resource.key, owner, now, wall_clock)))
    }

    /// The number of subscriptions, because each client has at most one subscription to a key.
    fn count_waiters<'a>(
        &'a self,
        resource: Resource<'a>,
    ) -> MaybeReady<'a, Result<usize, StoreError>> {
        MaybeReady::ready(Ok(self.shared.subscriptions.listeners(resource.key)))
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
        let mut released = self.keys().release(release, BootInstant::now());
        if let Released::Freed { woken } = &mut released {
            let listeners = self.shared.subscriptions.wake(release.resource.key, true);
            // A key that stays taken cannot be acquired yet.
            *woken = if release.keep.is_zero() { listeners } else { 0 };
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::RequiredReplicas;
    use crate::store::contract::Queueing;

    const LEASE: Duration = Duration::from_secs(10);

    const GRANTED: Acquired =
        Acquired::Granted(Grant { term: LEASE, fence: None, is_transfer: false });

    fn owner() -> OwnerId {
        OwnerId::random().expect("randomness")
    }

    fn claim(key: &str, owner: OwnerId) -> Claim<'_> {
        Claim {
            resource: Resource::exclusive(key),
            owner,
            term: LEASE,
            fresh: true,
            acknowledged_by: RequiredReplicas::NONE,
            queueing: Queueing::None,
            queued_before: Queueing::None,
        }
    }

    fn renewal(owner: OwnerId, term: Duration) -> Renewal<'static> {
        let acknowledged_by = RequiredReplicas::NONE;
        Renewal { resource: Resource::exclusive("k"), owner, term, acknowledged_by }
    }

    fn release(owner: OwnerId, keep: Duration) -> Release<'static> {
        let resource = Resource::exclusive("k");
        Release { resource, owner, keep, term: LEASE, leaves_gap: false }
    }

    #[test]
    fn a_key_has_one_owner_until_its_lease_ends() {
        let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), owner(), owner());
        assert_eq!(keys.try_acquire(claim("k", one), start), GRANTED);
        let later = start.after(LEASE / 2);
        assert_eq!(keys.try_acquire(claim("k", two), later), Acquired::Busy(Left::Time(LEASE / 2)));
        assert_eq!(keys.try_acquire(claim("k", two), start.after(LEASE)), GRANTED);
    }

    #[test]
    fn a_repeated_claim_of_the_owner_is_granted_again() {
        let (mut keys, start, one) = (Keys::new(), BootInstant::now(), owner());
        keys.try_acquire(claim("k", one), start);
        let again = start.after(LEASE / 2);
        assert_eq!(keys.try_acquire(claim("k", one), again), GRANTED);
        assert!(
            keys.live("k", start.after(LEASE)).is_some(),
            "the lease counts from the second claim"
        );
    }

    #[test]
    fn a_repeated_claim_does_not_shorten_an_extended_lease() {
        let (mut keys, start, one) = (Keys::new(), BootInstant::now(), owner());
        keys.try_acquire(claim("k", one), start);
        let longer = renewal(one, LEASE * 3);
        assert_eq!(keys.renew(&longer, start), Renewed::Extended);
        assert_eq!(keys.try_acquire(claim("k", one), start), GRANTED);
        assert!(keys.live("k", start.after(LEASE * 2)).is_some());
    }

    #[test]
    fn only_the_owner_renews_and_releases() {
        let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), owner(), owner());
        keys.try_acquire(claim("k", one), start);
        let foreign = renewal(two, LEASE);
        assert_eq!(keys.renew(&foreign, start), Renewed::Taken);
        assert_eq!(keys.release(&release(two, Duration::ZERO), start), Released::Taken);
        assert_eq!(
            keys.release(&release(one, Duration::ZERO), start),
            Released::Freed { woken: 0 }
        );
        let stale = renewal(one, LEASE);
        assert_eq!(keys.renew(&stale, start), Renewed::Gone);
        assert_eq!(keys.release(&release(one, Duration::ZERO), start), Released::Gone);
    }

    #[test]
    fn a_key_that_is_kept_after_its_release_expires() {
        let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), owner(), owner());
        keys.try_acquire(claim("k", one), start);
        assert_eq!(keys.release(&release(one, LEASE / 2), start), Released::Freed { woken: 0 });
        assert_eq!(keys.try_acquire(claim("k", two), start), Acquired::Busy(Left::Time(LEASE / 2)));
        let late = renewal(one, LEASE);
        assert_eq!(keys.renew(&late, start), Renewed::Taken, "the key is not extended");
        let later = start.after(LEASE / 2);
        assert_eq!(keys.try_acquire(claim("k", two), later), GRANTED);
    }

    #[test]
    fn fencing_tokens_rise_even_if_the_wall_clock_goes_back() {
        let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), owner(), owner());
        keys.try_acquire(claim("k", one), start);
        assert_eq!(keys.fence("k", one, start, 1000), Fenced::With(1000));
        assert_eq!(keys.fence("k", one, start, 1000), Fenced::With(1001));
        assert_eq!(keys.fence("k", one, start, 10), Fenced::With(1002));
        assert_eq!(keys.fence("k", one, start, 2000), Fenced::With(2000));
        assert_eq!(keys.fence("k", two, start, 3000), Fenced::Taken);
        assert_eq!(keys.fence("k", one, start.after(LEASE), 3000), Fenced::Gone);
    }

    #[test]
    fn abandoned_keys_do_not_accumulate() {
        let (mut keys, start, one) = (Keys::new(), BootInstant::now(), owner());
        for n in 0..10 * FIRST_PURGE {
            let now = start.after(LEASE * u32::try_from(n).expect("small"));
            keys.try_acquire(claim(&n.to_string(), one), now);
        }
        assert!(keys.entries.len() <= FIRST_PURGE, "{}", keys.entries.len());
    }

    #[test]
    fn stores_with_the_same_name_are_one_store() {
        let one = MemoryBackend::named("same");
        assert!(Arc::ptr_eq(&one, &MemoryBackend::named("same")));
        assert!(!Arc::ptr_eq(&one, &MemoryBackend::named("other")));
        assert!(!Arc::ptr_eq(&MemoryBackend::new(), &MemoryBackend::new()));
    }
}
