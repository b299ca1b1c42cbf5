//! The measurement of one call.

use std::time::Duration;

use super::outcome::AcquisitionOutcome;
use super::site::SiteMetrics;
use crate::clock::BootInstant;
use crate::error::LockError;

/// A call that has begun, and that is counted once: when it ends, or as cancelled when this is dropped.
#[derive(Debug)]
pub(crate) struct ObservedCall {
    site: &'static SiteMetrics,
    began: BootInstant,
    stage: CallStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallStage {
    Begun,
    Waiting,
    Ended,
}

/// How a call has got its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcquiredBy {
    Store,
    /// Another call of the client, which passed it on at this time.
    Handover(BootInstant),
    /// An enclosing body.
    Reentry,
}

impl ObservedCall {
    /// A call that began at this time.
    pub(crate) fn new(site: &'static SiteMetrics, began: BootInstant) -> Self {
        Self { site, began, stage: CallStage::Begun }
    }

    /// Measures a call that has failed before it began to wait.
    pub(crate) fn failed_at_once(site: &'static SiteMetrics, error: &LockError) {
        Self::new(site, BootInstant::PAST).failed(error);
    }

    /// The result of the call was not known at once.
    #[inline]
    pub(crate) fn waits(&mut self) {
        if self.stage == CallStage::Begun {
            self.stage = CallStage::Waiting;
            self.site.waits();
        }
    }

    /// The call has got its lock. Returns how long that took: nothing if it was known at once.
    #[inline]
    pub(crate) fn acquired(&mut self, by: AcquiredBy) -> Duration {
        // The clock is read only if the call has waited for an answer of the store.
        let (outcome, at) = match by {
            AcquiredBy::Reentry => (AcquisitionOutcome::Reentrant, None),
            AcquiredBy::Handover(at) => (AcquisitionOutcome::HandedOver, Some(at)),
            AcquiredBy::Store => (AcquisitionOutcome::Granted, None),
        };
        let waited = match (self.stage, by) {
            (_, AcquiredBy::Reentry) | (CallStage::Begun | CallStage::Ended, _) => Duration::ZERO,
            (CallStage::Waiting, _) => at.unwrap_or_else(BootInstant::now).since(self.began),
        };
        self.end(outcome, waited);
        waited
    }

    /// The call has failed.
    pub(crate) fn failed(&mut self, error: &LockError) {
        let waited = match error {
            LockError::Busy { waited, .. } | LockError::Unavailable { waited, .. } => *waited,
            _ => Duration::ZERO,
        };
        self.end(AcquisitionOutcome::of(error), waited);
    }

    /// Does not measure this call.
    pub(crate) fn forget(&mut self) {
        self.stage = CallStage::Ended;
    }

    #[inline]
    fn end(&mut self, outcome: AcquisitionOutcome, waited: Duration) {
        match std::mem::replace(&mut self.stage, CallStage::Ended) {
            CallStage::Ended => return,
            CallStage::Waiting => self.site.waits_no_longer(),
            CallStage::Begun => {}
        }
        self.site.ended(outcome, waited);
    }
}

impl Drop for ObservedCall {
    fn drop(&mut self) {
        self.end(AcquisitionOutcome::Cancelled, Duration::ZERO);
    }
}
