//! What the handles of one client share: its connections, its subscriptions and its name.

use std::borrow::Cow;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tracing::Level;

use super::client_id::ClientId;
use crate::connections::admission::RequestClass;
use crate::connections::connection::RequestOptions;
use crate::connections::measured::Measured;
use crate::connections::replicas::Acknowledgers;
use crate::connections::route::Route;
use crate::connections::servers::Servers;
use crate::connections::tracking::Tracking;
use crate::presence::PresenceState;
use lock_core::error::LockError;
use lock_core::events;
use lock_core::questions::Answerer;
use lock_core::runtime;
use lock_core::store::contract::{Lane, StoreError};
use lock_core::store::different_limits::DifferentLimits;
use lock_core::store::home::has_io;
use lock_core::store::settings::Settings;
use lock_core::store::subscriptions::{Inbox, Subscriptions};
use lock_core::sync::{Mutex, lock};
use lock_core::telemetry::requests::{StoreMetrics, StoreOperation};
use lock_core::timeout::RequestTimeout;

pub(super) struct Shared {
    pub(super) servers: Servers,
    pub(super) response_timeout: Duration,
    /// The measurements of requests.
    requests: Arc<StoreMetrics>,
    /// The connections of the first runtime with callers. Most programs have no other one, so its requests need
    /// no mutex.
    first_caller: OnceLock<Route>,
    /// The connections of the other runtimes with callers.
    other_callers: Mutex<Vec<Route>>,
    /// Set as soon as the client's own threads run.
    pub(super) own: OnceLock<OwnConnections>,
    pub(super) subscriptions: Arc<Subscriptions>,
    /// Unused while no lock requires replicas.
    pub(super) acknowledgers: Acknowledgers,
    /// `None` if it is switched off.
    pub(super) tracking: Option<ClientTracking>,
    /// Identifies this client in owner names and messages.
    pub(super) id: ClientId,
    /// The log has said that releases cannot be published.
    publish_failed: AtomicBool,
    /// The log has said that claims cannot be put into a queue.
    queue_failed: AtomicBool,
    pub(super) limits: DifferentLimits,
    pub(super) presence: Arc<PresenceState>,
    /// What answers questions about the client, if anything does.
    pub(super) answerer: OnceLock<Weak<dyn Answerer>>,
    /// The questions, once the client listens to them.
    pub(super) questions: OnceLock<Arc<Inbox>>,
}

/// The tracking of keys over the client's own connections.
pub(super) struct ClientTracking {
    /// The keys of held locks.
    pub(super) holds: Arc<Tracking>,
    /// The keys of locks that claims wait for.
    pub(super) claims: Arc<Tracking>,
}

/// The connections of the client's own threads.
pub(super) struct OwnConnections {
    /// For renewals and background releases.
    pub(super) background: Route,
    /// For the checks of keys, and for subscriptions unless they need connections of their own.
    pub(super) wake_ups: Route,
    /// The runtime of the wake-ups.
    pub(super) home: Handle,
}

impl Shared {
    pub(super) fn new(servers: Servers, settings: &Settings) -> Result<Self, LockError> {
        let id = ClientId::random().map_err(|error| {
            LockError::unavailable(
                None,
                Duration::ZERO,
                format!("the operating system returned no random numbers: {error}"),
            )
        })?;
        let tracking = settings
            .tracking
            .then(|| ClientTracking { holds: Arc::default(), claims: Arc::default() });
        let can_watch = tracking.as_ref().map(|tracking| tracking.claims.state());
        Ok(Self {
            servers,
            response_timeout: settings.response_timeout,
            requests: Arc::clone(&settings.requests),
            first_caller: OnceLock::new(),
            other_callers: Mutex::default(),
            own: OnceLock::new(),
            subscriptions: Subscriptions::remote(can_watch.unwrap_or_default()),
            acknowledgers: Acknowledgers::default(),
            tracking,
            id,
            publish_failed: AtomicBool::new(false),
            queue_failed: AtomicBool::new(false),
            limits: DifferentLimits::default(),
            presence: Arc::default(),
            answerer: OnceLock::new(),
            questions: OnceLock::new(),
        })
    }

