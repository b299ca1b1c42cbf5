//! The parts of a connected client.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::client_info::ClientInfo;
use crate::clock::BootInstant;
use crate::engine::Engine;
use crate::engine::lease::Terms;
use crate::error::LockError;
use crate::holder_lookups::HolderLookups;
use crate::lock_mode::LockMode;
use crate::lock_order::{LockOrders, OrderAction};
#[cfg(feature = "admin")]
use crate::lock_state::{Deletion, LockState};
use crate::options::{Defaults, LockOptions, check_shortest};
use crate::questions::Answerer;
use crate::runtime;
#[cfg(feature = "admin")]
use crate::store::contract::{Asker, StoreError};
use crate::store::contract::{Backend, Extension, Layout, LockStore};
#[cfg(feature = "admin")]
use crate::store::key_holder::KeyHolder;
#[cfg(feature = "admin")]
use crate::store::scanning::{ScanPage, ScanPosition};
use crate::telemetry::SiteMetrics;
use crate::timeout::Wait;
use crate::wire_format::WireFormat;

/// The number of keys that a server looks at in one step of a scan. Other clients wait for the step, so it is short: about a
/// quarter of a millisecond. Shorter steps would cost the server more time in all.
#[cfg(feature = "admin")]
const SCANNED_AT_ONCE: u32 = 250;

/// The longest name of a leader, in bytes.
pub(crate) const LONGEST_NAME: usize = 256;

pub(crate) struct Connected {
    pub(crate) engine: Arc<Engine>,
    backend: Arc<dyn Backend>,
    /// The prefix of every key, without the `:` that follows it. Empty without a namespace.
    pub(crate) namespace: String,
    pub(crate) defaults: Defaults,
    lookups: HolderLookups,
    /// The orders in which keys are locked, if somebody wants to know.
    pub(crate) orders: Option<LockOrders>,
    /// What the client tells others about itself, if it does.
    pub(crate) told: Option<ClientInfo>,
    /// Whether others may end its holds.
    pub(crate) is_revocable: bool,
}

/// The settings of a client above its engine.
pub(crate) struct ClientSettings {
    pub(crate) namespace: String,
    pub(crate) defaults: Defaults,
    /// What to do about keys that are locked in different orders, if anything.
    pub(crate) orders: Option<OrderAction>,
    pub(crate) told: Option<ClientInfo>,
    pub(crate) is_revocable: bool,
}

impl Connected {
    pub(crate) fn new(
        engine: Arc<Engine>,
        backend: Arc<dyn Backend>,
        settings: ClientSettings,
    ) -> Arc<Self> {
        let ClientSettings { namespace, defaults, orders, told, is_revocable } = settings;
        let (lookups, orders) = (HolderLookups::default(), orders.map(LockOrders::new));
        let connected = Arc::new(Self {
            engine,
            backend,
            namespace,
            defaults,
            lookups,
            orders,
            told,
            is_revocable,
        });
        if connected.told.is_some() {
            let answerer: Weak<dyn Answerer> = Arc::<Self>::downgrade(&connected);
            connected.backend.answer_with(answerer);
        }
        connected
    }

    /// Whether the clients of the store can be asked.
    #[cfg(feature = "admin")]
    pub(crate) fn has_questions(&self) -> bool {
        self.backend.has_questions()
    }

    /// A way to ask the clients with the namespace of this one.
    #[cfg(feature = "admin")]
    pub(crate) fn asker(&self) -> Result<Box<dyn Asker>, LockError> {
        self.backend.asker(&self.namespace).map_err(|error| error.without_key(Duration::ZERO))
    }

    /// Who has the lock with this full key, in any layout.
    #[cfg(feature = "admin")]
    pub(crate) async fn holder(&self, key: &str) -> Result<Option<KeyHolder>, LockError> {
        self.read(Some(key), self.backend.holder(key)).await
    }

    /// What the key of a lock holds, in any layout, and who its holders are.
    #[cfg(feature = "admin")]
    pub(crate) async fn inspect(&self, key: &str) -> Result<Option<LockState>, LockError> {
        let inspected = async {
            let inspector = self.backend.inspector()?;
            let Some(mut lock) = inspector.read_lock(key).await? else { return Ok(None) };
            inspector.name_holders(std::slice::from_mut(&mut lock)).await?;
            Ok(Some(lock))
        };
        self.read(Some(key), inspected).await
    }

    /// What the key of a lock holds, in any layout.
    #[cfg(feature = "admin")]
    pub(crate) async fn read_lock(&self, key: &str) -> Result<Option<LockState>, LockError> {
        let read = async { self.backend.inspector()?.read_lock(key).await };
        self.read(Some(key), read).await
    }

    /// Adds who the clients of the holders of these locks are.
    #[cfg(feature = "admin")]
    pub(crate) async fn name_holders(&self, locks: &mut [LockState]) -> Result<(), LockError> {
        let named = async { self.backend.inspector()?.name_holders(locks).await };
        self.read(None, named).await
    }

    /// Ends the hold of the owner with this token, if it still has the lock.
    #[cfg(feature = "admin")]
    pub(crate) async fn delete(&self, key: &str, token: &str) -> Result<Deletion, LockError> {
        let deleted = async { self.backend.inspector()?.delete(key, token).await };
        self.read(Some(key), deleted).await
    }

