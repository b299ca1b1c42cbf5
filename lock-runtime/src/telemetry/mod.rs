//! What a client measures: waits, holds, losses, renewals and requests to the store.
//!
//! The measurements are always on. They are atomic counters that the call reaches through a reference. Once a
//! thread has used them, they cost no allocation, no lock and no look-up, and one reading of the clock for each
//! request to a remote store. [`LockClient::snapshot`](crate::LockClient::snapshot) returns them as plain data.
//!
//! The label of a measurement is the template of the key, such as `order:<id>`, and never a key.

mod call;
mod client;
#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
mod destination;
#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
pub(crate) mod exporter;
#[cfg(feature = "metrics")]
mod facade;
mod label;
#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
mod names;
#[cfg(feature = "testing")]
mod observer;
#[cfg(feature = "opentelemetry")]
mod opentelemetry;
mod outcome;
mod renewals;
#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
mod series;
pub(crate) mod site;
mod snapshot;
mod spans;
mod thresholds;
#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
mod totals;

use lock_core::telemetry::{histogram, requests, shards};

pub(crate) use self::call::{AcquiredBy, ObservedCall};
pub(crate) use self::client::ClientMetrics;
pub use self::histogram::HistogramSnapshot;
pub(crate) use self::label::SiteLabel;
#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
pub use self::names::{DURATION_SUFFIX, METRICS, MetricDescription, MetricKind, SECONDS};
#[cfg(feature = "testing")]
pub(crate) use self::observer::{CallFate, CallObserver, HoldEnd, Loser};
pub use self::outcome::AcquisitionOutcome;
pub use self::renewals::{RenewalOutcome, SLACK_RATIOS, SlackSnapshot};
pub use self::requests::{StoreOperation, StoreOutcome};
#[cfg(feature = "testing")]
pub(crate) use self::site::NO_TEMPLATE;
pub(crate) use self::site::SiteMetrics;
pub use self::snapshot::{HandoffLimitCounts, SiteSnapshot, Snapshot};
pub(crate) use self::spans::{
    FormerSpan, HoldSpan, SpanPlace, WaitSpan, are_enabled as spans_are_enabled,
};
pub(crate) use self::thresholds::{SlowHold, SlowThresholds};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LostReason;

    /// They are the indexes of arrays.
    #[test]
    fn all_lists_are_in_the_order_of_their_numbers() {
        fn check<T: Copy>(all: &[T], number: impl Fn(T) -> usize) {
            assert!(all.iter().copied().map(number).eq(0..all.len()));
        }
        check(&AcquisitionOutcome::ALL, |outcome| outcome as usize);
        check(&LostReason::ALL, |reason| reason as usize);
        check(&RenewalOutcome::ALL, |outcome| outcome as usize);
        check(&StoreOperation::ALL, |operation| operation as usize);
        check(&StoreOutcome::ALL, |outcome| outcome as usize);
    }
}
