//! A custom store as a store of the engine.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::caller_runtime::CallerRuntime;
use super::contract::{Store, without};
use super::handle::CustomHandle;
use super::inspector::LeaseInspector;
use super::shared::CustomStore;
use super::thread::StoreThread;
use super::waiting;
use super::wake_ups::WakeUps;
use crate::clock::BootInstant;
use crate::error::LockError;
use crate::maybe_ready::MaybeReady;
use crate::store::contract::{
    Asker, Backend, BackgroundRuntimes, KeyInspector, Layout, LockStore, StoreAnswer, StoreError,
};
use crate::store::hold_reports::HoldReports;
use crate::store::key_holder::KeyHolder;
use crate::store::owner::ClientTag;
use crate::store::settings::Settings;
use crate::store::subscriptions::Subscriptions;

/// The longest time to connect to a store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes the backend of a client. The type of the store is not a part of its type.
pub trait OpenStore: Send + Sync {
    fn name(&self) -> &str;

    fn open(&self, settings: &Settings) -> Result<Arc<dyn Backend>, LockError>;
}

impl<S: Store> OpenStore for Arc<S> {
    fn name(&self) -> &str {
        S::name(self)
    }

    fn open(&self, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
        let cannot = |cause: String| LockError::unavailable(None, Duration::ZERO, cause);
        let thread = StoreThread::start();
        let thread = thread.map_err(|error| cannot(format!("no thread for the store: {error}")))?;
        let tag =
            ClientTag::random().map_err(|error| cannot(format!("no random numbers: {error}")))?;
        let told = settings.told.clone();
        let is_told = told.is_some();
        let own = told.unwrap_or_default().with_id(tag.to_text());
        self.introduce(Some(&own).filter(|_| is_told), &settings.namespace);
        let shared = Arc::new(CustomStore {
            store: Arc::clone(self),
            own,
            thread,
            callers: CallerRuntime::default(),
            tag,
            response_timeout: settings.response_timeout,
            subscriptions: Subscriptions::remote(Arc::new(AtomicBool::new(false))),
            in_flight: Arc::default(),
        });
        let handle = |layout| Arc::new(CustomHandle { shared: Arc::clone(&shared), layout });
        Ok(Arc::new(CustomBackend {
            inspector: LeaseInspector { shared: Arc::clone(&shared) },
            handles: Layout::ALL.map(handle),
            shared,
            started: OnceLock::new(),
            reports: OnceLock::new(),
        }))
    }
}

struct CustomBackend<S> {
    inspector: LeaseInspector<S>,
    handles: [Arc<CustomHandle<S>>; Layout::ALL.len()],
    shared: Arc<CustomStore<S>>,
    started: OnceLock<()>,
    reports: OnceLock<HoldReports>,
}

impl<S: Store> Backend for CustomBackend<S> {
    fn adopt(&self, _: &BackgroundRuntimes, reports: HoldReports) {
        // It is called once.
        let _ = self.reports.set(reports);
    }

    fn connect(&self) -> MaybeReady<'_, Result<(), LockError>> {
        let store = Arc::clone(&self.shared.store);
        let wake_ups = WakeUps::new(&self.shared.subscriptions, self.reports.get().cloned());
        let connected = self
            .shared
            .thread
            .request(CONNECT_TIMEOUT, async move { store.connect(wake_ups).await });
        MaybeReady::pending(async move {
            let began = BootInstant::now();
            let connected = connected.await;
            connected.map_err(|error| error.without_key(BootInstant::now().since(began)))?;
            if self.started.set(()).is_ok() {
                waiting::start(&self.shared);
            }
            Ok(())
        })
    }

    fn check_readiness(&self, layout: Layout) -> StoreAnswer<'_, ()> {
        if let Err(error) = self.handles[layout.index()].check_layout() {
            return MaybeReady::ready(Err(error));
        }
        let store = Arc::clone(&self.shared.store);
        let checked = async move { store.check().await };
        MaybeReady::pending(self.shared.thread.request(self.shared.response_timeout, checked))
    }

    fn holder<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<KeyHolder>> {
        let (shared, key) = (Arc::clone(&self.shared), key.to_owned());
        let found = async move {
            let owner = match shared.store.inspect(&key).await {
                // The store does not tell.
                Err(StoreError::Config { option: "store", .. }) => None,
                lease => lease?.and_then(|lease| lease.owner),
            };
            let Some(owner) = owner else { return Ok(None) };
            let Some((tag, id)) = ClientTag::of_owner(&owner) else {
                return Ok(Some(KeyHolder::default()));
            };
            let (client, is_own) = (shared.client(tag).await, tag == shared.tag);
            Ok(Some(KeyHolder { client, is_own, ..KeyHolder::of(Some(id)) }))
        };
        MaybeReady::pending(self.shared.thread.request(self.shared.response_timeout, found))
    }

    fn inspector(&self) -> Result<&dyn KeyInspector, StoreError> {
        Ok(&self.inspector)
    }

    fn has_questions(&self) -> bool {
        false
    }

    fn asker(&self, _: &str) -> Result<Box<dyn Asker>, StoreError> {
        Err(without(self.shared.store.name(), "url", "clients that `LockAdmin` can ask"))
    }

    fn handle(&self, layout: Layout) -> Arc<dyn LockStore> {
        Arc::clone(&self.handles[layout.index()]) as Arc<dyn LockStore>
    }
}
