//! Held locks whose keys the store watches: it reports when another client changes one.
//!
//! A report makes a renewal due at once, and its answer tells whether the lock is lost. A report may
//! be wrong: the store can watch only so many keys and reports those that it forgets, and some servers
//! report the renewals themselves. After a report, the next verification of the lease therefore comes
//! after a pause at the earliest, which doubles with each report that comes soon after the last one.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::BootInstant;
use crate::engine::handoff::Lease;
use crate::store::hold_reports::ChangedKeys;
use crate::sync::{Mutex, lock};

/// The first and the longest pause, as parts of the lease. Renewals without reports are as far apart as
/// the longest pause.
const PAUSES_PER_TERM: (u32, u32) = (30, 3);

/// The number of entries from which those of leases that have ended are removed.
const FEW: usize = 1024;

/// The held locks whose keys the store watches.
#[derive(Debug, Default)]
pub(crate) struct WatchedLeases {
    state: Mutex<WatchState>,
}

#[derive(Debug, Default)]
struct WatchState {
    by_key: HashMap<Arc<str>, WatchedLease>,
    /// The number of entries from which ended leases are searched for.
    most: usize,
    /// Keys that have changed.
    changed: Vec<Arc<str>>,
    /// Whether any key may have changed.
    any_changed: bool,
}

#[derive(Debug)]
struct WatchedLease {
    lease: Weak<Lease>,
    /// When a report last led, or will lead, to a verification; `PAST` if none has.
    verified: BootInstant,
    /// The pause before the next one.
    pause: Duration,
}

impl WatchedLease {
    fn new(lease: &Arc<Lease>) -> Self {
        let pause = lease.term() / PAUSES_PER_TERM.0;
        Self { lease: Arc::downgrade(lease), verified: BootInstant::PAST, pause }
    }

    /// When the lease has to be verified because of a report; `None` if a verification is due already.
    fn next_verification(&mut self, term: Duration, now: BootInstant) -> Option<BootInstant> {
        if self.verified >= now {
            return None;
        }
        let (first, longest) = PAUSES_PER_TERM;
        let quiet = now.since(self.verified);
        if self.verified == BootInstant::PAST || quiet > self.pause * 2 {
            (self.verified, self.pause) = (now, term / first);
        } else {
            self.verified = now.max(self.verified.after(self.pause));
            self.pause = (self.pause * 2).min(term / longest);
        }
        Some(self.verified)
    }
}

