//! How a store requests that held locks are verified.

use std::sync::Arc;

/// The held locks to verify.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HoldsToVerify {
    /// All. The data has moved to a server that may lack a part of it, and no more answers of the
    /// earlier server count.
    Moved,
    /// Those whose keys have changed.
    Changed(ChangedKeys),
}

/// Keys that a client other than the holder has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChangedKeys {
    /// It may be any key.
    Any,
    These(Vec<Arc<str>>),
}

/// Verifies held locks.
#[derive(Clone)]
pub(crate) struct VerifyHolds(Arc<dyn Fn(HoldsToVerify) + Send + Sync>);

impl VerifyHolds {
    /// `verify` may be called on any thread, and must not block.
    pub(crate) fn new(verify: impl Fn(HoldsToVerify) + Send + Sync + 'static) -> Self {
        Self(Arc::new(verify))
    }

    pub(crate) fn call(&self, holds: HoldsToVerify) {
        (self.0)(holds);
    }
}
