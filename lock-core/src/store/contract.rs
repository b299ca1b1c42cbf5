//! The contract between the engine and a store.
//!
//! A store has resources, owners and leases, but no tasks, guards or queues. Each request is one
//! atomic step at the store. Every answer is one of three kinds, which the engine treats
//! differently: definite (`Ok`), refused before any effect ([`StoreError::Refused`] and the
//! permanent errors), and unknown ([`StoreError::Unknown`]: the request may have taken effect, or
//! may still do so).
//!
//! A store that can write its locks in several layouts has one handle for each layout. A lease
//! keeps the handle that granted it, so the engine is independent of layouts.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::announcements::{Announced, Announcement};
pub use super::asker::Asker;
pub use super::capabilities::{Capabilities, Extension, Extensions};
use super::hold_reports::HoldReports;
pub use super::inspector::KeyInspector;
use super::key_holder::KeyHolder;
pub use super::lane::Lane;
pub use super::layout::{Layout, Mode};
pub use super::left::Left;
pub use super::mode_change::{ModeChange, ModeChanged};
use super::owner::OwnerId;
use super::periods::{RunEnd, RunEnded, RunRecord, RunStart, RunStarted};
pub use super::place::Place;
use super::profile::StoreProfile;
pub use super::queueing::{Queued, Queueing};
pub use super::requests::{
    Acquired, Claim, Fenced, Grant, Release, Released, ReleasedBatch, Renewal, Renewed, Resource,
};
pub use super::send_trace::{Origin, SendTrace};
pub use super::sets::{SetAcquired, SetClaim, Slot};
pub use super::settings::Settings;
pub use super::store_error::StoreError;
use super::subscriptions::Subscription;
use crate::clock::BootInstant;
use crate::error::LockError;
use crate::join::join_all;
use crate::maybe_ready::MaybeReady;
use crate::questions::Answerer;
use crate::timeout::RequestTimeout;

/// A store that a client uses.
pub trait Backend: Send + Sync {
    /// Called once, before any request, with the runtimes for the store's background work, which live as long as the
    /// client. The store reports when its data has moved, or when keys have changed that it watches.
    fn adopt(&self, runtimes: &BackgroundRuntimes, reports: HoldReports) {
        let _ = (runtimes, reports);
    }

    /// Whether the work of the client's threads runs in tasks of the caller's runtime, whose clock a test may
    /// have paused.
    #[cfg(feature = "testing")]
    fn runs_on_the_callers_runtime(&self) -> bool {
        false
    }

    /// Connects and checks the store, to report problems at the start. Called once, after [`adopt`](Self::adopt).
    fn connect(&self) -> MaybeReady<'_, Result<(), LockError>> {
        MaybeReady::ready(Ok(()))
    }

    /// Fails unless locks in this layout, which the store has, can be acquired and renewed now. Takes at most 5/4 of a response
    /// timeout.
    fn check_readiness(&self, layout: Layout) -> StoreAnswer<'_, ()> {
        let _ = layout;
        MaybeReady::ready(Ok(()))
    }

    /// What identifies the store among those of a quorum.
    fn profile(&self) -> StoreAnswer<'_, StoreProfile> {
        MaybeReady::ready(Ok(StoreProfile::default()))
    }

    /// Who has a lock, in any layout; `None` if nobody has it, or the store does not know it.
    fn holder<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<KeyHolder>> {
        let _ = key;
        MaybeReady::ready(Ok(None))
    }

    /// Has questions about the client answered from now on. Called at most once, after [`adopt`](Self::adopt).
    fn answer_with(&self, answerer: Weak<dyn Answerer>) {
        drop(answerer);
    }

    /// What operators see of the keys of the store.
    fn inspector(&self) -> Result<&dyn KeyInspector, StoreError> {
        Err(StoreError::lacking(&shown(self), "url", "keys that can be inspected"))
    }

    /// Whether the clients of the store can be asked.
    fn has_questions(&self) -> bool {
        false
    }

    /// A way to ask the clients of the store that have this namespace.
    fn asker(&self, namespace: &str) -> Result<Box<dyn Asker>, StoreError> {
        let _ = namespace;
        Err(StoreError::lacking(&shown(self), "url", "clients that `LockAdmin` can ask"))
    }

    /// Sends what the store would send later by itself, because the client is being shut down. The caller limits the time.
    fn finish(&self) -> MaybeReady<'_, ()> {
        MaybeReady::ready(())
    }

    /// The handle for locks in this layout, or the [error](Layout::plain_only) of calls that need one. It is always the same
    /// one, so that handles can be compared by address. Each store has plain locks: [`Layout::TOKEN`].
    fn handle(&self, layout: Layout) -> Result<Arc<dyn LockStore>, StoreError>;
}

