//! The measurements of one annotated function, or of the locks with one template.
//!
//! A call reaches its measurements through a reference: without hashing, without an allocation, and
//! without a lock. They are never freed, because leases and calls refer to them. When a client ends, its
//! measurements are reset, and a later client uses them again.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use super::histogram::{HistogramSnapshot, LazyHistogram};
use super::label::SiteLabel;
use super::outcome::AcquisitionOutcome;
use super::shards::{SHARDS, current};
use super::snapshot::SiteSnapshot;
use crate::error::LostReason;

/// The template of locks without one.
pub(crate) const NO_TEMPLATE: &str = "(none)";

const TIMED: usize = AcquisitionOutcome::TIMED.len();

/// The measurements of one place in the program that acquires locks.
pub(crate) struct SiteMetrics {
    /// The place, for spans and warnings. It changes only between two clients.
    label: RwLock<SiteLabel>,
    /// Made when a thread first uses them.
    shards: [OnceLock<Box<SiteShard>>; SHARDS],
}

/// The part of the measurements that some threads record. A call or a hold may begin in one shard and end in
/// another one, so only the sum over all shards has a meaning.
#[derive(Default)]
#[repr(align(128))]
struct SiteShard {
    /// The number of holds that have begun.
    begun: AtomicU64,
    /// The number of calls that wait now. Wraps around.
    waiting: AtomicU64,
    /// The calls whose outcome is not timed, by outcome.
    others: [AtomicU64; AcquisitionOutcome::ALL.len() - TIMED],
    losses: [AtomicU64; LostReason::ALL.len()],
    /// How often hand-offs have reached their limit and continued, and have ended.
    handoff_limits: [AtomicU64; 2],
    /// From the beginning of a call to its outcome, by outcome.
    waits: [LazyHistogram; TIMED],
    /// From the grant to the release or the loss.
    holds: LazyHistogram,
}

impl SiteMetrics {
    pub(crate) const fn new() -> Self {
        let label = RwLock::new(SiteLabel { template: NO_TEMPLATE, function: None });
        Self { label, shards: [const { OnceLock::new() }; SHARDS] }
    }

    /// The place in the program.
    pub(crate) fn label(&self) -> SiteLabel {
        *self.label.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard of this thread.
    #[inline]
    fn shard(&self) -> &SiteShard {
        self.shards[current()].get_or_init(Box::default)
    }

    /// A call has ended after this time. `has_waited` says whether it was counted as waiting.
    #[inline]
    pub(crate) fn ended(&self, outcome: AcquisitionOutcome, waited: Duration, has_waited: bool) {
        let (shard, number) = (self.shard(), outcome as usize);
        if has_waited {
            shard.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        match shard.waits.get(number) {
            Some(waits) => waits.record(waited),
            None => increment(&shard.others[number - TIMED]),
        }
    }

    /// A call waits from now on.
    #[inline]
    pub(crate) fn waits(&self) {
        increment(&self.shard().waiting);
    }

    /// A hold has begun.
    #[inline]
    pub(crate) fn hold_begun(&self) {
        increment(&self.shard().begun);
    }

    /// A hold has ended after this time.
    #[inline]
    pub(crate) fn hold_ended(&self, held_for: Duration) {
        self.shard().holds.record(held_for);
    }

    pub(crate) fn lost(&self, reason: LostReason) {
        increment(&self.shard().losses[reason as usize]);
    }

    /// Hand-offs have reached their limit. They continue if no other process waits.
    pub(crate) fn handoff_limit_reached(&self, continues: bool) {
        increment(&self.shard().handoff_limits[usize::from(!continues)]);
    }

    /// Adds the measurements to those of `total`.
    pub(crate) fn add_to(&self, total: &mut SiteSnapshot) {
        let shards = || self.shards.iter().filter_map(OnceLock::get);
        let mut holds = HistogramSnapshot::default();
        shards().for_each(|shard| shard.holds.add_to(&mut holds));
        // Read after the holds that have ended, so that this is not the smaller number.
        let begun: u64 = shards().map(|shard| shard.begun.load(Ordering::Relaxed)).sum();
        total.held += begun.saturating_sub(holds.count());
        total.hold.merge(&holds);
        let waiting = shards().map(|shard| shard.waiting.load(Ordering::Relaxed));
        let waiting = waiting.fold(0_u64, u64::wrapping_add).cast_signed();
        total.waiting += u64::try_from(waiting).unwrap_or_default();
        for shard in shards() {
            shard.add_to(total);
        }
    }

    /// Forgets all measurements.
    fn reset(&self) {
        self.shards.iter().filter_map(OnceLock::get).for_each(|shard| shard.reset());
    }
}

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl SiteShard {
    fn add_to(&self, total: &mut SiteSnapshot) {
        for (waits, (_, total)) in self.waits.iter().zip(&mut total.waits) {
            waits.add_to(total);
        }
        for (other, total) in self.others.iter().zip(&mut total.others) {
            *total += other.load(Ordering::Relaxed);
        }
        for (losses, (_, total)) in self.losses.iter().zip(&mut total.losses) {
            *total += losses.load(Ordering::Relaxed);
        }
        let [continued, freed] = &self.handoff_limits;
        total.handoff_limits.continued += continued.load(Ordering::Relaxed);
        total.handoff_limits.freed += freed.load(Ordering::Relaxed);
    }

    /// Forgets all measurements.
    fn reset(&self) {
        let Self { begun, waiting, others, losses, handoff_limits, waits, holds } = self;
        let counters = [begun, waiting].into_iter().chain(others).chain(losses);
        for counter in counters.chain(handoff_limits) {
            counter.store(0, Ordering::Relaxed);
        }
        waits.iter().chain([holds]).for_each(LazyHistogram::reset);
    }
}

impl fmt::Debug for SiteMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SiteMetrics").finish_non_exhaustive()
    }
}

/// The measurements of clients that have ended.
static UNUSED: Mutex<Vec<&'static SiteMetrics>> = Mutex::new(Vec::new());

/// Measurements for a new site.
pub(super) fn unused(label: SiteLabel) -> &'static SiteMetrics {
    let unused = UNUSED.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let site = unused.unwrap_or_else(|| Box::leak(Box::new(SiteMetrics::new())));
    *site.label.write().unwrap_or_else(PoisonError::into_inner) = label;
    site
}

/// Gives the measurements of a client that has ended to later ones.
pub(super) fn reuse(metrics: &'static SiteMetrics) {
    metrics.reset();
    UNUSED.lock().unwrap_or_else(PoisonError::into_inner).push(metrics);
}

/// The measurements of an annotated function for the client that has called it first. Other clients
/// look theirs up.
#[derive(Debug)]
pub struct SiteCache(pub(super) OnceLock<(u64, &'static SiteMetrics)>);

impl SiteCache {
    /// For a function that was not called yet.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }
}