    /// The next keys whose names match a pattern.
    #[cfg(feature = "admin")]
    pub(crate) async fn scan(
        &self,
        position: ScanPosition,
        pattern: &str,
    ) -> Result<ScanPage, LockError> {
        let scanned =
            async { self.backend.inspector()?.scan(position, pattern, SCANNED_AT_ONCE).await };
        self.read(None, scanned).await
    }

    /// Awaits an answer of the store, which may be about a key.
    #[cfg(feature = "admin")]
    async fn read<T>(
        &self,
        key: Option<&str>,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, LockError> {
        runtime::checked()?;
        self.engine.check_open(key)?;
        let started = BootInstant::now();
        let answer = answer.await;
        answer.map_err(|error| error.of_call(key, BootInstant::now().since(started)))
    }

    /// See [`LockClient::shutdown`](crate::LockClient::shutdown), and [`Engine::shut_down`].
    pub(crate) async fn shut_down(&self, grace: Duration) -> (usize, Option<Arc<str>>) {
        self.engine.shut_down(grace, self.backend.finish()).await
    }

    /// What the client calls itself, in at most 256 bytes.
    pub(crate) fn name(&self) -> String {
        let mut name = self.told.as_ref().map_or("unnamed".to_owned(), ToString::to_string);
        while name.len() > LONGEST_NAME {
            name.pop();
        }
        name
    }

    /// The store for plain locks, if it has an extension.
    pub(crate) fn store_with(&self, extension: Extension) -> Result<Arc<dyn LockStore>, LockError> {
        let store = self.backend.handle(Layout::TOKEN)?;
        store.require(extension)?;
        Ok(store)
    }

    /// See [`LockClient::ready`](crate::LockClient::ready).
    pub(crate) async fn ready(&self) -> Result<(), LockError> {
        runtime::checked()?;
        self.engine.check_open(None)?;
        let (started, layout) = (BootInstant::now(), self.defaults.wire_format.into());
        self.backend.handle(layout)?;
        let checked = self.backend.check_readiness(layout).await;
        checked.map_err(|error| error.without_key(BootInstant::now().since(started)))?;
        self.engine.check_open(None)
    }

    /// Adds to a `Busy` error who holds the lock, if the store tells it within a response timeout.
    pub(crate) async fn with_holder(&self, error: Box<LockError>) -> Box<LockError> {
        let within = self.engine.config().response_timeout;
        self.lookups.complete(error, &*self.backend, within).await
    }

    /// The wait, the terms and the store of a call with these options.
    pub(crate) fn checked(
        &self,
        options: &LockOptions,
        site: &'static SiteMetrics,
    ) -> Result<(Wait, Terms, Arc<dyn LockStore>), LockError> {
        let wait = options.wait(&self.defaults)?;
        let terms = options.terms(&self.defaults, site)?;
        let format = options.wire_format(&self.defaults);
        let layout = match (options.permits, options.mode) {
            (Some(permits), _) => permits.check().map(|_| Layout::Semaphore)?,
            (None, Some(_)) => Layout::ReadWrite,
            (None, None) => format.into(),
        };
        let store = self.backend.handle(layout)?;
        if let Some(lease) = options.lease {
            check_shortest(lease, store.capabilities().shortest_lease)?;
        }
        if !terms.min_hold.is_zero() {
            store.require(Extension::KeptKeys)?;
        }
        if !terms.acknowledged_by.is_none() {
            store.require(Extension::Acknowledgements)?;
        }
        if options.every.is_some() {
            store.require(Extension::Runs)?;
        }
        if !terms.min_hold.is_zero() && options.mode == Some(LockMode::Read) {
            let problem = "readers do not exclude each other, so a minimum hold would keep no other \
                           reader out; remove `min_hold`, or be a writer";
            return Err(LockError::config("min_hold", problem));
        }
        if !matches!(layout, Layout::Wire(_)) && format != WireFormat::Token {
            let locks = if options.permits.is_some() { "semaphores" } else { "read-write locks" };
            let problem = format!(
                "{locks} have a layout of their own, and are not shared with the clients of the \
                 format {format:?}; use `Token`"
            );
            return Err(LockError::config("wire_format", problem));
        }
        if options.permits.is_some() && options.mode.is_some() {
            let problem = "a semaphore has neither readers nor writers; remove `mode`";
            return Err(LockError::config("mode", problem));
        }
        if options.permits.is_some() && options.fair.unwrap_or_default() {
            let problem = "permits are granted in the order of processes; remove `fair`";
            return Err(LockError::config("fair", problem));
        }
        if options.mode.is_some() && options.fair.unwrap_or_default() {
            let problem = "readers and writers are served in the order of processes; remove `fair`";
            return Err(LockError::config("fair", problem));
        }
        if options.fair.unwrap_or_default() && format != WireFormat::Token {
            let problem = format!("locks in the format {format:?} have no queue; use `Token`");
            return Err(LockError::config("fair", problem));
        }
        // Runs of a period are fair in stores that have queues.
        if options.fair.unwrap_or_default() && options.every.is_none() {
            store.require(Extension::Queues)?;
        }
        Ok((wait, terms, store))
    }
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { engine, namespace, defaults, .. } = self;
        f.debug_struct("LockClient")
            .field("namespace", namespace)
            .field("defaults", defaults)
            .field("engine", engine)
            .finish_non_exhaustive()
    }
}
