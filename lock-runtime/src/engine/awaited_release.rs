//! A release whose caller awaits it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::driven::{Boxed, Settled, Work};
use super::handoff::QueuePosition;
use crate::clock::BootInstant;
use crate::error::LockError;

/// A release whose caller awaits it, and which the notifier thread may continue.
pub(super) struct AwaitedRelease {
    pub(super) key: Arc<str>,
    pub(super) began: BootInstant,
}

impl Work for AwaitedRelease {
    type Outcome = Result<(), Box<LockError>>;
    type Resumed = Infallible;
    type Value = Self::Outcome;

    fn finish(&self, outcome: Self::Outcome) -> Self::Value {
        outcome
    }

    fn settle(&self, outcome: Self::Outcome, _: &QueuePosition) -> Settled<Self> {
        Settled::Done(outcome)
    }

    fn revoke(&self, _: &QueuePosition) -> Option<Settled<Self>> {
        Some(Settled::Done(self.failed("the runtime is blocked")))
    }

    fn longest_delay(&self) -> Duration {
        Duration::ZERO
    }

    fn failed(&self, cause: &str) -> Self::Outcome {
        Err(Box::new(unconfirmed(&self.key, self.began, &cause)))
    }

    fn resume(&self, resumed: Infallible) -> (u64, Boxed<Self::Outcome>) {
        match resumed {}
    }

    fn abandon(&self, _: Self::Outcome) {}
}

/// The error of a release without an answer.
pub(super) fn unconfirmed(
    key: &Arc<str>,
    began: BootInstant,
    cause: &dyn std::fmt::Display,
) -> LockError {
    LockError::unavailable(
        Some(key.as_ref().to_owned()),
        BootInstant::now().since(began),
        format!("{cause}; the release continues in the background"),
    )
}
