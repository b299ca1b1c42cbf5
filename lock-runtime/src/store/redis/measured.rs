//! The measurement of a request.

use crate::clock::BootInstant;
use crate::store::contract::StoreError;
use crate::telemetry::{OperationMetrics, StoreOutcome};

/// Where a request is measured.
#[derive(Clone, Copy)]
pub(super) struct Measured<'a>(pub(super) &'a OperationMetrics);

impl Measured<'_> {
    /// The request that began at this time has ended.
    pub(super) fn ended<T>(self, began: BootInstant, answer: &Result<T, StoreError>) {
        let (outcome, is_answered) = match answer {
            Ok(_) => (StoreOutcome::Ok, true),
            Err(StoreError::Unknown(_)) => (StoreOutcome::Unknown, false),
            // Also if the server refuses all requests, such as a replica.
            Err(StoreError::Refused(_)) => (StoreOutcome::Refused, false),
            Err(
                StoreError::Denied(_) | StoreError::Config { .. } | StoreError::WrongFormat { .. },
            ) => (StoreOutcome::Refused, true),
        };
        let duration = BootInstant::now().since(began);
        self.0.ended(outcome, duration, is_answered);
    }
}
