//! What a client measures: waits, holds, losses, renewals and requests to the store.
//!
//! The measurements are always on. They are atomic counters that the call reaches through a reference, so
//! they cost no allocation, no lock and no look-up, and no reading of the clock unless the call waits for
//! the store. [`LockClient::snapshot`](crate::LockClient::snapshot) returns them as plain data.
//!
//! The label of a measurement is the template of the key, such as `order:<id>`, and never a key.

mod call;
mod client;
#[cfg(feature = "metrics")]
pub(crate) mod exporter;
mod histogram;
mod label;
#[cfg(feature = "metrics")]
mod names;
mod outcome;
mod renewals;
mod requests;
mod shards;
mod site;
mod snapshot;
#[cfg(feature = "metrics")]
mod totals;

pub(crate) use self::call::{AcquiredBy, ObservedCall};
pub(crate) use self::client::ClientMetrics;
pub use self::histogram::HistogramSnapshot;
pub(crate) use self::label::SiteLabel;
#[cfg(feature = "metrics")]
pub use self::names::{DURATION_SUFFIX, METRICS, MetricDescription, MetricKind, SECONDS};
pub use self::outcome::AcquisitionOutcome;
pub use self::renewals::{RenewalOutcome, SLACK_RATIOS, SlackSnapshot};
#[cfg(feature = "redis")]
pub(crate) use self::requests::OperationMetrics;
pub(crate) use self::requests::StoreMetrics;
pub use self::requests::{StoreOperation, StoreOutcome};
pub use self::site::SiteCache;
pub(crate) use self::site::SiteMetrics;
pub use self::snapshot::{HandoffLimitCounts, SiteSnapshot, Snapshot};
