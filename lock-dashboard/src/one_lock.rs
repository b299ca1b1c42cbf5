//! One lock: what the store knows, and what the holders have answered.

use lock_runtime::admin::{LockAdmin, LockState, StoredHolder};
use lock_runtime::{LockError, LockMode};
use serde::Serialize;

use crate::clients::{id_of, milliseconds};
use crate::locks::LockRow;
use crate::view::{VERSION, View};

/// A lock, as the page shows it.
#[derive(Debug, Serialize)]
pub(crate) struct OneLock<'a> {
    v: u32,
    key: &'a str,
    /// `None` if the key does not exist, or holds something that cannot be a lock.
    store: Option<LockInStore>,
    /// Why the store could not be read.
    problem: Option<String>,
    /// What the clients have answered in the last round.
    answers: Vec<&'a LockRow>,
    /// The age of these answers.
    age: u64,
}

/// What the store knows. Without the tokens, which would let a reader delete the lock.
#[derive(Debug, Serialize)]
struct LockInStore {
    layout: &'static str,
    /// The processes in the queue.
    queued: u64,
    holders: Vec<HolderRow>,
    /// Whether all holders are there. Otherwise, those are there whose leases end first.
    complete: bool,
}

/// A holder in the store.
#[derive(Debug, Serialize)]
struct HolderRow {
    /// `None` for another library.
    client: Option<String>,
    holder: String,
    /// At most this long, in ms.
    held: Option<u64>,
    /// `None` for a key that never expires.
    left: Option<u64>,
    mode: Option<&'static str>,
    permits: Option<(u32, u32)>,
    released: bool,
}

impl<'a> OneLock<'a> {
    /// Reads a lock from the store. The first key has the namespace, and the second one has not.
    pub(crate) async fn read(
        admin: &LockAdmin,
        (key, short): (&'a str, &str),
        view: &'a View,
    ) -> Result<Self, LockError> {
        let (store, problem) = match admin.inspect(short).await {
            Ok(state) => (state.map(LockInStore::from), None),
            Err(error @ LockError::InvalidKey { .. }) => return Err(error),
            Err(error) => (None, Some(error.to_string())),
        };
        let (answers, age) = (view.locks.of(key), view.age());
        Ok(Self { v: VERSION, key, store, problem, answers, age })
    }
}

/// The key that the methods of a [`LockAdmin`] add the namespace to; `None` if a key is not in the namespace.
pub(crate) fn without_namespace<'a>(namespace: &str, key: &'a str) -> Option<&'a str> {
    match namespace {
        "" => Some(key),
        _ => key.strip_prefix(namespace)?.strip_prefix(':'),
    }
}

impl From<LockState> for LockInStore {
    fn from(state: LockState) -> Self {
        let holders = state.holders.into_iter().map(HolderRow::from).collect();
        let (layout, queued, complete) = (state.layout.as_str(), state.queued, state.is_complete);
        Self { layout, queued, holders, complete }
    }
}

impl From<StoredHolder> for HolderRow {
    fn from(holder: StoredHolder) -> Self {
        Self {
            client: holder.client.id.is_some().then(|| id_of(&holder.client)),
            holder: holder.client.to_string(),
            held: holder.held_for.map(milliseconds),
            left: holder.lease_left.map(milliseconds),
            mode: holder.mode.map(LockMode::as_str),
            permits: holder.permits.map(|permits| (permits.count(), permits.limit())),
            released: holder.is_released,
        }
    }
}
