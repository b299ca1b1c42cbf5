//! One master of a cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use tokio::sync::watch;

use super::trouble::Trouble;
use crate::store::contract::StoreError;
use crate::store::redis::endpoint::Endpoint;
use crate::store::redis::handshake::log_in;
use crate::store::redis::hash_slot::{SLOTS, tag_of};
use crate::store::redis::topology::opened::{NewSocket, Opened};

/// A master of a cluster, from the time at which a client hears of it until another server takes
/// its place.
pub(in crate::store::redis) struct ClusterNode {
    /// Never used for another node of the client.
    number: u32,
    server: Arc<Endpoint>,
    /// Read twice for each request.
    is_replaced: AtomicBool,
    replaced: watch::Sender<bool>,
    /// The lowest of its slots, or [`SLOTS`].
    first_slot: AtomicU16,
    trouble: Arc<Trouble>,
}

impl ClusterNode {
    pub(super) fn new(number: u32, server: Endpoint, trouble: Arc<Trouble>) -> Self {
        let (is_replaced, replaced) = (AtomicBool::new(false), watch::Sender::new(false));
        let (server, first_slot) = (Arc::new(server), AtomicU16::new(SLOTS));
        Self { number, server, is_replaced, replaced, first_slot, trouble }
    }

    pub(in crate::store::redis) fn number(&self) -> u32 {
        self.number
    }

    pub(in crate::store::redis) fn server(&self) -> &Arc<Endpoint> {
        &self.server
    }

    /// A key in the lowest slot that it had when the nodes were last asked. `None` if it had none.
    pub(in crate::store::redis) fn key_with(&self, prefix: &str) -> Option<String> {
        let slot = Some(self.first_slot.load(Ordering::Relaxed)).filter(|slot| *slot < SLOTS)?;
        Some(format!("{prefix}{{{}}}", tag_of(slot)))
    }

    pub(super) fn set_first_slot(&self, slot: Option<u16>) {
        self.first_slot.store(slot.unwrap_or(SLOTS), Ordering::Relaxed);
    }

    /// Whether the node is still a master, as far as the client knows.
    pub(in crate::store::redis) fn is_current(&self) -> bool {
        !self.is_replaced.load(Ordering::Acquire)
    }

    /// Records that the node is no longer a master.
    pub(super) fn replace(&self) {
        self.is_replaced.store(true, Ordering::Release);
        self.replaced.send_replace(true);
    }

    /// Resolves when the node is no longer a master.
    pub(in crate::store::redis) async fn replaced(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.replaced.subscribe().wait_for(|is_replaced| *is_replaced).await;
    }

    /// A connection to the node was lost.
    pub(in crate::store::redis) fn lost(&self) {
        self.trouble.suspect();
    }

    /// Opens a connection. Fails as soon as the node is no longer a master.
    pub(in crate::store::redis) async fn open(
        &self,
        socket: NewSocket,
    ) -> Result<Opened, StoreError> {
        let NewSocket { generation, config } = socket;
        tokio::select! {
            login = log_in(&self.server, &config) => {
                let (server, number) = (Arc::clone(&self.server), u64::from(self.number));
                Ok(Opened { server, number, generation, login: login? })
            }
            () = self.replaced() => {
                let server = self.server.shown();
                Err(StoreError::Refused(format!("{server} is no longer a master of the cluster")))
            }
        }
    }
}
