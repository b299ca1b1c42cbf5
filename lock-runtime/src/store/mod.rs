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

use std::time::Duration;

use tokio::runtime;

use crate::eventually::Eventually;
use crate::format::WireFormat;

pub(crate) use memory::MemoryStore;
pub(crate) use token::Token;
pub(crate) use wake::Subscription;
#[cfg(feature = "redis")]
pub(crate) use wake::WakeUps;

/// The one thing that a backend implements.
pub(crate) trait LockStore: Send + Sync + 'static {
    /// Takes the key for `claim.lease` if it is free, or if `claim.token` already has it.
    ///
    /// Gives up after `within`; what the request did by then is unknown.
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        within: Duration,
    ) -> Eventually<'a, Result<Attempt, StoreError>>;

    /// Extends each hold that its token still has, each on its own, and shortens none: one result per
    /// renewal, in their order. All are of one format. Sent on the keeper's lane.
    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
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

    /// Whether the answers to [`try_acquire`](Self::try_acquire) are there when it returns.
    fn is_immediate(&self) -> bool {
        false
    }

    /// Told once, before any request: the runtime of the keeper thread, on which whatever the
    /// store does in the background is to run. It lives as long as the client.
    fn adopt(&self, keeper: &runtime::Handle);
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
