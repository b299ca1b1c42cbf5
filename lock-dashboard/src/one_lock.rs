//! One lock: what the store knows, and what the holders have answered.

use lock_runtime::admin::{LockAdmin, LockState, StoredHolder};
use lock_runtime::{LockError, LockMode};
use serde::Serialize;

use crate::clients::{id_of, milliseconds};
use crate::locks::{LockRow, LockRows};
use crate::view::VERSION;

/// A lock, as the page shows it.
#[derive(Debug, Serialize)]
pub(crate) struct OneLock<'a> {
    v: u32,
    key: &'a str,
    /// `None` if the key does not exist, or holds something that cannot be a lock.
    store: Option<LockInStore>,
    /// Why the store could not tell.
    problem: Option<String>,
    /// What the clients have answered in the last round.
    answers: Vec<&'a LockRow>,
}

/// What the store knows. Without the tokens, which would let a reader delete the lock.
#[derive(Debug, Serialize)]
struct LockInStore {
    layout: &'static str,
    /// The processes in the queue.
    queued: u64,
    holders: Vec<HolderRow>,
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
    /// Reads a lock from the store. `key` has the namespace.
    pub(crate) async fn read(
        admin: &LockAdmin,
        key: &'a str,
        locks: &'a LockRows,
    ) -> Result<Self, LockError> {
        let (store, problem) = match admin.inspect(without_namespace(admin, key)).await {
            Ok(state) => (state.map(LockInStore::from), None),
            Err(error @ LockError::InvalidKey { .. }) => return Err(error),
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(Self { v: VERSION, key, store, problem, answers: locks.of(key) })
    }
}

/// The key that the methods of `admin` add the namespace to.
pub(crate) fn without_namespace(admin: &LockAdmin, key: &str) -> String {
    let rest = match admin.namespace() {
        "" => Some(key),
        namespace => key.strip_prefix(namespace).and_then(|rest| rest.strip_prefix(':')),
    };
    rest.unwrap_or(key).to_owned()
}

impl From<LockState> for LockInStore {
    fn from(state: LockState) -> Self {
        let holders = state.holders.into_iter().map(HolderRow::from).collect();
        Self { layout: state.layout.as_str(), queued: state.queued, holders }
    }
}

impl From<StoredHolder> for HolderRow {
    fn from(holder: StoredHolder) -> Self {
        let mode = holder.mode.map(|mode| match mode {
            LockMode::Read => "read",
            LockMode::Write => "write",
        });
        Self {
            client: holder.client.id.is_some().then(|| id_of(&holder.client)),
            holder: holder.client.to_string(),
            held: holder.held_for.map(milliseconds),
            left: holder.lease_left.map(milliseconds),
            mode,
            permits: holder.permits.map(|permits| (permits.count(), permits.limit())),
            released: holder.is_released,
        }
    }
}
