//! Locks in a Redis server.
//!
//! A lock is a key that names its owner and expires with the lease. Its layout is a [`dialect`]. By
//! default it is a string, the owner's token: the plain pattern of Redis's own documentation, which
//! clients in other languages share. `SET key token NX PX lease` takes the lock, and
//! compare-and-delete releases it
//! (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>). The other dialects
//! are those of other clients.
//!
//! Requests that a caller awaits use a connection of the caller's runtime, one per runtime.
//! Renewals and background releases use another connection. Wake-ups arrive on a third one, which
//! also checks the keys of waiters. Waiters can therefore never delay a renewal.

mod connect;
mod connection;
mod decode;
mod dialect;
mod endpoint;
mod error;
mod handle;
mod handshake;
mod hash_slot;
mod in_flight;
mod login;
mod poller;
mod probe;
mod script;
mod server_info;
mod shared;
mod socket;
mod subscriber;
#[cfg(feature = "tls")]
mod tls;
mod topology;
mod traffic;
mod url;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, cmd};
use tokio::runtime;

use self::connect::CONNECT_TIMEOUT;
use self::connection::{Connection, RequestClass, RequestOptions};
use self::dialect::Dialect;
use self::handle::RedisStore;
use self::poller::Poller;
use self::server_info::ServerInfo;
use self::shared::{OwnConnections, Shared};
use self::topology::Topology;
pub(crate) use self::url::is_redis;
use super::contract::{Backend, BackgroundRuntimes, Lane, LockStore, StoreError, VerifyHolds};
use super::settings::Settings;
use crate::clock::BootInstant;
use crate::error::LockError;
use crate::maybe_ready::MaybeReady;
use crate::timeout::RequestTimeout;
use crate::wire_format::WireFormat;

/// A Redis server, and a handle to it for each dialect.
pub(crate) struct RedisBackend {
    shared: Arc<Shared>,
    /// The lease of locks that do not specify one.
    lease: Duration,
    handles: [Arc<RedisStore>; WireFormat::ALL.len()],
}

impl RedisBackend {
    /// Checks the URL. Does not connect.
    pub(crate) fn new(url: &str, settings: &Settings) -> Result<Self, LockError> {
        let topology = Topology::new(url::parse(url, settings)?);
        let shared = Arc::new(Shared::new(topology, settings.response_timeout)?);
        let handle = |format| Arc::new(RedisStore::new(Arc::clone(&shared), Dialect::of(format)));
        let handles = WireFormat::ALL.map(handle);
        Ok(Self { shared, lease: settings.lease, handles })
    }

    /// Opens the client's own two connections and that of the current runtime, and checks the
    /// server, so that problems are reported at the start.
    async fn connect_and_check(&self) -> Result<(), LockError> {
        let started = BootInstant::now();
        let failed = |problem| match problem {
            StoreError::Config { option, problem } => LockError::Config { option, problem },
            StoreError::Denied(cause) => match server_info::permanent(&cause) {
                Some(problem) => LockError::Config { option: "url", problem },
                None => LockError::Denied { cause },
            },
            error => LockError::Unavailable {
                key: None,
                waited: BootInstant::now().since(started),
                cause: error.to_string(),
            },
        };
        let server = self.connect_all().await.map_err(failed)?;
        server.check()?;
        self.probe_scripts().await.map_err(failed)?;
        let by_topology = self.shared.topology.warning(self.lease);
        for warning in server.warnings().into_iter().chain(by_topology) {
            tracing::warn!(address = self.shared.address(), "{warning}");
        }
        Ok(())
    }

    /// Opens the connections, and asks the server for its description.
    async fn connect_all(&self) -> Result<ServerInfo, StoreError> {
        let own = self.shared.own()?;
        own.background.established(CONNECT_TIMEOUT).await?;
        own.wake_ups.established(CONNECT_TIMEOUT).await?;
        let caller = self.shared.connection(Lane::Caller)?;
        caller.established(CONNECT_TIMEOUT).await?;
        match caller.send(&cmd("INFO"), CHECK, decode::info).await {
            // A user without this permission can use locks all the same.
            Err(StoreError::Denied(cause) | StoreError::Refused(cause)) => {
                tracing::debug!(%cause, "cannot check the version and the settings of the server");
                Ok(ServerInfo::default())
            }
            info => info.map(|info| ServerInfo::parse(&info)),
        }
    }

    /// Checks that the server runs scripts. Without them, a lock could be acquired but never
    /// released.
    async fn probe_scripts(&self) -> Result<(), StoreError> {
        let no_keys = |call: &mut Cmd| {
            call.arg(0);
        };
        let caller = self.shared.connection(Lane::Caller)?;
        caller.run(&dialect::PROBE, no_keys, CHECK, decode::probed).await
    }
}

/// How the requests of the check are sent.
const CHECK: RequestOptions<'static> = RequestOptions {
    class: RequestClass::Unlimited,
    timeout: RequestTimeout::of(CONNECT_TIMEOUT),
    trace: None,
};

impl Backend for RedisBackend {
    fn adopt(&self, runtimes: &BackgroundRuntimes, verify: VerifyHolds) {
        let shared = &self.shared;
        let connection = |home: &runtime::Handle, on_message| {
            Connection::new(
                Arc::clone(&shared.topology),
                home.clone(),
                shared.response_timeout,
                on_message,
            )
        };
        let on_message = subscriber::on_message(&shared.subscriptions, &shared.id);
        let background = connection(&runtimes.renewals, None);
        let wake_ups = connection(&runtimes.wake_ups, Some(on_message));
        let own = OwnConnections { background, wake_ups: wake_ups.clone() };
        if shared.own.set(own).is_ok() {
            let (home, subscriptions) = (&runtimes.wake_ups, &shared.subscriptions);
            // On the runtime of the renewals, because no code of the program runs there.
            shared.topology.watch(&runtimes.renewals, verify);
            let poller =
                Poller::new(wake_ups.clone(), Arc::clone(subscriptions), shared.response_timeout);
            home.spawn(poller.run());
            home.spawn(subscriber::run(
                wake_ups,
                Arc::clone(subscriptions),
                shared.response_timeout,
            ));
        }
    }

    fn connect(&self) -> MaybeReady<'_, Result<(), LockError>> {
        MaybeReady::pending(self.connect_and_check())
    }

    fn handle(&self, format: WireFormat) -> Arc<dyn LockStore> {
        Arc::clone(&self.handles[format.index()]) as Arc<dyn LockStore>
    }
}