impl WatchedLeases {
    /// The store watches the key of a lease from now on.
    pub(crate) fn watch(&self, lease: &Arc<Lease>) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if let Some(known) = state.by_key.get_mut(&**lease.key()) {
            if !std::ptr::eq(known.lease.as_ptr(), Arc::as_ptr(lease)) {
                *known = WatchedLease::new(lease);
            }
            return;
        }
        if state.by_key.len() >= state.most.max(FEW) {
            state.by_key.retain(|_, known| known.lease.strong_count() > 0);
            state.by_key.shrink_to(2 * FEW);
            state.most = 2 * state.by_key.len();
        }
        state.by_key.insert(Arc::clone(lease.key()), WatchedLease::new(lease));
    }

    /// Records that these keys have changed.
    pub(crate) fn report(&self, changed: ChangedKeys) {
        let mut state = lock(&self.state);
        match changed {
            ChangedKeys::These(keys) => {
                let watched = keys.into_iter().filter(|key| state.by_key.contains_key(&**key));
                let watched: Vec<_> = watched.collect();
                state.changed.extend(watched);
            }
            ChangedKeys::Any => state.any_changed = true,
        }
    }

    /// Records when the lease is verified.
    pub(crate) fn verified_at(&self, lease: &Arc<Lease>, at: BootInstant) {
        if let Some(known) = lock(&self.state).by_key.get_mut(&**lease.key()) {
            known.verified = at;
        }
    }

    /// The leases that have to be verified because of reports since the last call, and when.
    pub(crate) fn take(&self, now: BootInstant) -> Vec<(Arc<Lease>, BootInstant)> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let changed = if std::mem::take(&mut state.any_changed) {
            state.changed.clear();
            state.by_key.keys().cloned().collect()
        } else {
            std::mem::take(&mut state.changed)
        };
        let mut due = Vec::new();
        for key in changed {
            let Some(known) = state.by_key.get_mut(&*key) else { continue };
            // Most reports are about own releases.
            let Some(lease) = known.lease.upgrade().filter(|lease| lease.is_valid(now)) else {
                state.by_key.remove(&*key);
                continue;
            };
            if let Some(at) = known.next_verification(lease.term(), now) {
                due.push((lease, at));
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::handoff::Hold;
    use crate::engine::testing::{LEASE, hold_in, request};
    use crate::store::memory::MemoryStore;

    fn held(key: &str) -> Hold {
        hold_in(MemoryStore::new(), key, &request(Some(LEASE)).terms, BootInstant::now())
    }

    fn watched(key: &str) -> (WatchedLeases, Hold) {
        let (leases, hold) = (WatchedLeases::default(), held(key));
        leases.watch(hold.lease());
        (leases, hold)
    }

    fn report(leases: &WatchedLeases, key: &str) {
        leases.report(ChangedKeys::These(vec![Arc::from(key)]));
    }

    fn due(leases: &WatchedLeases, now: BootInstant) -> Vec<Duration> {
        leases.take(now).into_iter().map(|(_, at)| at.since(now)).collect()
    }

    #[test]
    fn a_lease_is_verified_at_once_and_then_after_pauses_that_double() {
        let (leases, hold) = watched("k");
        let (start, moment) = (BootInstant::now(), Duration::from_nanos(1));
        assert!(due(&leases, start).is_empty());
        report(&leases, "another");
        assert!(due(&leases, start).is_empty());
        report(&leases, "k");
        report(&leases, "k");
        assert_eq!(due(&leases, start), [Duration::ZERO], "once for both reports");
        let quiet = start.after(LEASE / 14);
        report(&leases, "k");
        assert_eq!(due(&leases, quiet), [Duration::ZERO], "after a time without reports");
        let (mut verified, first, longest) = (quiet, LEASE / PAUSES_PER_TERM.0, LEASE / 3);
        for pause in [first, first * 2, first * 4, first * 8, longest, longest] {
            // The renewal watches the key again.
            leases.watch(hold.lease());
            report(&leases, "k");
            assert_eq!(due(&leases, verified.after(moment)), [pause.saturating_sub(moment)]);
            report(&leases, "k");
            assert!(due(&leases, verified.after(moment)).is_empty(), "it is due already");
            verified = verified.after(pause);
        }
    }

    #[test]
    fn the_next_lease_of_a_key_is_verified_at_once() {
        let (leases, _hold) = watched("k");
        let now = BootInstant::now();
        report(&leases, "k");
        assert_eq!(due(&leases, now).len(), 1);
        let next = held("k");
        leases.watch(next.lease());
        report(&leases, "k");
        assert_eq!(due(&leases, now), [Duration::ZERO]);
    }

    #[test]
    fn any_key_may_have_changed() {
        let (leases, _hold) = watched("k");
        let other = held("other");
        leases.watch(other.lease());
        leases.report(ChangedKeys::Any);
        assert_eq!(due(&leases, BootInstant::now()).len(), 2);
    }

    #[test]
    fn leases_that_have_ended_are_forgotten() {
        let (leases, hold) = watched("k");
        drop(hold);
        report(&leases, "k");
        assert!(due(&leases, BootInstant::now()).is_empty());
        assert!(lock(&leases.state).by_key.is_empty());
        for n in 0..=FEW {
            leases.watch(held(&n.to_string()).lease());
        }
        assert!(lock(&leases.state).by_key.len() <= 1);
    }
}
