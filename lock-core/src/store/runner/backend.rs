//! The store of a client whose requests are asynchronous functions.

use std::sync::{Arc, OnceLock};

use super::client::AsyncClient;
use super::inspection::LeaseInspector;
use super::locks::AsyncLocks;
use super::requests::{RequestRunner, RunsOn};
use super::wake_ups::WakeUps;
use crate::client_info::ClientInfo;
use crate::error::LockError;
use crate::maybe_ready::MaybeReady;
use crate::store::contract::{
    Backend, BackgroundRuntimes, Extension, Extensions, KeyInspector, Lane, Layout, LockStore,
    StoreAnswer, StoreError,
};
use crate::store::hold_reports::HoldReports;
use crate::store::key_holder::KeyHolder;
use crate::store::owner::ClientTag;
use crate::store::settings::Settings;
use crate::store::subscriptions::Subscriptions;

/// The extensions that the runner passes on.
const POSSIBLE: Extensions = Extensions::of(&[
    Extension::KeptKeys,
    Extension::Tokens,
    Extension::Acknowledgements,
    Extension::Queues,
    Extension::Runs,
    Extension::Announcements,
]);

/// The store of a client.
pub struct AsyncBackend<C> {
    locks: Arc<AsyncLocks<C>>,
    /// Read-write locks and semaphores, if the store has some.
    counted: Option<[Arc<AsyncLocks<C>>; 2]>,
    inspector: LeaseInspector<C>,
    reports: OnceLock<HoldReports>,
}

impl<C: AsyncClient> AsyncBackend<C> {
    /// The store of a new client. `name` is that of the store, such as `etcd`, for errors. `make` gets what the client tells
    /// about itself, with the id that is in the tokens of its owners.
    ///
    /// # Errors
    ///
    /// [`LockError::Unavailable`]: there is no thread for its requests, or no randomness.
    pub fn open(
        name: &str,
        settings: &Settings,
        runs_on: RunsOn,
        make: impl FnOnce(Option<ClientInfo>) -> Arc<C>,
    ) -> Result<Arc<Self>, LockError> {
        let tag = ClientTag::of_new_client()?;
        let told = settings.told.clone().map(|told| told.with_id(tag.to_text()));
        let runner = RequestRunner::start(settings.response_timeout, runs_on)?;
        let (client, shown) = (make(told.clone()), format!("the store `{name}`"));
        let inspector = LeaseInspector::new(Arc::clone(&client), Arc::clone(&runner), told, tag);
        let subscriptions = Subscriptions::remote(Arc::default());
        let locks = |layout, extensions| {
            Arc::new(AsyncLocks {
                client: Arc::clone(&client),
                layout,
                extensions,
                shown: shown.clone(),
                runner: Arc::clone(&runner),
                subscriptions: Arc::clone(&subscriptions),
                tag,
            })
        };
        let counted = client.counted().map(|all| {
            let none = [Extension::Runs, Extension::Announcements];
            let all = none.into_iter().fold(all.intersection(POSSIBLE), Extensions::without);
            let of_semaphores = all.without(Extension::Tokens);
            [locks(Layout::ReadWrite, all), locks(Layout::Semaphore, of_semaphores)]
        });
        let locks = locks(Layout::TOKEN, client.extensions().intersection(POSSIBLE));
        Ok(Arc::new(Self { locks, counted, inspector, reports: OnceLock::new() }))
    }
}

impl<C: AsyncClient> Backend for AsyncBackend<C> {
    fn adopt(&self, _: &BackgroundRuntimes, reports: HoldReports) {
        // It is called once.
        let _ = self.reports.set(reports);
    }

    fn connect(&self) -> MaybeReady<'_, Result<(), LockError>> {
        let AsyncLocks { client, runner, subscriptions, tag, .. } = &*self.locks;
        let wake_ups = WakeUps::new(subscriptions, self.reports.get().cloned(), *tag);
        let connecting = Arc::clone(client);
        let connected = async move { connecting.connect(wake_ups).await };
        runner.connect(connected, client, subscriptions)
    }

    fn check_readiness(&self, _: Layout) -> StoreAnswer<'_, ()> {
        let client = Arc::clone(&self.locks.client);
        self.locks.runner.request(Lane::Background, async move { client.check().await })
    }

    fn holder<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<KeyHolder>> {
        self.inspector.holder(key)
    }

    fn inspector(&self) -> Result<&dyn KeyInspector, StoreError> {
        Ok(&self.inspector)
    }

    fn handle(&self, layout: Layout) -> Result<Arc<dyn LockStore>, StoreError> {
        let locks = match (layout, &self.counted) {
            (Layout::ReadWrite, Some([read_write, _])) => read_write,
            (Layout::Semaphore, Some([_, semaphores])) => semaphores,
            _ => {
                layout.plain_only(&self.locks.shown)?;
                &self.locks
            }
        };
        Ok(Arc::clone(locks) as Arc<dyn LockStore>)
    }
}
