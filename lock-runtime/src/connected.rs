//! The parts of a connected client.

use std::sync::Arc;

use crate::engine::Engine;
use crate::options::Defaults;
use crate::store::contract::{Backend, LockStore};
use crate::wire_format::WireFormat;

pub(crate) struct Connected {
    pub(crate) engine: Arc<Engine>,
    backend: Arc<dyn Backend>,
    /// The prefix of every key, without the `:` that follows it. Empty without a namespace.
    pub(crate) namespace: String,
    pub(crate) defaults: Defaults,
}

impl Connected {
    pub(crate) fn new(
        engine: Arc<Engine>,
        backend: Arc<dyn Backend>,
        namespace: String,
        defaults: Defaults,
    ) -> Arc<Self> {
        Arc::new(Self { engine, backend, namespace, defaults })
    }

    /// The store for locks in this layout.
    pub(crate) fn store(&self, wire_format: WireFormat) -> Arc<dyn LockStore> {
        self.backend.handle(wire_format)
    }
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { engine, backend: _, namespace, defaults } = self;
        f.debug_struct("LockClient")
            .field("namespace", namespace)
            .field("defaults", defaults)
            .field("engine", engine)
            .finish_non_exhaustive()
    }
}