    /// The measurement of a request.
    pub(super) fn measured(&self, operation: StoreOperation) -> Measured<'_> {
        Measured(self.requests.of(operation))
    }

    /// For a request that inspects or deletes a lock.
    pub(super) fn inspection_options(&self) -> RequestOptions<'_> {
        let timeout = RequestTimeout::of(self.response_timeout);
        let measured = Some(self.measured(StoreOperation::Others));
        RequestOptions { measured, ..RequestOptions::new(RequestClass::Unlimited, timeout) }
    }

    /// The server, without credentials.
    pub(super) fn address(&self) -> &str {
        self.servers.shown()
    }

    pub(super) fn own(&self) -> Result<&OwnConnections, StoreError> {
        let missing = || StoreError::Refused("there is no background thread".into());
        self.own.get().ok_or_else(missing)
    }

    /// The connections of a lane.
    pub(super) fn route(&self, lane: Lane) -> Result<Cow<'_, Route>, StoreError> {
        match lane {
            Lane::Background => Ok(Cow::Borrowed(&self.own()?.background)),
            Lane::Caller => {
                let here = runtime::here().map_err(|problem| {
                    let cause = "requests must be awaited inside a tokio runtime, but";
                    StoreError::Refused(format!("{cause} {problem}"))
                })?;
                if let Some(caller) = self.first_caller_of(here.id()) {
                    return Ok(Cow::Borrowed(caller));
                }
                let mut others = lock(&self.other_callers);
                if let Some(caller) = caller_of(here.id(), &others) {
                    return Ok(Cow::Owned(caller.clone()));
                }
                others.retain(Route::is_alive);
                if !has_io() {
                    let problem = "requests use a connection of the runtime that awaits them, and \
                                   this runtime has no I/O: build it with `enable_io()` or \
                                   `enable_all()`";
                    let problem = problem.into();
                    return Err(StoreError::Config { option: "runtime", problem });
                }
                let id = here.id();
                let caller = self.servers.route(here, self.response_timeout, None);
                let caller = match self.first_caller.set(caller) {
                    Ok(()) => {
                        return Ok(Cow::Borrowed(self.first_caller_of(id).ok_or_else(ended)?));
                    }
                    Err(caller) => caller,
                };
                others.push(caller.clone());
                Ok(Cow::Owned(caller))
            }
            Lane::Runtime(id) => {
                if let Some(caller) = self.first_caller_of(id) {
                    return Ok(Cow::Borrowed(caller));
                }
                let others = lock(&self.other_callers);
                caller_of(id, &others).cloned().map(Cow::Owned).ok_or_else(ended)
            }
        }
    }

    /// The connections of the first runtime with callers, if it is this one.
    fn first_caller_of(&self, runtime: Id) -> Option<&Route> {
        caller_of(runtime, self.first_caller.get().map(slice::from_ref).unwrap_or_default())
    }

    /// The number of other clients among all subscribers of a channel.
    pub(super) fn others_of(&self, channel: &str, all: i64) -> usize {
        let all = usize::try_from(all).unwrap_or_default();
        if all == 0 { 0 } else { all - usize::from(self.subscriptions.is_live(channel)) }
    }

    /// Logs once that a claim could not be put into a queue.
    pub(super) fn could_not_queue(&self, cause: &str) {
        if !self.queue_failed.swap(true, Ordering::Relaxed) {
            let cause = cause.to_owned();
            events::emit(Level::WARN, move || {
                tracing::warn!(
                    target: "lock_runtime::store::redis",
                    cause,
                    "cannot put a waiting call into the queue of its lock: such calls poll once a \
                     second, and calls that came later may get the lock before them"
                );
            });
        }
    }

    /// Logs once that a release could not be published.
    pub(super) fn could_not_publish(&self, key: &str, cause: &str) {
        if !self.publish_failed.swap(true, Ordering::Relaxed) {
            let (key, cause) = (key.to_owned(), cause.to_owned());
            events::emit(Level::WARN, move || {
                tracing::warn!(
                    target: "lock_runtime::store::redis",
                    key,
                    cause,
                    "cannot publish releases: waiting clients of this library poll once a second, \
                     and other clients may wait until the released lease would have ended"
                );
            });
        }
    }
}

/// The connections of a runtime that still runs.
fn caller_of(runtime: Id, callers: &[Route]) -> Option<&Route> {
    callers.iter().find(|caller| caller.home() == runtime && caller.is_alive())
}

fn ended() -> StoreError {
    StoreError::Refused("the runtime of the caller has ended".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url;
    use lock_core::store::owner::OwnerId;
    use lock_core::store::settings::Settings;
    use lock_core::wire_format::WireFormat;

    fn shared() -> Shared {
        let target = url::parse("redis://localhost", &Settings::default());
        let servers = Servers::new(target.expect("valid"), None);
        let settings = Settings { tracking: false, ..Settings::default() };
        Shared::new(servers, &settings).expect("randomness")
    }

    #[test]
    fn the_own_subscription_is_not_that_of_another_client() {
        let shared = shared();
        let _subscription = shared.subscriptions.listen(
            "channel",
            "k",
            WireFormat::Redisson.into(),
            OwnerId::new().expect("randomness"),
        );
        assert_eq!(shared.others_of("channel", 3), 3, "the subscription is not live");
        shared.subscriptions.subscribed(&[Arc::from("channel")]);
        assert_eq!([0, 1, 3].map(|all| shared.others_of("channel", all)), [0, 0, 2]);
    }
}
