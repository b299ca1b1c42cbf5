//! One master of a cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use super::trouble::Trouble;
use crate::hash_slot::tag_of;
use crate::topology::opened::{NewSocket, Opened};
use crate::transport::endpoint::Endpoint;
use crate::transport::handshake::log_in;
use lock_core::store::contract::StoreError;
use lock_core::sync::{Mutex, lock};

/// A master of a cluster, from the time at which a client hears of it until another server takes
/// its place.
pub(crate) struct ClusterNode {
    /// Never used for another node of the client.
    number: u32,
    server: Arc<Endpoint>,
    /// Read twice for each request.
    is_replaced: AtomicBool,
    replaced: watch::Sender<bool>,
    /// The lowest and the highest of its slots, if it has any.
    outer_slots: Mutex<Option<(u16, u16)>>,
    trouble: Arc<Trouble>,
}

impl ClusterNode {
    pub(super) fn new(number: u32, server: Endpoint, trouble: Arc<Trouble>) -> Self {
        let (is_replaced, replaced) = (AtomicBool::new(false), watch::Sender::new(false));
        let (server, outer_slots) = (Arc::new(server), Mutex::default());
        Self { number, server, is_replaced, replaced, outer_slots, trouble }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn server(&self) -> &Arc<Endpoint> {
        &self.server
    }

    /// Keys in the lowest and in the highest slot that it had when the nodes were last asked. Of
    /// these two, usually only one is moved at a time.
    pub(crate) fn keys_with(&self, prefix: &str) -> Vec<String> {
        let outer = *lock(&self.outer_slots);
        let Some((lowest, highest)) = outer else { return Vec::new() };
        let key = |slot| format!("{prefix}{{{}}}", tag_of(slot));
        if lowest == highest { vec![key(lowest)] } else { vec![key(lowest), key(highest)] }
    }

    pub(super) fn set_outer_slots(&self, slots: Option<(u16, u16)>) {
        *lock(&self.outer_slots) = slots;
    }

    /// Whether the node is still a master, as far as the client knows.
    pub(crate) fn is_current(&self) -> bool {
        !self.is_replaced.load(Ordering::Acquire)
    }

    /// Records that the node is no longer a master.
    pub(super) fn replace(&self) {
        self.is_replaced.store(true, Ordering::Release);
        self.replaced.send_replace(true);
    }

    /// Resolves when the node is no longer a master.
    pub(crate) async fn replaced(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.replaced.subscribe().wait_for(|is_replaced| *is_replaced).await;
    }

    /// A connection to the node was lost.
    pub(crate) fn lost(&self) {
        self.trouble.suspect();
    }

    /// Opens a connection. Fails as soon as the node is no longer a master.
    pub(crate) async fn open(&self, socket: NewSocket) -> Result<Opened, StoreError> {
        let NewSocket { generation, on_message } = socket;
        tokio::select! {
            login = log_in(&self.server, on_message) => {
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
