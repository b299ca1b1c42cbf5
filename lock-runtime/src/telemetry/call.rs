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

/// How a call has got its lock. The ways are in the order of their cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AcquiredBy {
    /// An enclosing body has it.
    Reentry,
    /// It shares the hold of another reader of this process.
    Sharing,
    /// Another call of the client has passed it on.
    Handover,
    /// The store has granted it.
    Store,
}

impl AcquiredBy {
    /// The word for spans.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Reentry => "reentrant",
            Self::Sharing => "shared",
            Self::Handover => "handed_over",
            Self::Store => "store",
        }
    }

    pub(crate) fn outcome(self) -> AcquisitionOutcome {
        match self {
            Self::Reentry => AcquisitionOutcome::Reentrant,
            Self::Sharing | Self::Handover => AcquisitionOutcome::HandedOver,
            Self::Store => AcquisitionOutcome::Granted,
        }
    }
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

    /// Where the call is measured.
    pub(crate) fn site(&self) -> &'static SiteMetrics {
        self.site
    }

    /// The result of the call was not known at once.
    #[inline]
    pub(crate) fn waits(&mut self) {
        if self.stage == CallStage::Begun {
            self.stage = CallStage::Waiting;
            self.site.waits();
        }
    }

    /// The call has got its lock. Returns how long it has waited: the result of `waited_since` for the time at
    /// which it began, or zero if its result was known at once.
    #[inline]
    pub(crate) fn acquired(
        &mut self,
        by: AcquiredBy,
        waited_since: impl FnOnce(BootInstant) -> Duration,
    ) -> Duration {
        let outcome = by.outcome();
        let waited = match self.stage {
            CallStage::Waiting => waited_since(self.began),
            CallStage::Begun | CallStage::Ended => Duration::ZERO,
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
        let stage = std::mem::replace(&mut self.stage, CallStage::Ended);
        if stage != CallStage::Ended {
            self.site.ended(outcome, waited, stage == CallStage::Waiting);
        }
    }
}

impl Drop for ObservedCall {
    fn drop(&mut self) {
        self.end(AcquisitionOutcome::Cancelled, Duration::ZERO);
    }
}
