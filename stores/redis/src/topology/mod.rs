//! Which server has the keys. Apart from the routes, no other part of the store
//! knows that there may be several servers.
//!
//! Each attempt to connect opens its connection here. While connections are open, the topology
//! finds out on its own when another server has taken over the keys. All connections to the earlier
//! server are then discarded, even if they still work.
//!
//! In a [cluster](RedisCluster), each master has a part of the keys, and a topology of its own.

mod announced;
mod cluster;
mod opened;
mod sentinel;
mod single;

use std::sync::Arc;
use std::time::Duration;

pub(super) use self::cluster::{ClusterNode, Redirect, RedisCluster, may_be_failover};
pub(super) use self::opened::{NewSocket, Opened};
use self::sentinel::MonitoredMaster;
use self::single::SingleServer;
use super::url::SentinelUrl;
use crate::transport::endpoint::Endpoint;
use lock_core::key;
use lock_core::store::contract::{BackgroundRuntimes, StoreError};
use lock_core::store::hold_reports::HoldReports;
use lock_core::store::quarantine_terms::QuarantineTerms;

/// The servers that may have some keys.
pub(super) struct Topology {
    kind: TopologyKind,
    quarantine: Option<Arc<QuarantineTerms>>,
}

enum TopologyKind {
    Single(SingleServer),
    Sentinel(Box<MonitoredMaster>),
    Node(Arc<ClusterNode>),
}

impl Topology {
    /// `quarantine` is about servers that may have lost locks.
    pub(super) fn of_server(server: Endpoint, quarantine: Option<Arc<QuarantineTerms>>) -> Self {
        Self { kind: TopologyKind::Single(SingleServer::new(server)), quarantine }
    }

    pub(super) fn of_master(url: SentinelUrl, quarantine: Option<Arc<QuarantineTerms>>) -> Self {
        Self { kind: TopologyKind::Sentinel(MonitoredMaster::new(url).into()), quarantine }
    }

    pub(super) fn of_node(
        node: Arc<ClusterNode>,
        quarantine: Option<Arc<QuarantineTerms>>,
    ) -> Self {
        Self { kind: TopologyKind::Node(node), quarantine }
    }

    pub(super) fn quarantine(&self) -> Option<Arc<QuarantineTerms>> {
        self.quarantine.clone()
    }

    /// The keys that say since when the server grants locks. None for a node of a cluster without
    /// slots.
    pub(super) fn quarantine_markers(&self) -> Vec<String> {
        match &self.kind {
            TopologyKind::Single(_) | TopologyKind::Sentinel(_) => vec![key::QUARANTINES.into()],
            TopologyKind::Node(node) => node.keys_with(key::QUARANTINES),
        }
    }

    /// The server for messages: its address, or its name.
    pub(super) fn shown(&self) -> &str {
        match &self.kind {
            TopologyKind::Single(single) => single.shown(),
            TopologyKind::Sentinel(master) => master.shown(),
            TopologyKind::Node(node) => node.server().shown(),
        }
    }

    /// Whether the program supplies the credentials.
    pub(super) fn has_credentials_source(&self) -> bool {
        match &self.kind {
            TopologyKind::Single(single) => single.has_credentials_source(),
            TopologyKind::Sentinel(master) => master.has_credentials_source(),
            TopologyKind::Node(node) => node.server().login().has_source(),
        }
    }

    /// Starts to watch for other servers that take over the keys. A report is sent when one has.
    pub(super) fn watch(
        &self,
        runtimes: &BackgroundRuntimes,
        reports: HoldReports,
        lease: Duration,
    ) {
        match &self.kind {
            TopologyKind::Single(single) => single.watch(runtimes, reports, lease),
            TopologyKind::Node(_) => {}
            TopologyKind::Sentinel(master) => master.watch(runtimes, reports),
        }
    }

    /// Opens a connection to the server that has the keys. The current runtime serves its socket.
    ///
    /// Cancel safe: if the future is dropped, its connections are closed.
    pub(super) async fn open(
        &self,
        new_socket: &(dyn Fn() -> NewSocket + Sync),
    ) -> Result<Opened, StoreError> {
        match &self.kind {
            TopologyKind::Single(single) => single.open(new_socket).await,
            TopologyKind::Sentinel(master) => master.open(new_socket).await,
            TopologyKind::Node(node) => node.open(new_socket()).await,
        }
    }

    /// Describes a setting with which locks of this lease may be lost. Called after the first
    /// connection.
    pub(super) fn warning(&self, lease: Duration) -> Option<String> {
        match &self.kind {
            TopologyKind::Single(_) | TopologyKind::Node(_) => None,
            TopologyKind::Sentinel(master) => master.warning(lease),
        }
    }

    /// Whether the server with this number still has the keys, as far as the client knows.
    pub(super) fn is_current(&self, number: u64) -> bool {
        match &self.kind {
            TopologyKind::Single(single) => single.is_current(number),
            TopologyKind::Sentinel(master) => master.is_current(number),
            TopologyKind::Node(node) => node.is_current(),
        }
    }

    /// Whether no server has the keys any more: the master of a cluster was replaced.
    pub(super) fn is_obsolete(&self) -> bool {
        matches!(&self.kind, TopologyKind::Node(node) if !node.is_current())
    }

    /// Resolves when the server with this number no longer has the keys.
    pub(super) async fn replaced(&self, number: u64) {
        match &self.kind {
            TopologyKind::Single(single) => single.replaced(number).await,
            TopologyKind::Sentinel(master) => master.replaced(number).await,
            TopologyKind::Node(node) => node.replaced().await,
        }
    }

    /// How connections are numbered: above this number. Connections of one lane that lead to
    /// different nodes have different numbers.
    pub(super) fn first_generation(&self) -> u64 {
        match &self.kind {
            TopologyKind::Single(_) | TopologyKind::Sentinel(_) => 0,
            TopologyKind::Node(node) => u64::from(node.number()) << 32,
        }
    }

    /// The number of the node to which the connection with this number leads.
    pub(super) fn node_of(generation: u64) -> Option<u32> {
        u32::try_from(generation >> 32).ok().filter(|number| *number > 0)
    }

    /// A connection to the server was lost.
    pub(super) fn connection_lost(&self) {
        if let TopologyKind::Node(node) = &self.kind {
            node.lost();
        }
    }

    /// Whether the server is a node of a cluster.
    pub(super) fn is_node(&self) -> bool {
        matches!(self.kind, TopologyKind::Node(_))
    }
}
