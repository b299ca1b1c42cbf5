//! Where locks are kept: what the engine asks of a store, and the stores.
//!
//! A store knows keys, owner tokens and leases, and nothing of tasks, guards or waiting. Each
//! request is one atomic step at the store. Every answer is one of three kinds, and the engine
//! treats them differently: definite (`Ok`), refused before it ran ([`StoreError::Refused`] and
//! the two permanent ones), and unknown ([`StoreError::Unknown`]: it may have run, or may yet).

// What only a remote store needs is not used without one.
#![cfg_attr(not(feature = "redis"), allow(dead_code))]

mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod token;
mod wake;

#[cfg(test)]
pub(crate) mod faulty;

use std::num::NonZeroU64;
use std::time::Duration;

use tokio::runtime;

use crate::clock::BootInstant;
use crate::error::LostReason;
use crate::eventually::Eventually;
use crate::format::WireFormat;
use crate::sync::atomic::{AtomicU64, Ordering};

pub(crate) use memory::MemoryStore;
pub(crate) use token::Token;
pub(crate) use wake::Subscription;
#[cfg(any(feature = "redis", test))]
pub(crate) use wake::WakeUps;
#[cfg(all(feature = "redis", test, not(lock_shuttle)))]
pub(crate) use wake::{Due, Found};

/// The one thing that a backend implements.
pub(crate) trait LockStore: Send + Sync + 'static {
    /// Takes the key for `claim.lease` if it is free, or if `claim.token` already has it.
    ///
    /// Gives up when `patience` is over; what a request that was sent did by then is unknown.
    /// `trace` says whether it was sent, also if the future is dropped half-way.
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        patience: Patience,
        trace: &'a Trace,
    ) -> Eventually<'a, Result<Attempt, StoreError>>;

    /// Extends each hold that its token still has, each on its own, and shortens none: one result per
    /// renewal, in their order. All are of one format.
    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        lane: Lane,
    ) -> Eventually<'a, Vec<Result<Renewed, StoreError>>>;

    /// Frees the key if `token` has it, and wakes one waiter of every waiting process. Unless it is
    /// to be kept: then it expires after `keep`.
    fn release<'a>(
        &'a self,
        key: &'a str,
        token: &'a Token,
        keep: Duration,
        lane: Lane,
    ) -> Eventually<'a, Result<Released, StoreError>>;

    /// Frees several keys, each on its own, as [`release`](Self::release) does: one answer per
    /// release, in their order. All are of one format.
    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> Eventually<'a, ReleasedBatch>;

    /// Gives `token`'s owner a fencing token for the key: a number that is higher than all which
    /// were given for this key before, also if the store has lost its data since.
    fn fence<'a>(
        &'a self,
        key: &'a str,
        token: &'a Token,
    ) -> Eventually<'a, Result<Fenced, StoreError>>;

    /// How many other processes wait for the key, as far as the store can know.
    fn others<'a>(
        &'a self,
        key: &'a str,
        format: WireFormat,
    ) -> Eventually<'a, Result<usize, StoreError>>;

    /// Asks to be told when the key is released, here or elsewhere. Wake-ups may get lost.
    fn subscribe(&self, key: &str, format: WireFormat) -> Subscription;

    /// What the store has found when it last looked at a key for those who
    /// [subscribe](Self::subscribe) to it, and when that was.
    fn seen(&self, key: &str, format: WireFormat) -> Option<(Left, BootInstant)> {
        let (_, _) = (key, format);
        None
    }

    /// Whether the answers to [`try_acquire`](Self::try_acquire) are there when it returns.
    fn is_immediate(&self) -> bool {
        false
    }

    /// Called once, before any request, with the runtimes on which the store does its background
    /// work. Both live as long as the client.
    fn adopt(&self, background: &Background);
}

/// The runtimes of a client's own threads.
#[derive(Debug, Clone)]
pub(crate) struct Background {
    /// Of the thread that renews leases. Nothing may run here that calls foreign code, such as the
    /// wakers of callers or a `tracing` subscriber, or whose amount has no bound.
    pub(crate) renewals: runtime::Handle,
    /// Of the thread that wakes waiters.
    pub(crate) wake_ups: runtime::Handle,
}

/// How long a request may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// From when it is sent to its answer.
    pub(crate) answer: Duration,
    /// With everything before that, such as waiting until it can be sent.
    pub(crate) total: Duration,
}

