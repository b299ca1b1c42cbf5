//! What a client of a store implements whose requests are asynchronous functions.

use std::fmt;
use std::future::{Future, Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use super::stored::{LeasePage, LeaseScan, StoredLease};
use super::wake_ups::WakeUps;
use crate::client_info::ClientInfo;
use crate::store::requests::Released;
use crate::store::store_error::StoreError;

/// A key, and the token of its owner.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owned {
    pub key: String,
    /// Who knows it can release the lock, so it must not be logged.
    pub owner: String,
}

impl Owned {
    pub fn new(key: &str, owner: &str) -> Self {
        Self { key: key.to_owned(), owner: owner.to_owned() }
    }
}

/// Without the token.
impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned").field("key", &self.key).finish_non_exhaustive()
    }
}

/// A client of a store.
pub trait AsyncClient: Send + Sync + 'static {
    /// Connects to the store and checks it. From now on, the store calls `wake_ups` when keys become free, if it can.
    fn connect(
        self: &Arc<Self>,
        wake_ups: WakeUps,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Fails unless locks can be acquired and renewed now.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Frees a key, if the owner has it. With a `keep` above zero, which needs the capability, the key stays taken for that time
    /// instead. Also called when an operator ends a hold.
    fn release(
        &self,
        owned: &Owned,
        keep: Duration,
    ) -> impl Future<Output = Result<Released, StoreError>> + Send;

    /// Called when a call begins to wait for a key: after this method has returned, every release of the key is followed by a
    /// [wake-up](WakeUps). It is called again after an error, and after [`WakeUps::interrupted`].
    ///
    /// By default, the store announces nothing.
    fn watch(&self, key: &str) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _ = key;
        ready(Ok(()))
    }

    /// Called when no call has waited for a key for a while.
    fn unwatch(&self, key: &str) -> impl Future<Output = ()> + Send {
        let _ = key;
        ready(())
    }

    /// How often a waiting call makes an attempt although nothing has woken it. A key that its owner does not release is free
    /// when its lease ends, which no store has to announce. 100 ms by default, which suits stores without wake-ups. From 10 ms
    /// to 1 minute; other values are raised or lowered.
    fn poll_interval(&self) -> Duration {
        Duration::from_millis(100)
    }

    /// What is stored about a key, for `LockError::Busy` and for operators. `None` if nobody has it, and it does not stay taken
    /// after a release.
    ///
    /// By default, the store does not tell: [`StoreError::Config`] with the option `store`.
    fn inspect(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<Option<StoredLease>, StoreError>> + Send {
        let _ = key;
        untold("keys that can be inspected")
    }

    /// A part of the keys that are taken, for operators. A key that is taken for the whole scan is in one of the parts.
    ///
    /// By default, the store does not tell, as in [`inspect`](Self::inspect).
    fn scan(
        &self,
        scan: LeaseScan<'_>,
    ) -> impl Future<Output = Result<LeasePage, StoreError>> + Send {
        let _ = scan;
        untold("keys that can be scanned")
    }

    /// What connected clients tell about themselves, of those with these ids. Nothing by default.
    fn clients(
        &self,
        ids: &[String],
    ) -> impl Future<Output = Result<Vec<ClientInfo>, StoreError>> + Send {
        let _ = ids;
        ready(Ok(Vec::new()))
    }
}

fn untold<T>(what: &str) -> Ready<Result<T, StoreError>> {
    ready(Err(StoreError::lacking("this store", "store", what)))
}
