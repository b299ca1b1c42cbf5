//! Whether replicas have a lock: `acknowledged_by`.
//!
//! Redis answers a request before its replicas have it. `WAIT` waits for them, and blocks all
//! requests behind it on its connection. It covers what the server has written until then, on newer
//! servers only if the same connection has written something itself. Requests are therefore
//! acknowledged over connections that carry nothing else: one for each connection that carries
//! requests, and for each number of replicas, because a `WAIT` for many replicas would delay those
//! for few. All requests that are answered before a `WAIT` is sent [share](round) it.
//!
//! An acknowledgement counts only if both connections lead to the same process, which its run id
//! shows, and if the acknowledging connection was open before the request was sent. Otherwise the
//! server may have lost the lock in between. In all other cases the effect of the request is
//! unknown.

mod acknowledger;
mod round;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;
use tokio::time::Instant;

use self::acknowledger::{Acknowledger, ConnectionPair};
use crate::connections::request::KeyServer;
use crate::connections::route::Route;
use crate::hash_slot;
use lock_core::replicas::RequiredReplicas;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::StoreError;
use lock_core::sync::{Mutex, lock};

/// The acknowledging connections of a client.
#[derive(Default)]
pub(crate) struct Acknowledgers(Mutex<HashMap<AcknowledgerKey, Arc<Acknowledger>>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct AcknowledgerKey {
    /// The runtime that serves the connection.
    home: runtime::Id,
    /// The number of the node of a cluster.
    node: u32,
    required: RequiredReplicas,
}

/// A key, and the replicas that have to acknowledge requests about it.
#[derive(Clone, Copy)]
pub(crate) struct KeyReplicas<'a> {
    pub(crate) key: &'a str,
    pub(crate) replicas: RequiredReplicas,
}

/// The acknowledgement of a request that has not been sent yet.
pub(crate) struct Acknowledgement {
    acknowledger: Arc<Acknowledger>,
    /// The connection that has to carry the request, and the acknowledging one.
    connections: ConnectionPair,
    slot: u16,
}

impl Acknowledgers {
    /// Prepares the acknowledgement of a request about this key: connects, and checks that the
    /// server has enough replicas. Called before the request is sent.
    pub(crate) async fn prepare(
        &self,
        route: &Route,
        required: KeyReplicas<'_>,
        within: Duration,
    ) -> Result<Acknowledgement, StoreError> {
        self.connect(route, required, within).await?.checked()
    }

    /// Prepares the acknowledgement by the replicas of this server.
    pub(crate) async fn prepare_at(
        &self,
        route: &Route,
        server: &KeyServer,
        required: KeyReplicas<'_>,
        within: Duration,
    ) -> Result<Acknowledgement, StoreError> {
        self.connect_to(route, server, required, within).await?.checked()
    }

    /// Describes the problem if the server that has this key has too few replicas. Fails if the
    /// server does not permit acknowledgements.
    pub(crate) async fn shortage(
        &self,
        route: &Route,
        required: KeyReplicas<'_>,
        within: Duration,
    ) -> Result<Option<String>, StoreError> {
        let prepared = self.connect(route, required, within).await?;
        Ok(prepared.acknowledger.shortage())
    }

    async fn connect(
        &self,
        route: &Route,
        required: KeyReplicas<'_>,
        within: Duration,
    ) -> Result<Acknowledgement, StoreError> {
        let started = Instant::now();
        let server = route.server_of(required.key, within).await?;
        let left = within.saturating_sub(started.elapsed());
        self.connect_to(route, &server, required, left).await
    }

    async fn connect_to(
        &self,
        route: &Route,
        server: &KeyServer,
        required: KeyReplicas<'_>,
        within: Duration,
    ) -> Result<Acknowledgement, StoreError> {
        let acknowledger = self.of(route, server, required.replicas);
        let slot = hash_slot::slot(required.key);
        let connections = acknowledger.connect(&server.connection, slot, within).await?;
        Ok(Acknowledgement { acknowledger, connections, slot })
    }

    /// The acknowledging connection beside that of a route to a server.
    fn of(
        &self,
        route: &Route,
        server: &KeyServer,
        required: RequiredReplicas,
    ) -> Arc<Acknowledger> {
        let node = server.node.as_ref().map_or(0, |(_, number)| *number);
        let key = AcknowledgerKey { home: route.home(), node, required };
        let mut all = lock(&self.0);
        if let Some(known) = all.get(&key).filter(|known| known.is_alive()) {
            return Arc::clone(known);
        }
        all.retain(|_, known| known.is_alive());
        let new = Arc::new(Acknowledger::new(server, required));
        all.insert(key, Arc::clone(&new));
        new
    }
}

impl Acknowledgement {
    /// Fails if the server has too few replicas.
    fn checked(self) -> Result<Self, StoreError> {
        match self.acknowledger.shortage() {
            Some(problem) => Err(StoreError::Refused(problem)),
            None => Ok(self),
        }
    }

    /// Waits until the replicas have all that the server had written when this was called, which is
    /// after the answer to the request.
    ///
    /// Cancel safe.
    pub(crate) async fn given(&self, within: Duration) -> Result<(), StoreError> {
        self.acknowledger.acknowledge(self.connections.own, self.slot, within).await
    }

    /// Fails if another connection than expected has carried the request.
    pub(crate) fn check_carrier(&self, carrier: Option<NonZeroU64>) -> Result<(), StoreError> {
        let is_expected = carrier.map(NonZeroU64::get) == Some(self.connections.requests);
        if is_expected || !Safeguard::OneServerAcknowledges.is_on() {
            return Ok(());
        }
        let cause = "the connection or the server has changed since the request was sent, so it is \
                     not known whether replicas have the lock";
        Err(StoreError::Unknown(cause.into()))
    }
}
