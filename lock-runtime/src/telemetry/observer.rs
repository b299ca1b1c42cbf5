//! Who observes the holds of a client: its test.

use std::time::Duration;

use super::label::SiteLabel;
use crate::error::LostReason;

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldEnd {
    Released(Duration),
    Lost(LostReason),
}

/// An observer of holds.
pub(crate) trait HoldObserver: std::fmt::Debug + Send + Sync {
    /// A call has got the lock, and has waited for so long.
    fn began(&self, key: &str, label: SiteLabel, waited: Duration);

    /// A hold has ended.
    fn ended(&self, key: &str, end: HoldEnd);
}
