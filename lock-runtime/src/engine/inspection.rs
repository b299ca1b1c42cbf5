//! What others may ask about the locks of a client, and the end of a hold that others want.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::background::loss_record::LossRecord;
use super::core::Engine;
use super::handoff::Lease;
use crate::clock::BootInstant;
use crate::error::LostReason;
use crate::store::contract::Mode;
use crate::telemetry::SiteMetrics;

/// A lock that a client holds.
#[derive(Debug)]
pub(crate) struct HeldLock {
    pub(crate) key: Arc<str>,
    pub(crate) mode: Mode,
    /// Where it was acquired.
    pub(crate) site: &'static SiteMetrics,
    pub(crate) held_for: Duration,
    /// The time to its deadline.
    pub(crate) left: Duration,
    /// The length of its last grant or renewal.
    pub(crate) term: Duration,
    pub(crate) is_renewed: bool,
    /// The longest time that it may be held, if that is limited.
    pub(crate) max_hold: Option<Duration>,
    /// The fencing token, if a holder has asked for it.
    pub(crate) fence: Option<u64>,
}

impl Engine {
    /// The locks that the client holds, or those with this key, in the order in which they were acquired.
    pub(crate) fn held_locks(&self, key: Option<&str>) -> Vec<HeldLock> {
        let now = BootInstant::now();
        let held = self.holds_of(key).into_iter().filter_map(|lease| {
            let (site, granted) = lease.held_at()?;
            let (held_for, left) = (now.since(granted), lease.deadline().since(now));
            let (key, mode) = (Arc::clone(lease.key()), lease.mode());
            let (term, is_renewed, max_hold) =
                (lease.last_term(), !lease.is_fixed(), lease.max_hold());
            let fence = lease.known_fence();
            Some(HeldLock { key, mode, site, held_for, left, term, is_renewed, max_hold, fence })
        });
        let mut held: Vec<_> = held.collect();
        held.sort_by_key(|lock| Reverse(lock.held_for));
        held
    }

    /// The keys for which calls of the client wait, or this key, and the number of these calls.
    pub(crate) fn waiting_calls(&self, key: Option<&str>) -> BTreeMap<Arc<str>, usize> {
        let mut calls = BTreeMap::new();
        for (key, count) in self.queues().waiting(key) {
            *calls.entry(key).or_default() += count;
        }
        calls
    }

    /// The last losses, the latest first.
    pub(crate) fn losses(&self) -> Vec<LossRecord> {
        self.background().losses()
    }

    /// Ends the holds with this key, as if they were lost. Returns their number. Each key is freed when its
    /// holders have left, or when its lease ends.
    pub(crate) fn revoke(&self, key: &str) -> usize {
        let held = self.holds_of(Some(key)).into_iter().filter(|lease| lease.held_at().is_some());
        // A hold may end by itself in the meantime.
        held.filter(|lease| self.background().lose(lease, LostReason::Revoked)).count()
    }

    fn holds_of(&self, key: Option<&str>) -> Vec<Arc<Lease>> {
        let mut held = self.background().held();
        held.retain(|lease| key.is_none_or(|key| **lease.key() == *key));
        held
    }
}
