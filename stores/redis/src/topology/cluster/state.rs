//! What a client knows about a cluster, and what its requests have to tell the task that keeps it
//! up to date.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use tracing::Level;

use super::super::announced::AnnouncedAddresses;
use super::answer::{ClusterAnswer, NodeAddress, SlotAssignment};
use super::slots::SlotTable;
use super::trouble::Trouble;
use crate::transport::endpoint::{Access, Address, Endpoint};
use crate::url::ClusterUrl;
use lock_core::clock::BootInstant;
use lock_core::events;
use lock_core::store::contract::StoreError;
use lock_core::store::hold_reports::{HoldReport, HoldReports};
use lock_core::sync::{Mutex, lock};

/// What a client knows about a cluster.
pub(super) struct ClusterState {
    access: Access,
    /// The nodes of the URL, which are asked for ever.
    seeds: Vec<Arc<Endpoint>>,
    pub(super) addresses: AnnouncedAddresses,
    pub(super) table: SlotTable,
    /// The nodes that were named last.
    nodes: Mutex<Vec<NodeAddress>>,
    latest: Mutex<QuestionRound>,
    /// The latest round of questions for those who wait for it.
    pub(super) round: watch::Sender<QuestionRound>,
    /// The log has said that a node of another cluster was ignored.
    has_ignored: AtomicBool,
    pub(super) trouble: Arc<Trouble>,
    /// Whether the servers have channels that belong to slots.
    has_shard_channels: OnceLock<bool>,
    /// Called after a failover.
    reports: OnceLock<HoldReports>,
}

/// The latest round of questions to all nodes.
#[derive(Clone, Default)]
pub(super) struct QuestionRound {
    /// 0 before the first round.
    pub(super) number: u64,
    /// The number of changes so far, by rounds and redirections.
    pub(super) changes: u64,
    /// Whether most of the known nodes have answered.
    is_by_most: bool,
    /// Why the latest round has failed.
    pub(super) failure: Option<StoreError>,
}

impl ClusterState {
    pub(super) fn new(url: ClusterUrl) -> Self {
        let ClusterUrl { seeds, access, addresses } = url;
        let trouble = Arc::<Trouble>::default();
        Self {
            access,
            seeds: seeds.into_iter().map(Arc::new).collect(),
            addresses: AnnouncedAddresses::new(addresses),
            table: SlotTable::new(Arc::clone(&trouble)),
            nodes: Mutex::default(),
            latest: Mutex::default(),
            round: watch::Sender::default(),
            has_ignored: AtomicBool::new(false),
            trouble,
            has_shard_channels: OnceLock::new(),
            reports: OnceLock::new(),
        }
    }

    pub(super) fn seeds(&self) -> &[Arc<Endpoint>] {
        &self.seeds
    }

    pub(super) fn on_failover(&self, reports: HoldReports) {
        // Called once.
        let _ = self.reports.set(reports);
    }

    /// Whether the servers have channels that belong to slots. The first answer counts for ever,
    /// because all clients of a cluster have to use the same kind of channels.
    pub(super) fn has_shard_channels(&self) -> bool {
        self.has_shard_channels.get().copied().unwrap_or(false)
    }

    pub(super) fn set_shard_channels(&self, all_have: bool) {
        let _ = self.has_shard_channels.set(all_have);
    }

    /// All nodes that may know the slots, each once. The nodes of the URL are among them if most of
    /// the others did not answer, because they may be the same under other names.
    pub(super) fn known(&self) -> Vec<Arc<Endpoint>> {
        let masters = self.table.nodes();
        let masters = masters.iter().map(|node| Arc::clone(node.server()));
        let others: Vec<_> =
            lock(&self.nodes).iter().map(|node| Arc::new(self.endpoint(node))).collect();
        let mut known: Vec<Arc<Endpoint>> = Vec::new();
        let is_settled = lock(&self.latest).is_by_most;
        let seeds = self.seeds.iter().filter(|_| !is_settled).map(Arc::clone);
        for server in masters.chain(others).chain(seeds) {
            if known.iter().all(|other| other.address() != server.address()) {
                known.push(server);
            }
        }
        known
    }

    /// The name that the certificate of the node at this address is valid for, as far as the nodes
    /// have told.
    pub(super) fn tls_name(&self, address: &NodeAddress) -> Option<String> {
        let nodes = lock(&self.nodes);
        nodes.iter().find(|node| node.is_at(address)).and_then(|node| node.tls_name.clone())
    }

    /// How to connect to a node.
    pub(super) fn endpoint(&self, address: &NodeAddress) -> Endpoint {
        let endpoint = Endpoint::tcp(&address.host, address.port, self.access.clone());
        endpoint.with_tls_name(address.tls_name.clone())
    }

    /// Uses what the nodes have said in a round that began at `since`.
    pub(super) fn adopt(&self, assignment: &SlotAssignment, since: BootInstant) {
        let changes = self.table.adopt(assignment, since, |address| self.endpoint(address));
        if assignment.is_by_most || lock(&self.nodes).is_empty() {
            *lock(&self.nodes) = assignment.nodes().cloned().collect();
        }
        let mut latest = lock(&self.latest);
        latest.number += 1;
        latest.changes += u64::from(changes.any);
        (latest.is_by_most, latest.failure) = (assignment.is_by_most, None);
        drop(latest);
        if changes.replaced.is_empty() {
            return;
        }
        for (earlier, master) in changes.replaced {
            events::emit(Level::INFO, move || {
                tracing::info!(target: "lock_runtime::store::redis", earlier, master, "the master has changed; verifying all held locks");
            });
        }
        if let Some(reports) = self.reports.get() {
            reports.send(HoldReport::Moved);
        }
    }

    /// A round has failed.
    pub(super) fn failed(&self, failure: StoreError) {
        let mut latest = lock(&self.latest);
        latest.number += 1;
        (latest.is_by_most, latest.failure) = (false, Some(failure));
    }

    /// A redirection has changed the owner of a slot.
    pub(super) fn redirected(&self) {
        lock(&self.latest).changes += 1;
    }

    /// The number of changes so far.
    pub(super) fn changes(&self) -> u64 {
        lock(&self.latest).changes
    }

    /// Tells those who wait for the latest round. Calls their wakers.
    pub(super) fn announce(&self) {
        let latest = lock(&self.latest).clone();
        self.round.send_if_modified(|round| {
            let is_new = latest.number > round.number || latest.changes > round.changes;
            if is_new {
                *round = latest;
            }
            is_new
        });
    }

    /// Drops the answers of nodes that belong to another cluster.
    pub(super) fn ignore_foreign(&self, views: &mut Vec<(Arc<Endpoint>, ClusterAnswer)>) {
        let nodes = lock(&self.nodes);
        let ids = nodes.iter().map(|node| node.id.clone());
        let ids: HashSet<String> = ids.filter(|id| !id.is_empty()).collect();
        drop(nodes);
        views.retain(|(node, answer)| {
            let is_foreign =
                answer.is_foreign_to(&ids);
            if is_foreign && !self.has_ignored.swap(true, Ordering::Relaxed) {
                let address = node.shown().to_owned();
                events::emit(Level::WARN, move || {
                    tracing::warn!(target: "lock_runtime::store::redis", address, "ignoring a node that belongs to another cluster");
                });
            }
            !is_foreign
        });
    }
}

/// The host of a node, for nodes that do not know their own.
pub(super) fn host_of(server: &Endpoint) -> &str {
    match server.address() {
        Address::Tcp { host, .. } => host,
        #[cfg(unix)]
        Address::Unix(_) => "",
    }
}
