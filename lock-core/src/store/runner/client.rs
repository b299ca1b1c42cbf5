//! What a client of a store implements whose requests are asynchronous functions.

use std::fmt;
use std::future::{Future, Ready, ready};
use std::sync::Arc;
use std::time::Duration;

use super::stored::{LeasePage, LeaseScan, StoredLease};
use super::wake_ups::WakeUps;
use crate::client_info::ClientInfo;
use crate::store::announcements::Announced;
use crate::store::capabilities::{Extension, Extensions};
use crate::store::layout::Mode;
use crate::store::left::Left;
use crate::store::mode_change::ModeChanged;
use crate::store::periods::{RunEnded, RunRecord, RunStarted};
use crate::store::requests::{Acquired, Fenced, Released, Renewed};
use crate::store::store_error::StoreError;

/// A key, and the token of its owner.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owned {
    /// The key.
    pub key: String,
    /// The token. Who knows it can release the lock, so it must not be logged.
    pub owner: String,
    /// The mode in which the owner has the key: [`Mode::Exclusive`] in a store without [other locks](AsyncClient::counted).
    pub mode: Mode,
}

impl LeaseRequest {
    /// A request for a fixed lease, which does not wait.
    pub fn new(owned: Owned, term: Duration) -> Self {
        Self { owned, term, renewed: false, fresh: false, waits: false }
    }
}

impl Owned {
    /// The only owner of a key.
    pub fn new(key: &str, owner: &str) -> Self {
        Self { key: key.to_owned(), owner: owner.to_owned(), mode: Mode::Exclusive }
    }

    /// The same, in another mode.
    #[must_use]
    pub fn in_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }
}

/// Without the token.
impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned").field("key", &self.key).finish_non_exhaustive()
    }
}

/// One attempt to take a key.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LeaseRequest {
    /// The key, and its next owner.
    pub owned: Owned,
    /// How long the lease lasts unless it is renewed.
    pub term: Duration,
    /// Whether the lease is renewed until its hold ends. Otherwise it is fixed.
    pub renewed: bool,
    /// Whether the key is probably free, no call of this client waits for it, and no earlier attempt of the owner is
    /// unanswered. The store may use its cheapest request then.
    pub fresh: bool,
    /// Whether the claim stands in the queue if the key is busy, in a store with [`Extension::Queues`]. It is in the queue until
    /// it is released, as long as it makes an attempt in each second.
    pub waits: bool,
}

/// The beginning of a run; see [`RunStart`](crate::store::periods::RunStart).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunStartRequest {
    /// The length of the period.
    pub every: Duration,
    /// Whether the run counts for its period even if it fails.
    pub counts: bool,
    /// The number of this request among those for the same start, from 1.
    pub attempt: u32,
    /// The process, as the record names it.
    pub by: String,
    /// How long the store keeps the record.
    pub kept: Duration,
}

/// The end of a run; see [`RunEnd`](crate::store::periods::RunEnd).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunEndRequest {
    /// When the run began, in ms since 1970. `None` if its body has not begun.
    pub began: Option<u64>,
    /// Whether the run counts for the period in which it began.
    pub counts: bool,
    /// Whether the run has failed.
    pub failed: bool,
    /// The process, as the record names it.
    pub by: String,
    /// How long the store keeps the record.
    pub kept: Duration,
}

