//! The measurements of one annotated function, or of the locks with one template.
//!
//! A call reaches its measurements through a reference: without hashing, without an allocation, and
//! without a lock. They are never freed, because leases and calls refer to them. When a client ends, its
//! measurements are reset, and a later client uses them again.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::histogram::Histogram;
use super::outcome::AcquisitionOutcome;
use super::snapshot::SiteSnapshot;
use crate::error::LostReason;

const TIMED: usize = AcquisitionOutcome::TIMED.len();

/// The measurements of one place in the program that acquires locks.
// Other threads use the measurements of other sites, which are in other cache lines.
#[repr(align(128))]
pub(crate) struct SiteMetrics {
    /// The number of holds that have begun.
    begun: AtomicU64,
    /// The number of calls that wait now.
    waiting: AtomicU64,
    /// The calls whose outcome is not timed, by outcome.
    others: [AtomicU64; AcquisitionOutcome::ALL.len() - TIMED],
    losses: [AtomicU64; LostReason::ALL.len()],
    /// How often hand-offs have reached their limit and continued, and have ended.
    handoff_limits: [AtomicU64; 2],
    /// From the beginning of a call to its outcome, by outcome.
    waits: [Histogram; TIMED],
    /// From the grant to the release or the loss.
    holds: Histogram,
}

impl SiteMetrics {
    pub(crate) const fn new() -> Self {
        Self {
            begun: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            others: [const { AtomicU64::new(0) }; AcquisitionOutcome::ALL.len() - TIMED],
            losses: [const { AtomicU64::new(0) }; LostReason::ALL.len()],
            handoff_limits: [const { AtomicU64::new(0) }; 2],
            waits: [const { Histogram::new() }; TIMED],
            holds: Histogram::new(),
        }
    }

    /// A call has ended after this time.
    pub(crate) fn ended(&self, outcome: AcquisitionOutcome, waited: Duration) {
        let number = outcome as usize;
        match self.waits.get(number) {
            Some(waits) => waits.record(waited),
            None => increment(&self.others[number - TIMED]),
        }
    }

    /// A call waits from now on.
    pub(crate) fn waits(&self) {
        increment(&self.waiting);
    }

    /// A call waits no longer.
    pub(crate) fn waits_no_longer(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// A hold has begun.
    pub(crate) fn hold_begun(&self) {
        increment(&self.begun);
    }

    /// A hold has ended after this time.
    pub(crate) fn hold_ended(&self, held_for: Duration) {
        self.holds.record(held_for);
    }

    pub(crate) fn lost(&self, reason: LostReason) {
        increment(&self.losses[reason as usize]);
    }

    /// Hand-offs have reached their limit. They continue if no other process waits.
    pub(crate) fn handoff_limit_reached(&self, continues: bool) {
        increment(&self.handoff_limits[usize::from(!continues)]);
    }

    /// Adds the measurements to those of `total`.
    pub(crate) fn add_to(&self, total: &mut SiteSnapshot) {
        self.holds.add_to(&mut total.hold);
        // Read after the holds that have ended, so that this is not the smaller number.
        let begun = self.begun.load(Ordering::Relaxed);
        total.held += begun.saturating_sub(self.holds.count());
        total.waiting += self.waiting.load(Ordering::Relaxed);
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

    fn reset(&self) {
        let Self { begun, waiting, others, losses, handoff_limits, .. } = self;
        let counters = [begun, waiting].into_iter().chain(others).chain(losses);
        for counter in counters.chain(handoff_limits) {
            counter.store(0, Ordering::Relaxed);
        }
        for histogram in self.waits.iter().chain([&self.holds]) {
            histogram.reset();
        }
    }
}

impl fmt::Debug for SiteMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SiteMetrics").finish_non_exhaustive()
    }
}

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The measurements of clients that have ended.
static UNUSED: Mutex<Vec<&'static SiteMetrics>> = Mutex::new(Vec::new());

/// Measurements for a new site.
pub(super) fn unused() -> &'static SiteMetrics {
    let unused = UNUSED.lock().unwrap_or_else(PoisonError::into_inner).pop();
    unused.unwrap_or_else(|| Box::leak(Box::new(SiteMetrics::new())))
}

/// Gives the measurements of a client that has ended to later ones.
pub(super) fn reuse(metrics: &'static SiteMetrics) {
    metrics.reset();
    UNUSED.lock().unwrap_or_else(PoisonError::into_inner).push(metrics);
}

/// Where locks are acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SiteLabel {
    /// The template of the key.
    pub(crate) template: &'static str,
    /// The path of the annotated function.
    pub(crate) function: Option<&'static str>,
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
