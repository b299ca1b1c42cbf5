//! The measurements of a client at one moment, as plain data.

use std::time::Duration;

use super::histogram::HistogramSnapshot;
use super::label::SiteLabel;
use super::outcome::AcquisitionOutcome;
use super::renewals::{RenewalOutcome, SlackSnapshot};
use super::requests::{StoreOperation, StoreOutcome};
use crate::error::LostReason;
use crate::stats::ClientStats;

/// The measurements of a client since it was created. See
/// [`LockClient::snapshot`](crate::LockClient::snapshot).
///
/// The numbers are read one after the other while calls continue, so they may differ by the calls of that
/// moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Snapshot {
    /// The client's namespace; empty without one.
    pub namespace: String,
    /// The annotated functions and the [templates](crate::Lock::template) that were used, in the order of
    /// their templates. Locks without a template are counted together as `(none)`.
    pub sites: Vec<SiteSnapshot>,
    /// The number of renewals of leases, by outcome.
    pub renewals: Vec<(RenewalOutcome, u64)>,
    /// What was left of the leases when renewals succeeded.
    pub renewal_slack: SlackSnapshot,
    /// From sending a request to a remote store to its answer, by operation and outcome. The memory store has
    /// no requests.
    pub requests: Vec<(StoreOperation, StoreOutcome, HistogramSnapshot)>,
    /// Whether the last request to the store was answered by a server that does its work. True before the
    /// first one. Requests that tell nothing about the server, such as one that a short `wait` has ended, do
    /// not count.
    pub store_up: bool,
    /// The state of the client.
    pub stats: ClientStats,
}

/// How often consecutive hand-offs among the tasks of a client have reached their
/// [limit](crate::LockClientBuilder::handoff_limit).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct HandoffLimitCounts {
    /// No other process waited, so the hand-offs continued.
    pub continued: u64,
    /// The lock was freed, because another process waited or might have.
    pub freed: u64,
}

impl Snapshot {
    /// The measurements of a template over all functions that use it; `None` if it was not used.
    #[must_use]
    pub fn site(&self, template: &str) -> Option<SiteSnapshot> {
        let mut sites = self.sites.iter().filter(|site| site.template == template);
        let mut total = sites.next()?.clone();
        for site in sites {
            total.function = None;
            total.merge(site);
        }
        Some(total)
    }
}

/// The measurements of one annotated function, or of the locks with one
/// [template](crate::Lock::template).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteSnapshot {
    /// The template of the key, such as `order:<id>`. It never contains a key.
    pub template: &'static str,
    /// The path of the annotated function; `None` for other locks.
    pub function: Option<&'static str>,
    /// From the beginning of a call to its outcome, for those outcomes that take time:
    /// [`Granted`](AcquisitionOutcome::Granted), [`HandedOver`](AcquisitionOutcome::HandedOver),
    /// [`Busy`](AcquisitionOutcome::Busy) and [`Unavailable`](AcquisitionOutcome::Unavailable). Zero for a
    /// lock that was acquired without waiting for the store or for another holder, except for
    /// [periodic](crate::Periodic) work.
    pub waits: Vec<(AcquisitionOutcome, HistogramSnapshot)>,
    /// From each grant to the release or the loss. The locks of a set count one by one; readers and nested
    /// calls that share a hold count once.
    pub hold: HistogramSnapshot,
    /// The number of locks that were lost, by reason. Each counts for the function that has acquired it.
    pub losses: Vec<(LostReason, u64)>,
    /// The number of locks that are held now.
    pub held: u64,
    /// The number of calls that wait now, for another holder or for an answer of the store.
    pub waiting: u64,
    /// The age of the oldest hold; `None` without one.
    pub oldest_hold: Option<Duration>,
    /// How often consecutive hand-offs have reached their limit.
    pub handoff_limits: HandoffLimitCounts,
    /// The number of calls whose outcome takes no time, by outcome.
    pub(super) others: Vec<u64>,
}

impl SiteSnapshot {
    pub(super) fn new(SiteLabel { template, function }: SiteLabel) -> Self {
        let waits =
            AcquisitionOutcome::TIMED.map(|outcome| (outcome, HistogramSnapshot::default()));
        let others = AcquisitionOutcome::ALL.len() - waits.len();
        Self {
            template,
            function,
            waits: waits.into(),
            hold: HistogramSnapshot::default(),
            losses: LostReason::ALL.map(|reason| (reason, 0)).into(),
            held: 0,
            waiting: 0,
            oldest_hold: None,
            handoff_limits: HandoffLimitCounts::default(),
            others: vec![0; others],
        }
    }

    /// The number of calls with this outcome.
    #[must_use]
    pub fn acquisitions(&self, outcome: AcquisitionOutcome) -> u64 {
        let number = outcome as usize;
        match self.waits.get(number) {
            Some((_, waits)) => waits.count(),
            None => self.others.get(number - self.waits.len()).copied().unwrap_or_default(),
        }
    }

    /// The durations of the calls with this outcome; `None` for outcomes that take no time.
    #[must_use]
    pub fn wait(&self, outcome: AcquisitionOutcome) -> Option<&HistogramSnapshot> {
        self.waits.get(outcome as usize).map(|(_, waits)| waits)
    }

    /// The number of locks that were lost for this reason.
    #[must_use]
    pub fn lost(&self, reason: LostReason) -> u64 {
        self.losses.get(reason as usize).map_or(0, |(_, count)| *count)
    }

    /// Adds the measurements of another site.
    pub(super) fn merge(&mut self, other: &Self) {
        for ((_, total), (_, added)) in self.waits.iter_mut().zip(&other.waits) {
            total.merge(added);
        }
        self.hold.merge(&other.hold);
        for ((_, total), (_, added)) in self.losses.iter_mut().zip(&other.losses) {
            *total += added;
        }
        for (total, added) in self.others.iter_mut().zip(&other.others) {
            *total += added;
        }
        self.held += other.held;
        self.waiting += other.waiting;
        self.oldest_hold = self.oldest_hold.max(other.oldest_hold);
        self.handoff_limits.continued += other.handoff_limits.continued;
        self.handoff_limits.freed += other.handoff_limits.freed;
    }
}
