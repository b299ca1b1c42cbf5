//! The rest of a lease.

use std::time::Duration;

/// The remaining time of another owner's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    Time(Duration),
    /// The lease never ends.
    Forever,
    /// Not known, because the answer to a fresh claim does not contain it. The answer to the next
    /// claim does.
    Unknown,
}
