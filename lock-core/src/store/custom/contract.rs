//! What a custom store implements.

use std::fmt;
use std::future::{Future, ready};
use std::time::Duration;

use super::stored::{LeasePage, LeaseScan, StoredLease};
use super::wake_ups::WakeUps;
use crate::client_info::ClientInfo;
use crate::store::store_error::StoreError;

/// A store of locks, of which the program has its own implementation: see the module (`store`).
///
/// **Atomicity.** Each request is one atomic step: two requests for one key behave as if one came after the other, also if
/// they come from different processes.
///
/// **Time.** A lease that was granted or extended ends when its term has passed *by the clock of the store*, at the earliest.
/// The client counts from before it has sent the request, so it never relies on a lease that the store has ended. The clocks
/// of the client and of the store need not agree, but they have to run at nearly the same speed: a client stops relying on
/// a lease 1 % of its term and 2 ms before its end.
///
/// **Answers.** `Ok` is definite. [`StoreError::Refused`], [`Denied`](StoreError::Denied), [`Config`](StoreError::Config) and
/// [`WrongFormat`](StoreError::WrongFormat) say that the request has had no effect, and never will. Everything else is
/// [`StoreError::Unknown`]: above all, a connection that breaks after the request was sent, and an answer that does not come
/// in time. A client undoes what such a request may have done, so `Unknown` is always right, and only costs another request. An error that says `Refused` although the request takes effect leaks a lock until its lease ends.
///
/// **Threads.** The asynchronous methods run on a thread of the client that does nothing else. It has a tokio runtime, to which
/// the connections of the store belong. The other methods may be called on any thread. A method that blocks delays the other requests of
/// its client, and locks are lost then, but no body outlives its lease. A request that takes longer than the client's response timeout (a third of its lease,
/// from 50 ms to 2 s) has an unknown outcome, and its future is dropped; that of [`acquire`](Self::acquire) is polled
/// for another response timeout. A panic is an unknown outcome, too.
///
/// **Order.** The requests of a client for a key may overlap, but no [`release`](Self::release) for an owner is called before
/// the future of its [`acquire`](Self::acquire) has ended or was dropped. If a request takes effect although its future was
/// dropped, and only after the release, its lease stays until it ends. A store that can order its requests prevents that, for
/// example by sending both over one connection.
///
/// `conformance` tests an implementation.
pub trait Store: Send + Sync + 'static {
    /// The name of the store, such as `etcd`. It is used in errors.
    fn name(&self) -> &str;

    /// Connects to the store and checks it. Called once, before any other method, and limited to 5 s. From now on, the store
    /// calls `wake_ups` when keys become free, if it can.
    ///
    /// By default, there is nothing to do.
    fn connect(&self, wake_ups: WakeUps) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _ = wake_ups;
        ready(Ok(()))
    }

    /// Gives the key to the owner for the term, if nobody has it. If the owner already has it, its lease is extended to at
    /// least the term, because the request may be the second one after an answer that was lost. A fencing token that is
    /// delivered with the grant is above all earlier ones for the key, those of [`fence`](Self::fence) included; that of a
    /// second request may be the same as that of the first.
    fn acquire(
        &self,
        lease: LeaseRequest<'_>,
    ) -> impl Future<Output = Result<LeaseOutcome, StoreError>> + Send;

    /// Extends each of these leases to at least its term from now, if its owner still has the key. It shortens none. The
    /// results are in the order of the leases; one that is missing counts as [`StoreError::Unknown`].
    ///
    /// A client renews all its locks together, up to a hundred with one call, so one request for all of them saves
    /// much. The renewals do not depend on each other.
    fn renew(
        &self,
        leases: &[LeaseRequest<'_>],
    ) -> impl Future<Output = Vec<Result<RenewOutcome, StoreError>>> + Send;

    /// Frees the key, if the owner has it, and wakes those who wait for it. If
    /// [`keep`](ReleaseRequest::keep) is not zero, the key stays taken for that time instead, without an owner.
    fn release(
        &self,
        release: ReleaseRequest<'_>,
    ) -> impl Future<Output = Result<ReleaseOutcome, StoreError>> + Send;

    /// Issues a fencing token to the owner of the key: a number above all earlier ones for this key, for as long as the
    /// store exists, and no less than [`at_least`](FenceRequest::at_least). Not called for a
    /// hold whose [`acquire`](Self::acquire) has delivered one, unless it is that of one of several keys.
    ///
    /// By default, the store has no fencing tokens, and a call that wants one gets
    /// [`LockError::Config`](crate::error::LockError::Config).
    fn fence(
        &self,
        request: FenceRequest<'_>,
    ) -> impl Future<Output = Result<FencingOutcome, StoreError>> + Send {
        let _ = request;
        ready(Err(StoreError::Config {
            option: "store",
            problem: format!("the store `{}` issues no fencing tokens", self.name()),
        }))
    }

    /// What is stored about a key, for [`LockError::Busy`](crate::error::LockError::Busy) and for operators (`LockAdmin` with the
    /// feature `admin`). `None` if nobody has the key, and it does not stay taken after a release.
    ///
    /// By default, the store does not tell: [`StoreError::Config`] with the option `store`.
    fn inspect(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<Option<StoredLease>, StoreError>> + Send {
        let _ = key;
        ready(Err(without(self.name(), "store", "keys that can be inspected")))
    }

    /// A part of the keys that are taken, for operators. A key that is taken for the whole scan is in one of the parts.
    ///
    /// By default, the store does not tell: [`StoreError::Config`] with the option `store`.
    fn scan(
        &self,
        scan: LeaseScan<'_>,
    ) -> impl Future<Output = Result<LeasePage, StoreError>> + Send {
        let _ = scan;
        ready(Err(without(self.name(), "store", "keys that can be scanned")))
    }

    /// Called before [`connect`](Self::connect) with what the client tells about itself, if it does, and its namespace.
    #[doc(hidden)]
    fn introduce(&self, client: Option<&ClientInfo>, namespace: &str) {
        let _ = (client, namespace);
    }

    /// What connected clients tell about themselves, of those with these ids.
    #[doc(hidden)]
    fn clients(
        &self,
        ids: &[String],
    ) -> impl Future<Output = Result<Vec<ClientInfo>, StoreError>> + Send {
        let _ = ids;
        ready(Ok(Vec::new()))
    }

    /// Fails unless locks can be acquired and renewed now, for `LockClient::ready`. Always
    /// succeeds by default.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(Ok(()))
    }

    /// Called when a call begins to wait for a key: after this method has returned, every release of the key is followed by a
    /// [wake-up](WakeUps). It is called again after an error, and after [`WakeUps::interrupted`]. Does nothing by default.
    fn watch(&self, key: &str) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _ = key;
        ready(Ok(()))
    }

    /// Called when no call has waited for a key for a while. Does nothing by default.
    fn unwatch(&self, key: &str) -> impl Future<Output = ()> + Send {
        let _ = key;
        ready(())
    }

    /// How often a waiting call makes an attempt although nothing has woken it. A key that its owner does not release is free
    /// when its lease ends, which no store has to announce. 100 ms by default, which suits stores without wake-ups; 1 s is
    /// enough for stores whose wake-ups are seldom lost. From 10 ms to 1 minute; other values are raised or lowered.
    fn poll_interval(&self) -> Duration {
        Duration::from_millis(100)
    }

    /// Whether an acquire that was dropped cannot take effect after a later release. Otherwise the release is repeated.
    #[doc(hidden)]
    fn orders_requests(&self) -> bool {
        true
    }

    /// Whether the requests of callers may run on the runtime of their callers, as well as on the thread of the client. Each
    /// runtime needs its own connections then.
    #[doc(hidden)]
    fn runs_on_callers(&self) -> bool {
        false
    }

    #[doc(hidden)]
    fn is_postgres(&self) -> bool {
        false
    }

    /// Whether the store reports keys whose owners may have [lost](WakeUps::lost) them. A client then also renews fixed
    /// leases once, soon after their grant, with the shortest term. `false` by default.
    fn reports_losses(&self) -> bool {
        false
    }

    /// Whether a [`release`](Self::release) can keep a key taken, which `min_hold` needs. `false` by default.
    fn keeps_after_release(&self) -> bool {
        false
    }
}

