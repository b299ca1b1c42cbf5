//! What the handles of one client share: its connections, its subscriptions and its name.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::Level;
use uuid::Uuid;

use super::connection::{Connection, has_io};
use super::topology::Topology;
use crate::error::LockError;
use crate::events;
use crate::runtime;
use crate::store::contract::{Lane, StoreError};
use crate::store::subscriptions::Subscriptions;
use crate::sync::{Mutex, lock};

pub(super) struct Shared {
    pub(super) topology: Arc<Topology>,
    pub(super) response_timeout: Duration,
    /// The connections of the callers' runtimes. Few, because most programs have one runtime.
    callers: Mutex<Vec<Connection>>,
    /// Set as soon as the client's own threads run.
    pub(super) own: OnceLock<OwnConnections>,
    pub(super) subscriptions: Arc<Subscriptions>,
    /// Identifies this client in owner names and messages: a UUID.
    pub(super) id: Arc<str>,
    /// The log has said that releases cannot be published.
    publish_failed: AtomicBool,
}

/// The connections of the client's own threads.
pub(super) struct OwnConnections {
    /// For renewals and background releases.
    pub(super) background: Connection,
    /// For subscriptions and checks.
    pub(super) wake_ups: Connection,
}

impl Shared {
    pub(super) fn new(topology: Topology, response_timeout: Duration) -> Result<Self, LockError> {
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random).map_err(|error| LockError::Unavailable {
            key: None,
            waited: Duration::ZERO,
            cause: format!("the operating system returned no random numbers: {error}"),
        })?;
        let id = uuid::Builder::from_random_bytes(random).into_uuid();
        Ok(Self {
            topology: Arc::new(topology),
            response_timeout,
            callers: Mutex::default(),
            own: OnceLock::new(),
            subscriptions: Subscriptions::remote(),
            id: Uuid::hyphenated(id).to_string().into(),
            publish_failed: AtomicBool::new(false),
        })
    }

    /// The server, without credentials.
    pub(super) fn address(&self) -> &str {
        self.topology.shown()
    }

    pub(super) fn own(&self) -> Result<&OwnConnections, StoreError> {
        let missing = || StoreError::Refused("there is no background thread".into());
        self.own.get().ok_or_else(missing)
    }

    /// The connection of a lane.
    pub(super) fn connection(&self, lane: Lane) -> Result<Connection, StoreError> {
        match lane {
            Lane::Background => Ok(self.own()?.background.clone()),
            Lane::Caller => {
                let here = runtime::here().map_err(|problem| {
                    let cause = "requests must be awaited inside a tokio runtime, but";
                    StoreError::Refused(format!("{cause} {problem}"))
                })?;
                let mut callers = lock(&self.callers);
                let own = |caller: &&Connection| caller.home() == here.id() && caller.is_alive();
                if let Some(caller) = callers.iter().find(own) {
                    return Ok(caller.clone());
                }
                callers.retain(Connection::is_alive);
                if !has_io() {
                    let problem = "requests use a connection of the runtime that awaits them, and \
                                   this runtime has no I/O: build it with `enable_io()` or \
                                   `enable_all()`";
                    let problem = problem.into();
                    return Err(StoreError::Config { option: "runtime", problem });
                }
                let topology = Arc::clone(&self.topology);
                let caller = Connection::new(topology, here, self.response_timeout, None);
                callers.push(caller.clone());
                Ok(caller)
            }
            Lane::Runtime(id) => {
                let callers = lock(&self.callers);
                let caller = callers.iter().find(|caller| caller.home() == id && caller.is_alive());
                let missing = || StoreError::Refused("the runtime of the caller has ended".into());
                caller.cloned().ok_or_else(missing)
            }
        }
    }

    /// The number of other clients among all subscribers of a channel.
    pub(super) fn others_of(&self, channel: &str, all: i64) -> usize {
        let all = usize::try_from(all).unwrap_or_default();
        if all == 0 { 0 } else { all - usize::from(self.subscriptions.is_live(channel)) }
    }

    /// Logs once that a release could not be published.
    pub(super) fn could_not_publish(&self, channel: &str, cause: &str) {
        if !self.publish_failed.swap(true, Ordering::Relaxed) {
            let (channel, cause) = (channel.to_owned(), cause.to_owned());
            events::emit(Level::WARN, move || {
                tracing::warn!(
                    channel,
                    cause,
                    "cannot publish releases: waiting clients of this library poll once a second, \
                     and other clients may wait until the released lease would have ended"
                );
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::url;
    use crate::store::settings::Settings;
    use crate::wire_format::WireFormat;

    fn shared() -> Shared {
        let target = url::parse("redis://localhost", &Settings::default());
        let topology = Topology::new(target.expect("valid"));
        Shared::new(topology, Duration::from_secs(1)).expect("randomness")
    }

    #[test]
    fn the_own_subscription_is_not_that_of_another_client() {
        let shared = shared();
        let _subscription = shared.subscriptions.listen("channel", "k", WireFormat::Token);
        assert_eq!(shared.others_of("channel", 3), 3, "the subscription is not live");
        shared.subscriptions.subscribed(&[Arc::from("channel")]);
        assert_eq!([0, 1, 3].map(|all| shared.others_of("channel", all)), [0, 0, 2]);
    }

    #[test]
    fn a_client_has_a_uuid_of_its_own() {
        let id = || Uuid::parse_str(&shared().id).expect("a UUID");
        let (one, two) = (id(), id());
        assert_ne!(one, two);
        assert_eq!(one.get_version_num(), 4);
    }
}
