//! A call to acquire a lock, and its request.

use std::sync::Arc;

use tokio::runtime::Id;

use crate::engine::core::Engine;
use crate::engine::lease::Terms;
use crate::store::contract::{LockStore, Mode, Resource};
use crate::timeout::Timeout;

/// The lock that a call requests, and its options.
#[derive(Clone)]
pub(crate) struct AcquireRequest {
    /// The checked key, including the namespace.
    pub(crate) key: Arc<str>,
    pub(crate) mode: Mode,
    pub(crate) store: Arc<dyn LockStore>,
    pub(crate) timeout: Timeout,
    /// The checked terms.
    pub(crate) terms: Terms,
    /// Whether the call waits in the queue of the store itself, and not behind other calls of this
    /// process.
    pub(crate) is_fair: bool,
}

impl AcquireRequest {
    pub(super) fn resource(&self) -> Resource<'_> {
        Resource { key: &self.key, mode: self.mode }
    }
}

/// One call.
#[derive(Clone)]
pub(super) struct PendingCall {
    pub(super) engine: Arc<Engine>,
    /// The runtime that sends the requests of the call.
    pub(super) runtime: Id,
    pub(super) request: AcquireRequest,
}