/// What error messages call the store.
fn shown(backend: &(impl Backend + ?Sized)) -> String {
    backend.handle(Layout::TOKEN).map_or_else(|_| "this store".to_owned(), |locks| locks.shown())
}

/// Where the locks of clients are. A client opens it with its own settings.
pub trait OpenStore: Send + Sync + 'static {
    /// The name of the store, such as `etcd`.
    fn name(&self) -> &str;

    /// The store of a new client. It does not connect yet.
    fn open(&self, settings: &Settings) -> Result<Arc<dyn Backend>, LockError>;
}

impl<S: OpenStore + ?Sized> OpenStore for Arc<S> {
    fn name(&self) -> &str {
        S::name(self)
    }

    fn open(&self, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
        S::open(self, settings)
    }
}

/// The answer of the store to a request.
pub type StoreAnswer<'a, T> = MaybeReady<'a, Result<T, StoreError>>;

/// One layout of the locks in a store.
pub trait LockStore: Send + Sync + 'static {
    /// Takes the resource if it is free, or if `claim.owner` already has it.
    ///
    /// Gives up after `timeout`; the effect of a request that was sent is then unknown. `trace`
    /// records whether the request was sent, also for a future that is dropped before its answer.
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> MaybeReady<'a, Result<Acquired, StoreError>>;

    /// Takes all resources of the claim if all are free, or none of them. All of them are in one
    /// [slot](Self::slot). `timeout` and `trace` are those of [`try_acquire`](Self::try_acquire).
    fn try_acquire_all<'a>(
        &'a self,
        claim: SetClaim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> MaybeReady<'a, Result<SetAcquired, StoreError>> {
        let _ = (claim, timeout, trace);
        lacking(&self.shown(), Extension::SeveralKeys)
    }

    /// The slot of a key. By default, there is only one.
    fn slot(&self, key: &str) -> Slot {
        let _ = key;
        Slot::ONLY
    }

    /// Extends each lease that its owner still has, and shortens none. Each renewal is answered
    /// separately; the answers are in the order of the renewals. All renewals of a batch are for
    /// one [place](Self::place).
    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>>;

    /// Frees the resource if the owner has it, and wakes one waiter in every waiting process. With
    /// queues, gives it to the first claim in the queue. With a `keep` above zero, the resource
    /// expires after that time instead.
    fn release<'a>(
        &'a self,
        release: Release<'a>,
        lane: Lane,
    ) -> MaybeReady<'a, Result<Released, StoreError>>;

    /// Frees several resources of one [place](Self::place) as [`release`](Self::release) does. Each
    /// release is answered separately; the answers are in the order of the releases.
    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        MaybeReady::pending(async move {
            let answers = join_all(batch.iter().map(|release| self.release(*release, lane))).await;
            ReleasedBatch { connection: None, answers }
        })
    }

    /// Issues a fencing token to the owner of the resource: a number above all earlier ones for
    /// this key, even if the store has lost its data since, and no less than `at_least`.
    fn fence<'a>(
        &'a self,
        resource: Resource<'a>,
        owner: OwnerId,
        at_least: u64,
    ) -> MaybeReady<'a, Result<Fenced, StoreError>> {
        let _ = (resource, owner, at_least);
        lacking(&self.shown(), Extension::Tokens)
    }

    /// Announces who has a resource, if the owner has it.
    fn announce<'a>(
        &'a self,
        announcement: Announcement<'a>,
    ) -> MaybeReady<'a, Result<Announced, StoreError>> {
        let _ = announcement;
        lacking(&self.shown(), Extension::Announcements)
    }

    /// What the holder of a key has announced, and the rest of its lease; `None` if there is no holder,
    /// or no announcement.
    fn announced<'a>(
        &'a self,
        key: &'a str,
    ) -> MaybeReady<'a, Result<Option<(String, Left)>, StoreError>> {
        let _ = key;
        lacking(&self.shown(), Extension::Announcements)
    }

    /// See [`RunStart`].
    fn start_run<'a>(&'a self, start: RunStart<'a>) -> StoreAnswer<'a, RunStarted> {
        let _ = start;
        lacking(&self.shown(), Extension::Runs)
    }

    /// See [`RunEnd`].
    fn end_run<'a>(&'a self, end: RunEnd<'a>) -> StoreAnswer<'a, RunEnded> {
        let _ = end;
        lacking(&self.shown(), Extension::Runs)
    }

    /// The record of the last run under this key.
    fn last_run<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<RunRecord>> {
        let _ = key;
        lacking(&self.shown(), Extension::Runs)
    }

    /// Makes a reader of a writer, which lets other readers in, or a writer of the only reader. Required of stores that have
    /// read-write locks.
    fn change_mode<'a>(&'a self, change: ModeChange<'a>) -> StoreAnswer<'a, ModeChanged> {
        let _ = change;
        MaybeReady::ready(Err(StoreError::lacking(
            &self.shown(),
            "mode",
            "holds that change their mode",
        )))
    }

    /// The number of other processes that wait for the resource, as far as the store can tell.
    fn count_waiters<'a>(
        &'a self,
        resource: Resource<'a>,
        lane: Lane,
    ) -> MaybeReady<'a, Result<usize, StoreError>> {
        let _ = (resource, lane);
        MaybeReady::ready(Ok(0))
    }

    /// Subscribes to releases of the resource, by this process or by others, or to messages that
    /// the resource was given to `owner`, whose claim has this term. Wake-ups may get lost.
    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, term: Duration) -> Subscription;

    /// The result of the store's last check of a resource that is [subscribed](Self::subscribe) to,
    /// and the time of that check.
    fn last_check(&self, resource: Resource<'_>) -> Option<(Left, BootInstant)> {
        let _ = resource;
        None
    }

    /// The part of the store that serves a key. What happens to one place does not affect the
    /// others.
    fn place(&self, key: &str) -> Place {
        let _ = key;
        Place::ONLY
    }

    /// The capabilities of the store, which do not change. Called for each acquisition.
    fn capabilities(&self) -> Capabilities {
        Capabilities::PLAIN
    }

    /// Whether other processes wait for a resource. If not, the store reports when they begin to, if
    /// it can.
    fn watch_waiters<'a>(
        &'a self,
        _resource: Resource<'a>,
    ) -> MaybeReady<'a, Result<bool, StoreError>> {
        MaybeReady::ready(Ok(false))
    }

    /// Whether the store reports now when another client changes the key of a lock that was renewed. Called for each
    /// acquisition.
    fn reports_changes(&self) -> bool {
        false
    }

    /// What error messages call the store.
    fn shown(&self) -> String {
        "this store".to_owned()
    }

    /// The name by which a transaction in the database of the store finds the hold of an owner, if the store is in a database
    /// that has such transactions.
    fn name_in_transactions(&self, owner: OwnerId) -> Option<String> {
        let _ = owner;
        None
    }

    /// The kind of value that a lock is in this layout, such as `string`. It is used in errors.
    fn layout(&self) -> &'static str;

    /// Whether every answer is known as soon as its method returns.
    fn is_immediate(&self) -> bool {
        false
    }
}

fn lacking<'a, T>(shown: &str, extension: Extension) -> StoreAnswer<'a, T> {
    MaybeReady::ready(Err(extension.lacking(shown)))
}

impl dyn LockStore {
    /// Whether the store has an extension.
    pub fn has(&self, extension: Extension) -> bool {
        self.capabilities().extensions.contains(extension)
    }

    /// Fails if the store lacks an extension.
    pub fn require(&self, extension: Extension) -> Result<(), StoreError> {
        if self.has(extension) { Ok(()) } else { Err(extension.lacking(&self.shown())) }
    }
}

/// Whether two handles are the same.
pub fn is_same(one: &Arc<dyn LockStore>, other: &Arc<dyn LockStore>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// The runtimes of a client's background threads.
#[derive(Debug, Clone)]
pub struct BackgroundRuntimes {
    /// The runtime of the background thread, which renews leases. Its tasks must not call user
    /// code, such as wakers or a `tracing` subscriber, and their work must be bounded.
    pub renewals: Handle,
    /// The runtime of the notifier thread, which wakes waiters.
    pub wake_ups: Handle,
}
