//! One lock: what the store knows, and what the holders have answered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lock_runtime::admin::{LockAdmin, LockState, StoredHolder};
use lock_runtime::{LockError, LockMode};
use serde::Serialize;

use crate::clients::{id_of, milliseconds};
use crate::locks::LockRow;
use crate::view::{VERSION, View};

/// For how long what was read from the store is sent to others. Less than the time after which a page reads again.
const FRESH: Duration = Duration::from_secs(1);

/// A lock, as the page shows it.
#[derive(Debug, Serialize)]
pub(crate) struct OneLock<'a> {
    v: u32,
    key: &'a str,
    /// `None` if the key does not exist, or holds something that cannot be a lock.
    store: Option<Arc<LockInStore>>,
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
    /// `key` has the namespace.
    pub(crate) fn new(key: &'a str, read: StoreRead, view: &'a View) -> Self {
        let StoreRead { store, problem } = read;
        let (answers, age) = (view.locks.of(key), view.age());
        Self { v: VERSION, key, store, problem, answers, age }
    }
}

/// The outcome of reading a lock from the store.
#[derive(Debug, Clone)]
pub(crate) struct StoreRead {
    store: Option<Arc<LockInStore>>,
    problem: Option<String>,
}

/// Reads locks from the store, for all viewers of a lock together.
#[derive(Debug, Default)]
pub(crate) struct StoreReader {
    /// The last read of each key, and when it ended. Locked by the one who reads.
    reads: Mutex<HashMap<String, Arc<LastRead>>>,
}

type LastRead = tokio::sync::Mutex<Option<(Instant, StoreRead)>>;

impl StoreReader {
    /// Reads a lock, unless somebody has just done so. `key` is without the namespace.
    ///
    /// Cancel safe: somebody else who waits then reads the lock.
    pub(crate) async fn read(&self, admin: &LockAdmin, key: &str) -> Result<StoreRead, LockError> {
        let last = self.last_read(key);
        let mut last = last.lock().await;
        if let Some((at, read)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(read.clone());
        }
        let read = match admin.inspect(key).await {
            Ok(state) => {
                let store = state.map(|state| Arc::new(LockInStore::from(state)));
                StoreRead { store, problem: None }
            }
            Err(error @ LockError::InvalidKey { .. }) => return Err(error),
            Err(error) => StoreRead { store: None, problem: Some(error.to_string()) },
        };
        *last = Some((Instant::now(), read.clone()));
        Ok(read)
    }

    /// Also forgets the reads of other keys that are old.
    fn last_read(&self, key: &str) -> Arc<LastRead> {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = |last: &Option<(Instant, StoreRead)>| {
            last.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH)
        };
        // Somebody who reads has it locked.
        reads.retain(|_, last| {
            last.try_lock().is_ok_and(|last| is_fresh(&last)) || Arc::strong_count(last) > 1
        });
        Arc::clone(reads.entry(key.to_owned()).or_default())
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
