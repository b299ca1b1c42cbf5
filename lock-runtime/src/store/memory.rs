//! Locks in this process's memory: the embedded default, for tests and for running without a
//! server. It excludes the tasks of one process and keeps every promise but the reach.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use super::wake::WakeUps;
use super::{
    Attempt, Background, Claim, Fenced, Lane, Left, LockStore, Patience, Release, Released,
    ReleasedBatch, Renewal, Renewed, StoreError, Subscription, Token, Trace,
};
use crate::clock::BootInstant;
use crate::eventually::Eventually;
use crate::format::WireFormat;
use crate::room::Peak;
use crate::sync::{Mutex, MutexGuard};

/// How many keys there may be before expired ones are looked for.
const FIRST_PURGE: usize = 1024;

/// There is no connection, so none that breaks.
const CONNECTION: u64 = 1;

/// The stores that have a name, for as long as somebody uses them.
static NAMED: Mutex<Vec<(String, Weak<MemoryStore>)>> = Mutex::new(Vec::new());

#[derive(Debug)]
pub(crate) struct MemoryStore {
    keys: Mutex<Keys>,
    wake_ups: Arc<WakeUps>,
}

#[derive(Debug)]
struct Keys {
    entries: HashMap<Box<str>, Entry>,
    peak: Peak,
    /// The number of entries at which the expired ones are dropped.
    purge_at: usize,
    /// The highest fencing token that was given.
    fence: u64,
}

#[derive(Debug)]
struct Entry {
    /// `None` once it was released and only stays taken.
    token: Option<Token>,
    expires: BootInstant,
}

impl Entry {
    fn is_owned_by(&self, token: &Token) -> bool {
        self.token.as_ref() == Some(token)
    }
}

