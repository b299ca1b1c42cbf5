//! The servers of a client: one at a time, or the nodes of a cluster.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;

use super::connection::Connection;
use super::nodes::{self, NodeConnections};
use super::route::Route;
use super::tracking::Listening;
use crate::scripts::script::Publish;
use crate::topology::{RedisCluster, Topology};
use crate::url::UrlTarget;
use lock_core::store::contract::{BackgroundRuntimes, Place};
use lock_core::store::hold_reports::HoldReports;
use lock_core::store::quarantine_terms::QuarantineTerms;

/// The servers of a client.
pub(crate) enum Servers {
    /// One server at a time has all keys.
    One(Arc<Topology>),
    Cluster(Arc<RedisCluster>),
}

impl Servers {
    /// `quarantine` is about servers that may have lost locks.
    pub(crate) fn new(target: UrlTarget, quarantine: Option<Arc<QuarantineTerms>>) -> Self {
        match target {
            UrlTarget::Server(server) => {
                Self::One(Arc::new(Topology::of_server(server, quarantine)))
            }
            UrlTarget::Sentinels(url) => Self::One(Arc::new(Topology::of_master(url, quarantine))),
            UrlTarget::Cluster(url) => Self::Cluster(Arc::new(RedisCluster::new(url, quarantine))),
        }
    }

    /// The servers, without credentials.
    pub(crate) fn shown(&self) -> &str {
        match self {
            Self::One(topology) => topology.shown(),
            Self::Cluster(cluster) => cluster.shown(),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Whether servers that may have lost locks grant none for some time.
    pub(crate) fn have_quarantines(&self) -> bool {
        self.quarantine().is_some()
    }

    /// The quarantines of servers that may have lost locks.
    pub(crate) fn quarantine(&self) -> Option<Arc<QuarantineTerms>> {
        match self {
            Self::One(topology) => topology.quarantine(),
            Self::Cluster(cluster) => cluster.quarantine(),
        }
    }

    /// Starts to watch for servers that take over keys. A report is sent when one has.
    pub(crate) fn watch(
        &self,
        runtimes: &BackgroundRuntimes,
        reports: HoldReports,
        lease: Duration,
    ) {
        match self {
            Self::One(topology) => topology.watch(runtimes, reports, lease),
            Self::Cluster(cluster) => cluster.watch(runtimes, reports),
        }
    }

    /// Describes a setting with which locks of this lease may be lost.
    pub(crate) fn warning(&self, lease: Duration) -> Option<String> {
        match self {
            Self::One(topology) => topology.warning(lease),
            Self::Cluster(_) => None,
        }
    }

    /// A key that begins with `prefix` for each server that has keys.
    pub(crate) fn keys_of_all(&self, prefix: &str) -> Vec<String> {
        match self {
            Self::One(_) => vec![prefix.to_owned()],
            Self::Cluster(cluster) => {
                let nodes = cluster.nodes();
                nodes.iter().filter_map(|node| node.keys_with(prefix).into_iter().next()).collect()
            }
        }
    }

    /// The addresses of the masters of a cluster.
    pub(crate) fn masters(&self) -> Vec<String> {
        match self {
            Self::One(_) => Vec::new(),
            Self::Cluster(cluster) => {
                cluster.nodes().iter().map(|node| node.server().shown().to_owned()).collect()
            }
        }
    }

    /// The part of the servers that has a key.
    pub(crate) fn place(&self, key: &str) -> Place {
        match self {
            Self::One(_) => Place::ONLY,
            Self::Cluster(cluster) => nodes::place(cluster, key),
        }
    }

    /// How the messages of releases are published.
    pub(crate) fn publish(&self) -> Publish {
        match self {
            Self::Cluster(cluster) => cluster.publish(),
            Self::One(_) => Publish::Everywhere,
        }
    }

    /// The connections of one lane, which are served on `home`.
    pub(crate) fn route(
        &self,
        home: runtime::Handle,
        response_timeout: Duration,
        listening: Option<Listening>,
    ) -> Route {
        match self {
            Self::One(topology) => {
                let topology = Arc::clone(topology);
                Route::One(Connection::new(topology, home, response_timeout, listening))
            }
            Self::Cluster(cluster) => {
                let nodes =
                    NodeConnections::new(Arc::clone(cluster), home, response_timeout, listening);
                Route::Cluster(Arc::new(nodes))
            }
        }
    }
}