/// A lease that an owner requests, or wants to extend. `Debug` does not show the owner.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseRequest<'a> {
    /// The full key, with the namespace of the client. Up to 1,024 bytes, of any characters.
    pub key: &'a str,
    /// The token of the owner: 32 letters, digits and the characters `-`, `_` and `.`. No other acquisition has the same one.
    /// Who knows it can release the lock, so it must not be logged.
    pub owner: &'a str,
    /// How long the lease lasts, from 10 ms to 7 days.
    pub term: Duration,
    /// In an [`acquire`](Store::acquire): whether the client renews the lease until its hold ends. Otherwise the lease is
    /// fixed, and ends after its term even if the client lives. A store may use it to share what it needs for a lease among
    /// those that are renewed together. In a [`renew`](Store::renew), it is always `true`.
    pub renewed: bool,
    /// Whether the key seems to be free. A cheaper request may be enough then.
    #[doc(hidden)]
    pub fresh: bool,
}

/// The end of a lease. `Debug` does not show the owner.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleaseRequest<'a> {
    /// See [`LeaseRequest::key`].
    pub key: &'a str,
    /// See [`LeaseRequest::owner`].
    pub owner: &'a str,
    /// How long the key stays taken; zero unless the store [keeps keys](Store::keeps_after_release).
    pub keep: Duration,
}

