//! The memory store of a client.

use std::sync::{Arc, Weak};

use super::asker::MemoryAsker;
use super::clients::KnownClients;
use super::{Keys, MemoryState, MemoryStore};
use crate::clock::BootInstant;
use crate::identity::Identity;
use crate::maybe_ready::MaybeReady;
use crate::questions::Answerer;
use crate::store::contract::{
    Asker, Backend, BackgroundRuntimes, KeyInspector, Layout, LockStore, StoreAnswer, StoreError,
};
use crate::store::different_limits::DifferentLimits;
use crate::store::hold_reports::HoldReports;
use crate::store::key_holder::KeyHolder;
use crate::store::profile::StoreProfile;
use crate::store::subscriptions::Subscriptions;
use crate::sync::{Mutex, lock};

/// The named stores, for as long as a client uses them.
static NAMED: Mutex<Vec<(String, Weak<MemoryBackend>)>> = Mutex::new(Vec::new());

/// A store, with one handle for each layout. The layouts do not differ, but the engine treats locks
/// of different handles as different locks, as with other stores.
pub struct MemoryBackend {
    pub(super) handles: [Arc<MemoryStore>; Layout::ALL.len()],
    /// The clients that can be asked.
    clients: Arc<Mutex<KnownClients>>,
}

impl MemoryBackend {
    /// Creates a store.
    pub fn new() -> Arc<Self> {
        let (keys, subscriptions) = (Mutex::new(Keys::new()), Subscriptions::local());
        let shared =
            Arc::new(MemoryState { keys, subscriptions, limits: DifferentLimits::default() });
        let handle = |layout| Arc::new(MemoryStore { shared: Arc::clone(&shared), layout });
        Arc::new(Self { handles: Layout::ALL.map(handle), clients: Arc::default() })
    }

    /// Deletes a plain lock, or all locks, and leaves those who wait.
    #[cfg(feature = "testing")]
    pub fn delete(&self, key: Option<&str>) {
        self.handles[0].keys().delete(key);
    }

    /// Returns the store of this name, which all clients of this process that use the name share.
    pub fn named(name: &str) -> Arc<Self> {
        let mut named = lock(&NAMED);
        named.retain(|(_, store)| store.strong_count() > 0);
        if let Some(store) = named.iter().find(|(n, _)| n == name).and_then(|(_, s)| s.upgrade()) {
            return store;
        }
        let store = Self::new();
        named.push((name.to_owned(), Arc::downgrade(&store)));
        store
    }
}

impl Backend for MemoryBackend {
    fn adopt(&self, _: &BackgroundRuntimes, _: HoldReports) {}

    fn profile(&self) -> StoreAnswer<'_, StoreProfile> {
        // Stores of one name are one store.
        let servers = vec![format!("{:p}", Arc::as_ptr(&self.handles[0]))];
        MaybeReady::ready(Ok(StoreProfile { servers, ..StoreProfile::default() }))
    }

    fn holder<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<KeyHolder>> {
        let found = self.handles[0].keys().holder(key, BootInstant::now());
        let told = |found| {
            // All clients of the store are in this process. The store does not know when they were started.
            let mut client = Identity::of_process().info().unwrap_or_default();
            client.started = None;
            KeyHolder { client, ..found }
        };
        MaybeReady::ready(Ok(found.map(told)))
    }

    fn inspector(&self) -> Result<&dyn KeyInspector, StoreError> {
        let problem = "the memory store has no keys that could be inspected; use a server";
        Err(StoreError::Config { option: "url", problem: problem.to_owned() })
    }

    fn answer_with(&self, answerer: Weak<dyn Answerer>) {
        lock(&self.clients).add(answerer);
    }

    fn has_questions(&self) -> bool {
        true
    }

    fn asker(&self, namespace: &str) -> Result<Box<dyn Asker>, StoreError> {
        Ok(Box::new(MemoryAsker::new(Arc::clone(&self.clients), namespace)))
    }

    fn handle(&self, layout: Layout) -> Result<Arc<dyn LockStore>, StoreError> {
        Ok(self.locks(layout))
    }
}

impl MemoryBackend {
    /// The handle for locks in this layout.
    pub fn locks(&self, layout: Layout) -> Arc<MemoryStore> {
        Arc::clone(&self.handles[layout.index()])
    }
}

impl MemoryStore {
    /// A handle to a new store.
    #[cfg(any(test, feature = "simulation"))]
    pub fn new() -> Arc<Self> {
        Arc::clone(&MemoryBackend::new().handles[0])
    }
}