/// A client of a store, which has plain locks at least.
///
/// The methods run at the same time, but a release of an owner comes after its acquires. A future is dropped when it has run for a
/// response timeout of the [client](crate::store::settings::Settings), or in the case of [`acquire`](Self::acquire) for up to two.
pub trait AsyncClient: Send + Sync + 'static {
    /// Connects to the store and checks it. From now on, the store calls `wake_ups` when keys become free, if it can.
    fn connect(
        self: &Arc<Self>,
        wake_ups: WakeUps,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Fails unless locks can be acquired and renewed now.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes a key if it is free in the mode of the owner, and nobody waits for it. If the owner already has it, extends its lease,
    /// and never shortens it. The answer to a claim that [waits](LeaseRequest::waits) in the queue is [`Acquired::Queued`].
    fn acquire(
        &self,
        request: LeaseRequest,
    ) -> impl Future<Output = Result<Acquired, StoreError>> + Send;

    /// Extends each lease that its owner still has to the term beside it, and shortens none. Returns one answer for each, in
    /// their order; answers that are missing are unknown. A term of 10 ms only asks whether the owner has the key.
    fn renew(
        &self,
        leases: &[(Owned, Duration)],
    ) -> impl Future<Output = Vec<Result<Renewed, StoreError>>> + Send;

    /// Frees a key, if the owner has it. With a `keep` above zero, which needs [`Extension::KeptKeys`], the key stays taken for
    /// that time instead. Also called when an operator ends a hold.
    fn release(
        &self,
        owned: &Owned,
        keep: Duration,
    ) -> impl Future<Output = Result<Released, StoreError>> + Send;

    /// A token for the owner of a key, as in [`fence`](crate::store::contract::LockStore::fence). Needs [`Extension::Tokens`].
    fn fence(
        &self,
        owned: &Owned,
        at_least: u64,
    ) -> impl Future<Output = Result<Fenced, StoreError>> + Send {
        let _ = (owned, at_least);
        ready(Err(Extension::Tokens.lacking("this store")))
    }

    /// What the store has besides acquiring, renewing and releasing keys. Possible is everything but
    /// [`Extension::SeveralKeys`]; [`Extension::Acknowledgements`] if it has no replicas that could lose a lock. None by default.
    fn extensions(&self) -> Extensions {
        Extensions::NONE
    }

    /// Announces something about the owner of a key, as in [`announce`](crate::store::contract::LockStore::announce). The store
    /// keeps it for `keep`. Needs [`Extension::Announcements`].
    fn announce(
        &self,
        owned: &Owned,
        text: &str,
        keep: Duration,
    ) -> impl Future<Output = Result<Announced, StoreError>> + Send {
        let _ = (owned, text, keep);
        ready(Err(Extension::Announcements.lacking("this store")))
    }

    /// What the holder of a key has announced, as in [`announced`](crate::store::contract::LockStore::announced). Needs
    /// [`Extension::Announcements`].
    fn announced(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<Option<(String, Left)>, StoreError>> + Send {
        let _ = key;
        ready(Err(Extension::Announcements.lacking("this store")))
    }

    /// Records the beginning of a run of the owner of a key, as in [`RunStart`](crate::store::periods::RunStart). Needs
    /// [`Extension::Runs`].
    fn start_run(
        &self,
        owned: &Owned,
        run: RunStartRequest,
    ) -> impl Future<Output = Result<RunStarted, StoreError>> + Send {
        let _ = (owned, run);
        ready(Err(Extension::Runs.lacking("this store")))
    }

    /// Records the end of a run of the owner of a key, as in [`RunEnd`](crate::store::periods::RunEnd). Needs
    /// [`Extension::Runs`].
    fn end_run(
        &self,
        owned: &Owned,
        run: RunEndRequest,
    ) -> impl Future<Output = Result<RunEnded, StoreError>> + Send {
        let _ = (owned, run);
        ready(Err(Extension::Runs.lacking("this store")))
    }

    /// The record of the last run under a key. Needs [`Extension::Runs`].
    fn last_run(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<Option<RunRecord>, StoreError>> + Send {
        let _ = key;
        ready(Err(Extension::Runs.lacking("this store")))
    }

    /// What the store has for read-write locks and semaphores, besides acquiring, renewing and releasing them. Possible is what
    /// is possible for [`extensions`](Self::extensions); fencing tokens are those of writers. `None`, as by default, if it has no
    /// such locks.
    fn counted(&self) -> Option<Extensions> {
        None
    }

    /// Gives the owner of a read-write lock the mode of `owned`: [`Mode::Read`], or [`Mode::Write`] if it is the only reader and
    /// nobody waits. Required of stores with [such locks](Self::counted).
    fn change_mode(
        &self,
        owned: &Owned,
    ) -> impl Future<Output = Result<ModeChanged, StoreError>> + Send {
        let _ = owned;
        ready(Err(StoreError::lacking("this store", "mode", "holds that change their mode")))
    }

    /// Whether the store calls [`WakeUps::lost`] when another client has changed a key that the client holds.
    fn reports_changes(&self) -> bool {
        false
    }

    /// See [`name_in_transactions`](crate::store::contract::LockStore::name_in_transactions). `token` is that of the owner.
    fn name_in_transactions(&self, token: String) -> Option<String> {
        let _ = token;
        None
    }

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

    /// What is stored about a key, for `LockError::Busy` and for operators: the leases of its holders, which are several only
    /// for readers and permits. None if nobody has it, and it does not stay taken after a release.
    ///
    /// By default, the store does not tell: [`StoreError::Config`] with the option `store`.
    fn inspect(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<Vec<StoredLease>, StoreError>> + Send {
        let _ = key;
        untold("keys that can be inspected")
    }

    /// A part of the keys that are taken, for operators. A key that is taken for the whole scan is in one of the parts, with all
    /// its leases.
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