/// A request for a fencing token. `Debug` does not show the owner.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FenceRequest<'a> {
    /// See [`LeaseRequest::key`].
    pub key: &'a str,
    /// See [`LeaseRequest::owner`].
    pub owner: &'a str,
    /// The lowest token that may be issued. Zero, unless a call has locked several keys: it gives all of them the highest of
    /// their tokens, and no later token of any of them may be below that.
    pub at_least: u64,
}

impl fmt::Debug for LeaseRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, owner: _, term, renewed, fresh: _ } = self;
        let mut shown = f.debug_struct("LeaseRequest");
        shown
            .field("key", key)
            .field("term", term)
            .field("renewed", renewed)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ReleaseRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, keep, .. } = self;
        f.debug_struct("ReleaseRequest")
            .field("key", key)
            .field("keep", keep)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for FenceRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, at_least, .. } = self;
        let mut shown = f.debug_struct("FenceRequest");
        shown.field("key", key).field("at_least", at_least).finish_non_exhaustive()
    }
}

impl<'a> FenceRequest<'a> {
    /// A request for tests of a store.
    #[must_use]
    pub fn new(key: &'a str, owner: &'a str) -> Self {
        Self { key, owner, at_least: 0 }
    }

    /// The same, but for a token that is at least this one.
    #[must_use]
    pub fn at_least(self, at_least: u64) -> Self {
        Self { at_least, ..self }
    }
}

impl<'a> LeaseRequest<'a> {
    /// A request for tests of a store, for a fixed lease.
    #[must_use]
    pub fn new(key: &'a str, owner: &'a str, term: Duration) -> Self {
        Self { key, owner, term, renewed: false, fresh: false }
    }

    /// The same, but for a lease that is renewed.
    #[must_use]
    pub fn renewed(self) -> Self {
        Self { renewed: true, ..self }
    }

    /// The same, but for a key that seems to be free.
    #[doc(hidden)]
    #[must_use]
    pub fn fresh(self) -> Self {
        Self { fresh: true, ..self }
    }
}

impl<'a> ReleaseRequest<'a> {
    /// A release for tests of a store.
    #[must_use]
    pub fn new(key: &'a str, owner: &'a str) -> Self {
        Self { key, owner, keep: Duration::ZERO }
    }

    /// The same, but the key stays taken for this time.
    #[must_use]
    pub fn keep(self, keep: Duration) -> Self {
        Self { keep, ..self }
    }
}

/// The answer to an [`acquire`](Store::acquire).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// The owner has the key, for the whole term.
    Granted {
        /// The fencing token of this grant, if the store delivers one with each grant.
        fence: Option<u64>,
    },
    /// Another owner has the key, or it stays taken after a release.
    Busy {
        /// The rest of the lease, if the store knows it. A waiting call makes an attempt when it has passed.
        left: Option<Duration>,
    },
}

/// The answer to a [renewal](Store::renew).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenewOutcome {
    /// The owner has the key, and its lease was extended.
    Extended,
    /// Nobody has the key.
    Gone,
    /// Another owner has the key.
    Taken,
}

/// The answer to a [`release`](Store::release).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The owner had the key, and it is free now, or will be when the time is over for which it is kept.
    Freed {
        /// The number of other clients that wait for the key, if the store knows it. After a release that others wait for, a
        /// client leaves the key to them before it takes it again.
        waiting: Option<usize>,
    },
    /// Nobody had the key.
    Gone,
    /// Another owner had the key.
    Taken,
}

/// The answer to a [`fence`](Store::fence).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FencingOutcome {
    /// The owner has the key, and this is its fencing token.
    Token(u64),
    /// Nobody has the key.
    Gone,
    /// Another owner has the key.
    Taken,
}

/// The error of a call that needs what the store does not have.
pub(super) fn without(name: &str, option: &'static str, what: &str) -> StoreError {
    StoreError::Config { option, problem: format!("the store `{name}` has no {what}") }
}
