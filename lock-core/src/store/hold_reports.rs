//! Reports of a store about the keys of held locks.

use std::sync::Arc;

/// What has happened to the keys of held locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldReport {
    /// The data has moved to a server that may lack a part of it, and no more answers of the earlier
    /// server count.
    Moved,
    /// A client other than the holder has changed keys.
    Changed(ChangedKeys),
    /// Other processes have begun to wait for these keys.
    Wanted(Vec<Arc<str>>),
}

/// Keys that have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedKeys {
    /// It may be any key.
    Any,
    These(Vec<Arc<str>>),
}

/// Passes reports on to the holders.
#[derive(Clone)]
pub struct HoldReports(Arc<dyn Fn(HoldReport) + Send + Sync>);

impl HoldReports {
    /// `report` may be called on any thread, and must not block.
    pub fn new(report: impl Fn(HoldReport) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    pub fn send(&self, report: HoldReport) {
        (self.0)(report);
    }
}
