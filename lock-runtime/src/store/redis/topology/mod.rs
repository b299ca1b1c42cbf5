//! Which server has the keys. No other part of the store knows that there may be several servers.
//!
//! Each attempt to connect opens its connection here. While connections are open, the topology
//! finds out on its own when another server has taken over the keys. All connections to the earlier
//! server are then discarded, even if they still work.

mod opened;
mod sentinel;
mod single;

use std::time::Duration;

use tokio::runtime;

pub(super) use self::opened::{NewSocket, Opened};
use self::sentinel::MonitoredMaster;
use self::single::SingleServer;
use super::url::UrlTarget;
use crate::store::contract::{StoreError, VerifyHolds};

/// The servers of a client.
pub(super) struct Topology(TopologyKind);

enum TopologyKind {
    Single(SingleServer),
    Sentinel(Box<MonitoredMaster>),
}

impl Topology {
    pub(super) fn new(target: UrlTarget) -> Self {
        Self(match target {
            UrlTarget::Server(server) => TopologyKind::Single(SingleServer::new(server)),
            UrlTarget::Sentinels(url) => TopologyKind::Sentinel(MonitoredMaster::new(url).into()),
        })
    }

    /// The server for messages: its address, or its name.
    pub(super) fn shown(&self) -> &str {
        match &self.0 {
            TopologyKind::Single(single) => single.shown(),
            TopologyKind::Sentinel(master) => master.shown(),
        }
    }

    /// Whether the program supplies the credentials.
    pub(super) fn has_credentials_source(&self) -> bool {
        match &self.0 {
            TopologyKind::Single(single) => single.has_credentials_source(),
            TopologyKind::Sentinel(master) => master.has_credentials_source(),
        }
    }

    /// Starts to watch for other servers that take over the keys. `verify` is called when one has.
    pub(super) fn watch(&self, home: &runtime::Handle, verify: VerifyHolds) {
        match &self.0 {
            TopologyKind::Single(_) => {}
            TopologyKind::Sentinel(master) => master.watch(home, verify),
        }
    }

    /// Opens a connection to the server that has the keys. The current runtime serves its socket.
    ///
    /// Cancel safe: if the future is dropped, its connections are closed.
    pub(super) async fn open(
        &self,
        new_socket: &(dyn Fn() -> NewSocket + Sync),
    ) -> Result<Opened, StoreError> {
        match &self.0 {
            TopologyKind::Single(single) => single.open(new_socket()).await,
            TopologyKind::Sentinel(master) => master.open(new_socket).await,
        }
    }

    /// Describes a setting with which locks of this lease may be lost. Called after the first
    /// connection.
    pub(super) fn warning(&self, lease: Duration) -> Option<String> {
        match &self.0 {
            TopologyKind::Single(_) => None,
            TopologyKind::Sentinel(master) => master.warning(lease),
        }
    }

    /// Whether the server with this number still has the keys, as far as the client knows.
    pub(super) fn is_current(&self, number: u64) -> bool {
        match &self.0 {
            TopologyKind::Single(_) => true,
            TopologyKind::Sentinel(master) => master.is_current(number),
        }
    }

    /// Whether another server may take over the keys.
    pub(super) fn may_change(&self) -> bool {
        match &self.0 {
            TopologyKind::Single(_) => false,
            TopologyKind::Sentinel(_) => true,
        }
    }

    /// Resolves when the server with this number no longer has the keys.
    pub(super) async fn replaced(&self, number: u64) {
        match &self.0 {
            TopologyKind::Single(_) => std::future::pending().await,
            TopologyKind::Sentinel(master) => master.replaced(number).await,
        }
    }
}
