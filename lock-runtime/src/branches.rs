//! Branches of one body, such as the futures of `join!`, that exclude each other: they take turns for each key of the
//! holds around them, in the order in which they came.

use std::sync::Arc;

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::sync::{Mutex, lock};
use crate::timeout::Timeout;

/// The branches of one body, by the keys for which they take turns.
#[derive(Debug, Default)]
pub(crate) struct Branches(Mutex<Vec<(Arc<str>, BranchQueue)>>);

/// The branches that take turns for one key.
#[derive(Debug, Clone, Default)]
pub(crate) struct BranchQueue(Arc<AsyncMutex<()>>);

/// The turn of a branch, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct BranchTurn {
    _turn: OwnedMutexGuard<()>,
}

impl Branches {
    /// The branches that want this key.
    pub(crate) fn of(&self, key: &Arc<str>) -> BranchQueue {
        let mut queues = lock(&self.0);
        if let Some((_, queue)) = queues.iter().find(|(known, _)| known == key) {
            return queue.clone();
        }
        let queue = BranchQueue::default();
        queues.push((Arc::clone(key), queue.clone()));
        queue
    }
}

impl BranchQueue {
    /// Waits for the branches that came before; `None` if the timeout ends first. A single attempt has its turn if there is no
    /// other branch.
    pub(crate) async fn turn(self, timeout: &Timeout) -> Option<BranchTurn> {
        let turn = match Arc::clone(&self.0).try_lock_owned() {
            Ok(turn) => turn,
            Err(_) => timeout.limit(self.0.lock_owned()).await?,
        };
        Some(BranchTurn { _turn: turn })
    }
}