impl Patience {
    /// So long for everything.
    #[cfg(test)]
    pub(crate) fn of(total: Duration) -> Self {
        Self { answer: total, total }
    }
}

/// Whether a request was sent, when, and over which connection: written by the store, so that the
/// sender of a request that is dropped half-way knows what has to be undone.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Zero while it was not sent.
    connection: AtomicU64,
    /// On the clock of the deadlines.
    at: AtomicU64,
}

impl Trace {
    /// The request is about to be sent over this connection of its lane. Connections are numbered
    /// from 1; a store without connections says 1.
    pub(crate) fn sent(&self, connection: u64) {
        self.at.store(BootInstant::now().as_nanos(), Ordering::Relaxed);
        self.connection.store(connection, Ordering::Relaxed);
    }

    /// The connection over which it was sent; `None` if it was not.
    pub(crate) fn connection(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.connection.load(Ordering::Relaxed))
    }

    /// The instant just before it was sent: a lease counts from here, because the request may have
    /// waited for others before.
    pub(crate) fn sent_at(&self) -> Option<BootInstant> {
        self.connection()?;
        Some(BootInstant::from_nanos(self.at.load(Ordering::Relaxed)))
    }
}

/// One try to take a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim<'a> {
    pub(crate) key: &'a str,
    pub(crate) token: &'a Token,
    pub(crate) lease: Duration,
    /// No earlier try of this token is unanswered and the key may well be free: the store may
    /// take its cheapest way.
    pub(crate) fresh: bool,
}

/// The answer to a [`Claim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    Granted,
    /// Somebody else has it.
    Busy(Left),
}

/// How much of somebody else's lease is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Time(Duration),
    /// It never ends.
    Forever,
    /// A fresh claim does not tell; the next one does.
    Unknown,
}

/// One hold to extend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Renewal<'a> {
    pub(crate) key: &'a str,
    pub(crate) token: &'a Token,
    pub(crate) lease: Duration,
}

/// The answer to a [`Renewal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewed {
    Extended,
    /// The key does not exist any more.
    Gone,
    /// The key has another owner.
    Taken,
}

/// One hold to release.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Release<'a> {
    pub(crate) key: &'a str,
    pub(crate) token: &'a Token,
    /// For how long the key is to stay taken all the same; zero for not at all.
    pub(crate) keep: Duration,
}

/// The answers to several releases.
#[derive(Debug)]
pub(crate) struct ReleasedBatch {
    /// The connection of the lane over which they went, numbered as in [`Trace`]. What was sent
    /// over the same one before them was served before them.
    pub(crate) connection: Option<NonZeroU64>,
    /// One for each release.
    pub(crate) answers: Vec<Result<Released, StoreError>>,
}

/// The answer to a request for a fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fenced {
    With(u64),
    /// The key does not exist any more.
    Gone,
    /// The key has another owner.
    Taken,
}

/// The answer to a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// The key is free, or will be after the time for which it was to be kept. So many other
    /// processes were woken.
    Freed { others: usize },
    /// The key does not exist any more.
    Gone,
    /// The key has another owner, and was left alone.
    Taken,
}

impl Released {
    /// How the lock had been lost, if its owner did not have it any more.
    pub(crate) fn loss(self) -> Option<LostReason> {
        match self {
            Self::Freed { .. } => None,
            Self::Gone => Some(LostReason::Gone),
            Self::Taken => Some(LostReason::Taken),
        }
    }
}

/// Whose connection carries a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// That of the runtime which polls the request.
    Caller,
    /// The keeper thread's.
    Keeper,
    /// That of this runtime, if it has one: requests of one lane reach the store in the order in
    /// which they were sent, so this is how an undo is kept behind what it undoes.
    Runtime(runtime::Id),
}

/// Why a store gave no definite answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreError {
    /// Nothing ran. Worth another try: loading, out of memory, connection refused.
    Refused(String),
    /// It may have run, or may yet: no answer, or the connection broke.
    Unknown(String),
    /// Nothing ran, and trying again will not help.
    Denied(String),
    /// A key is there and is not what belongs there.
    WrongFormat { key: String, expected: &'static str, found: String },
}

impl StoreError {
    /// Whether the request may have taken effect.
    pub(crate) fn may_have_run(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(cause) | Self::Unknown(cause) | Self::Denied(cause) => f.write_str(cause),
            Self::WrongFormat { key, expected, found } => {
                write!(f, "the key {key:?} holds a {found} instead of a {expected}")
            }
        }
    }
}
