//! Reading the names of all keys, step by step.

/// Where a scan continues.
#[derive(Debug, Clone, Default)]
pub(crate) struct ScanPosition {
    /// One key of each server that was not scanned yet, the current one last; `None` at the beginning.
    pub(crate) nodes: Option<Vec<String>>,
    /// The position in the current server.
    pub(crate) cursor: u64,
}

/// One step of a scan.
#[derive(Debug)]
pub(crate) struct ScanPage {
    pub(crate) keys: Vec<String>,
    /// `None` at the end.
    pub(crate) next: Option<ScanPosition>,
}
