//! The measurement of a request.

use crate::transport::error;
use lock_core::clock::BootInstant;
use lock_core::store::contract::StoreError;
use lock_core::telemetry::requests::{OperationMetrics, StoreHealth, StoreOutcome};

/// Where a request is measured.
#[derive(Clone, Copy)]
pub(crate) struct Measured<'a>(pub(crate) &'a OperationMetrics);

impl Measured<'_> {
    /// The request that began at this time has ended. `tells` says whether a failure tells something about
    /// the server.
    pub(crate) fn ended<T>(self, began: BootInstant, answer: &Result<T, StoreError>, tells: bool) {
        let failed = if tells { StoreHealth::Down } else { StoreHealth::Unchanged };
        let (outcome, health) = match answer {
            Ok(_) => (StoreOutcome::Ok, StoreHealth::Up),
            // The script is sent as text now, which is measured.
            Err(StoreError::Refused(cause)) if cause.starts_with(error::NO_SCRIPT) => return,
            Err(StoreError::Unknown(_)) => (StoreOutcome::Unknown, failed),
            // Also if the server refuses all requests, such as a replica.
            Err(StoreError::Refused(_)) => (StoreOutcome::Refused, failed),
            Err(
                StoreError::Denied(_) | StoreError::Config { .. } | StoreError::WrongFormat { .. },
            ) => (StoreOutcome::Refused, StoreHealth::Up),
        };
        let duration = BootInstant::now().since(began);
        self.0.ended(outcome, duration, health);
    }
}