impl MemoryStore {
    /// A store of its own.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { keys: Mutex::new(Keys::new()), wake_ups: WakeUps::local() })
    }

    /// The store of this name, shared by all clients of this process that ask for it.
    pub(crate) fn named(name: &str) -> Arc<Self> {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        named.retain(|(_, store)| store.strong_count() > 0);
        if let Some(store) = named.iter().find(|(n, _)| n == name).and_then(|(_, s)| s.upgrade()) {
            return store;
        }
        let store = Self::new();
        named.push((name.to_owned(), Arc::downgrade(&store)));
        store
    }

    /// Plain data; every change to it is complete before anything that could panic.
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keys {
    fn new() -> Self {
        Self { entries: HashMap::new(), peak: Peak::default(), purge_at: FIRST_PURGE, fence: 0 }
    }

    fn live(&mut self, key: &str, now: BootInstant) -> Option<&mut Entry> {
        self.entries.get_mut(key).filter(|entry| entry.expires > now)
    }

    fn try_acquire(&mut self, claim: Claim<'_>, now: BootInstant) -> Attempt {
        let expires = now.after(claim.lease);
        match self.live(claim.key, now) {
            Some(entry) if entry.is_owned_by(claim.token) => {
                // A try that comes late must not shorten what the hold has been extended to since.
                entry.expires = entry.expires.max(expires);
                Attempt::Granted
            }
            Some(entry) => Attempt::Busy(Left::Time(entry.expires.since(now))),
            None => {
                self.purge(now);
                let entry = Entry { token: Some(claim.token.clone()), expires };
                self.entries.insert(claim.key.into(), entry);
                Attempt::Granted
            }
        }
    }

    fn renew(&mut self, renewal: &Renewal<'_>, now: BootInstant) -> Renewed {
        match self.live(renewal.key, now) {
            Some(entry) if entry.is_owned_by(renewal.token) => {
                entry.expires = entry.expires.max(now.after(renewal.lease));
                Renewed::Extended
            }
            Some(_) => Renewed::Taken,
            None => Renewed::Gone,
        }
    }

    fn release(&mut self, key: &str, token: &Token, keep: Duration, now: BootInstant) -> Released {
        match self.live(key, now) {
            Some(entry) if entry.is_owned_by(token) => {
                if keep.is_zero() {
                    let before = self.entries.len();
                    self.entries.remove(key);
                    self.peak.give_back(&mut self.entries, before);
                } else {
                    entry.token = None;
                    entry.expires = now.after(keep);
                }
                Released::Freed { others: 0 }
            }
            Some(_) => Released::Taken,
            None => Released::Gone,
        }
    }

    /// The next token is no less than the wall clock in µs, so that those of this process are higher
    /// than those of an earlier one.
    fn fence(&mut self, key: &str, token: &Token, now: BootInstant, wall_clock: u64) -> Fenced {
        match self.live(key, now) {
            Some(entry) if entry.is_owned_by(token) => {
                self.fence = wall_clock.max(self.fence.saturating_add(1));
                Fenced::With(self.fence)
            }
            Some(_) => Fenced::Taken,
            None => Fenced::Gone,
        }
    }

    /// Drops what has expired whenever the map has doubled, so that keys which were abandoned
    /// and are never asked for again do not pile up.
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
        _patience: Patience,
        trace: &'a Trace,
    ) -> Eventually<'a, Result<Attempt, StoreError>> {
        trace.sent(CONNECTION);
        Eventually::ready(Ok(self.keys().try_acquire(claim, BootInstant::now())))
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _lane: Lane,
    ) -> Eventually<'a, Vec<Result<Renewed, StoreError>>> {
        let mut keys = self.keys();
        // Read in here: by an earlier reading, a key might live on that was told to be gone since.
        let now = BootInstant::now();
        Eventually::ready(batch.iter().map(|renewal| Ok(keys.renew(renewal, now))).collect())
    }

    fn release<'a>(
        &'a self,
        key: &'a str,
        token: &'a Token,
        keep: Duration,
        _lane: Lane,
    ) -> Eventually<'a, Result<Released, StoreError>> {
        let mut released = self.keys().release(key, token, keep, BootInstant::now());
        if let Released::Freed { others } = &mut released {
            let told = self.wake_ups.wake(key, true);
            // One that stays taken is nobody's yet.
            *others = if keep.is_zero() { told } else { 0 };
        }
        Eventually::ready(Ok(released))
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> Eventually<'a, ReleasedBatch> {
        let release = |one: &Release<'a>| match self.release(one.key, one.token, one.keep, lane) {
            Eventually::Ready(Some(answer)) => answer,
            _ => unreachable!("it needs no time"),
        };
        let answers = batch.iter().map(release).collect();
        Eventually::ready(ReleasedBatch { connection: NonZeroU64::new(CONNECTION), answers })
    }

    fn fence<'a>(
        &'a self,
        key: &'a str,
        token: &'a Token,
    ) -> Eventually<'a, Result<Fenced, StoreError>> {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let wall_clock = u64::try_from(since_1970.unwrap_or_default().as_micros());
        let wall_clock = wall_clock.unwrap_or_default();
        Eventually::ready(Ok(self.keys().fence(key, token, BootInstant::now(), wall_clock)))
    }

    /// Each client has one contender for a key at the most.
    fn others<'a>(
        &'a self,
        key: &'a str,
        _format: WireFormat,
    ) -> Eventually<'a, Result<usize, StoreError>> {
        Eventually::ready(Ok(self.wake_ups.listeners(key)))
    }

    fn subscribe(&self, key: &str, format: WireFormat) -> Subscription {
        self.wake_ups.listen(key, key, format)
    }

    fn is_immediate(&self) -> bool {
        true
    }

    fn adopt(&self, _background: &Background) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn token() -> Token {
        Token::random().expect("randomness")
    }

    fn claim<'a>(key: &'a str, token: &'a Token) -> Claim<'a> {
        Claim { key, token, lease: LEASE, fresh: true }
    }

    #[test]
    fn a_key_has_one_owner_until_its_lease_ends() {
        let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), token(), token());
        assert_eq!(keys.try_acquire(claim("k", &one), start), Attempt::Granted);
        let later = start.after(LEASE / 2);
        assert_eq!(keys.try_acquire(claim("k", &two), later), Attempt::Busy(Left::Time(LEASE / 2)));
        assert_eq!(keys.try_acquire(claim("k", &two), start.after(LEASE)), Attempt::Granted);
    }

    #[test]
    fn a_repeated_claim_of_the_owner_is_granted_again() {
        let (mut keys, start, one) = (Keys::new(), BootInstant::now(), token());
        keys.try_acquire(claim("k", &one), start);
        let again = start.after(LEASE / 2);
        assert_eq!(keys.try_acquire(claim("k", &one), again), Attempt::Granted);
        assert!(keys.live("k", start.after(LEASE)).is_some(), "and starts a new lease");
    }

    #[test]
    fn a_repeated_claim_that_comes_late_shortens_nothing() {
        let (mut keys, start, one) = (Keys::new(), BootInstant::now(), token());
        keys.try_acquire(claim("k", &one), start);
        let longer = Renewal { key: "k", token: &one, lease: LEASE * 3 };
        assert_eq!(keys.renew(&longer, start), Renewed::Extended);
        assert_eq!(keys.try_acquire(claim("k", &one), start), Attempt::Granted);
        assert!(keys.live("k", start.after(LEASE * 2)).is_some());
    }

    #[test]
    fn only_the_owner_renews_and_releases() {
        let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), token(), token());
        keys.try_acquire(claim("k", &one), start);
        let foreign = Renewal { key: "k", token: &two, lease: LEASE };
        assert_eq!(keys.renew(&foreign, start), Renewed::Taken);
        assert_eq!(keys.release("k", &two, Duration::ZERO, start), Released::Taken);
        assert_eq!(keys.release("k", &one, Duration::ZERO, start), Released::Freed { others: 0 });
        let stale = Renewal { key: "k", token: &one, lease: LEASE };
        assert_eq!(keys.renew(&stale, start), Renewed::Gone);
        assert_eq!(keys.release("k", &one, Duration::ZERO, start), Released::Gone);
    }

    #[test]
    fn a_key_that_is_to_be_kept_expires_instead() {
        let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), token(), token());
        keys.try_acquire(claim("k", &one), start);
        assert_eq!(keys.release("k", &one, LEASE / 2, start), Released::Freed { others: 0 });
        assert_eq!(keys.try_acquire(claim("k", &two), start), Attempt::Busy(Left::Time(LEASE / 2)));
        let renewal = Renewal { key: "k", token: &one, lease: LEASE };
        assert_eq!(keys.renew(&renewal, start), Renewed::Taken, "it is not extended any more");
        let later = start.after(LEASE / 2);
        assert_eq!(keys.try_acquire(claim("k", &two), later), Attempt::Granted);
    }

    #[test]
    fn fencing_tokens_rise_whatever_the_wall_clock_does() {
        let (mut keys, start, one, two) = (Keys::new(), BootInstant::now(), token(), token());
        keys.try_acquire(claim("k", &one), start);
        assert_eq!(keys.fence("k", &one, start, 1000), Fenced::With(1000));
        assert_eq!(keys.fence("k", &one, start, 1000), Fenced::With(1001));
        assert_eq!(keys.fence("k", &one, start, 10), Fenced::With(1002));
        assert_eq!(keys.fence("k", &one, start, 2000), Fenced::With(2000));
        assert_eq!(keys.fence("k", &two, start, 3000), Fenced::Taken);
        assert_eq!(keys.fence("k", &one, start.after(LEASE), 3000), Fenced::Gone);
    }

    #[test]
    fn abandoned_keys_do_not_pile_up() {
        let (mut keys, start, one) = (Keys::new(), BootInstant::now(), token());
        for n in 0..10 * FIRST_PURGE {
            let now = start.after(LEASE * u32::try_from(n).expect("small"));
            keys.try_acquire(claim(&n.to_string(), &one), now);
        }
        assert!(keys.entries.len() <= FIRST_PURGE, "{}", keys.entries.len());
    }

    #[test]
    fn stores_of_one_name_are_one_store() {
        let one = MemoryStore::named("same");
        assert!(Arc::ptr_eq(&one, &MemoryStore::named("same")));
        assert!(!Arc::ptr_eq(&one, &MemoryStore::named("other")));
        assert!(!Arc::ptr_eq(&MemoryStore::new(), &MemoryStore::new()));
    }
}
