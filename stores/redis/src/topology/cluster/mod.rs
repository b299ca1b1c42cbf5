//! A Redis Cluster: which of its masters has the slot of a key.
//!
//! A [`SlotTable`](slots::SlotTable) has the master of each slot. A request goes to the master in
//! the table. If that is the wrong one, its answer names the right one, and the request follows at
//! once. Nothing runs at a node that redirects. A task asks the nodes themselves after such an
//! answer, after a failure, and now and then ([`refresh`]). Replicas are only asked about the
//! slots, never about locks.
//!
//! Each master is a [`ClusterNode`] with a number of its own. When another server takes its place,
//! all its connections are discarded, and answers that are still to come from it count for
//! nothing.
//!
//! By hand, because `cluster_async` of redis-rs (1.8.1) repeats requests by itself after an answer that was lost, so that a
//! grant reads as busy; awaits the answer to `ASKING` on a connection that all share, so that another request uses the flag;
//! and sends all requests of all nodes through one task, which a node that hangs stops.

mod answer;
mod node;
mod redirect_reply;
mod refresh;
mod slots;
mod state;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use self::answer::NodeAddress;
pub(crate) use self::node::ClusterNode;
pub(crate) use self::redirect_reply::{Redirect, RedirectTarget, may_be_failover};
use self::state::{ClusterState, host_of};
use crate::scripts::script::Publish;
use crate::url::ClusterUrl;
use lock_core::clock::BootInstant;
use lock_core::store::contract::{BackgroundRuntimes, StoreError};
use lock_core::store::hold_reports::HoldReports;
use lock_core::store::quarantine_terms::QuarantineTerms;

/// A Redis Cluster.
pub(crate) struct RedisCluster {
    state: Arc<ClusterState>,
    /// The cluster for messages.
    shown: String,
    /// The time for which a node grants no locks after it may have lost some.
    quarantine: Option<Arc<QuarantineTerms>>,
}

impl RedisCluster {
    pub(crate) fn new(url: ClusterUrl, quarantine: Option<Arc<QuarantineTerms>>) -> Self {
        let state = Arc::new(ClusterState::new(url));
        let seeds: Vec<_> = state.seeds().iter().map(|seed| seed.shown()).collect();
        let shown = format!("the cluster of {}", seeds.join(", "));
        Self { state, shown, quarantine }
    }

    pub(crate) fn quarantine(&self) -> Option<Arc<QuarantineTerms>> {
        self.quarantine.clone()
    }

    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Starts to ask the nodes. A report is sent when a master has been replaced.
    pub(crate) fn watch(&self, runtimes: &BackgroundRuntimes, reports: HoldReports) {
        self.state.on_failover(reports);
        let foreign = runtimes.wake_ups.clone();
        self.state.addresses.run_on(&foreign);
        runtimes.renewals.spawn(refresh::keep_running(Arc::clone(&self.state), foreign));
    }

    /// Whether messages are published on channels that belong to slots.
    pub(crate) fn has_shard_channels(&self) -> bool {
        self.state.has_shard_channels()
    }

    /// How messages are published.
    pub(crate) fn publish(&self) -> Publish {
        if self.has_shard_channels() { Publish::ToShard } else { Publish::Everywhere }
    }

    /// The number of the master that has a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<u32> {
        self.state.table.owner(slot)
    }

    /// The master with this number, if it is one still.
    pub(crate) fn node(&self, number: u32) -> Option<Arc<ClusterNode>> {
        self.state.table.node(number)
    }

    /// All masters.
    pub(crate) fn nodes(&self) -> Vec<Arc<ClusterNode>> {
        self.state.table.nodes()
    }

    /// Waits until the nodes have told the master of a slot. Fails if they do not know one.
    pub(crate) async fn wait_for_owner(
        &self,
        slot: u16,
        within: Duration,
    ) -> Result<u32, StoreError> {
        let missing = || format!("no node of {} serves the slot {slot}", self.shown);
        self.wait_for(within, || self.owner(slot), missing).await
    }

    /// Waits until the nodes have told at least one master.
    pub(crate) async fn wait_for_any(&self, within: Duration) -> Result<(), StoreError> {
        let missing = || format!("no node of {} serves any slot", self.shown);
        let find = || (!self.nodes().is_empty()).then_some(());
        self.wait_for(within, find, missing).await
    }

    async fn wait_for<T>(
        &self,
        within: Duration,
        find: impl Fn() -> Option<T>,
        missing: impl Fn() -> String,
    ) -> Result<T, StoreError> {
        let end = Instant::now() + within;
        let mut round = self.state.round.subscribe();
        if let Some(found) = find() {
            return Ok(found);
        }
        let number = round.borrow().number;
        // The first round begins by itself.
        if number > 0 {
            self.refresh();
        }
        let next = timeout_at(end, round.wait_for(|round| round.number > number)).await;
        // The sender lives as long as `self`.
        let failure = match next {
            Ok(Ok(next)) => next.failure.clone(),
            Ok(Err(_)) | Err(_) => {
                let within = within.as_millis();
                let cause = format!("no node of {} answers within {within} ms", self.shown);
                Some(StoreError::Refused(cause))
            }
        };
        find().ok_or_else(|| failure.unwrap_or_else(|| StoreError::Refused(missing())))
    }

    /// The node `by` has redirected a request for good. Returns the node that has the slot.
    pub(crate) async fn moved(
        &self,
        slot: u16,
        to: RedirectTarget,
        by: &ClusterNode,
    ) -> Result<Arc<ClusterNode>, StoreError> {
        let node = self.named(to, by).await?;
        if self.state.table.redirect(slot, &node, BootInstant::now()) {
            self.state.redirected();
            self.state.announce();
        }
        self.refresh();
        Ok(node)
    }

    /// The node to which a redirection by the node `by` leads.
    pub(crate) async fn named(
        &self,
        to: RedirectTarget,
        by: &ClusterNode,
    ) -> Result<Arc<ClusterNode>, StoreError> {
        let RedirectTarget { host, port } = to;
        let host = host.unwrap_or_else(|| host_of(by.server()).to_owned());
        let (host, port) = self.state.addresses.map_one((host, port)).await?;
        let mut address = NodeAddress { host, port, tls_name: None, id: String::new() };
        address.tls_name = self.state.tls_name(&address);
        let endpoint = |address: &NodeAddress| self.state.endpoint(address);
        Ok(self.state.table.named(&address, BootInstant::now(), endpoint))
    }

    /// Asks the nodes soon.
    pub(crate) fn refresh(&self) {
        self.state.trouble.ask();
    }

    /// A request has failed in a way that a failover would explain: asks the nodes until requests
    /// stop to fail.
    pub(crate) fn suspect(&self) {
        self.state.trouble.suspect();
    }

    /// Resolves when the master of some slot has changed since `changes`. Returns the new value.
    pub(crate) async fn changed(&self, changes: u64) -> u64 {
        let mut round = self.state.round.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        round.wait_for(|round| round.changes != changes).await.map_or(changes, |it| it.changes)
    }
}
