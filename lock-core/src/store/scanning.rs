//! Reading all locks of a store, step by step.

use crate::lock_state::LockState;

/// Where a scan continues.
#[derive(Debug, Clone, Default)]
pub enum ScanPosition {
    #[default]
    Beginning,
    /// In a store that has several servers, each with an order of keys of its own.
    Servers {
        /// One key of each server that was not scanned yet, the current one last.
        nodes: Vec<String>,
        /// The position in the current server.
        cursor: u64,
    },
    /// In a store with an index of keys.
    Index(Vec<u8>),
}

/// One step of a scan.
#[derive(Debug, Default)]
pub struct ScanPage {
    /// Keys that may be those of locks, which have to be read.
    pub keys: Vec<String>,
    /// What is known already.
    pub locks: Vec<LockState>,
    /// `None` at the end.
    pub next: Option<ScanPosition>,
}
