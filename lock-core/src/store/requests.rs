//! The requests to a store, and its answers.

use std::num::NonZeroU64;
use std::time::Duration;

use super::layout::Mode;
use super::left::Left;
use super::owner::OwnerId;
use super::queueing::{Queued, Queueing};
use super::store_error::StoreError;
use crate::error::LostReason;
use crate::replicas::RequiredReplicas;

/// The object of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource<'a> {
    /// The key, of any characters, up to 1,024 bytes.
    pub key: &'a str,
    /// In which mode it is held.
    pub mode: Mode,
}

impl<'a> Resource<'a> {
    /// That of an exclusive lock.
    pub fn exclusive(key: &'a str) -> Self {
        Self { key, mode: Mode::Exclusive }
    }
}

/// One attempt to take a resource.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// What is claimed.
    pub resource: Resource<'a>,
    /// Who gets it.
    pub owner: OwnerId,
    /// How long the lease lasts unless it is renewed.
    pub term: Duration,
    /// Whether the lease is renewed until its hold ends. Otherwise it is fixed.
    pub renewed: bool,
    /// Whether the store may use its cheapest request: no earlier attempt of this owner is
    /// unanswered, and the resource is probably free.
    pub fresh: bool,
    /// The replicas that have to acknowledge the grant. Without their acknowledgement, the answer
    /// is [`StoreError::Unknown`].
    pub acknowledged_by: RequiredReplicas,
    /// Whether the claim stands in the queue if the resource is busy. A store without queues
    /// ignores it.
    pub queueing: Queueing,
    /// How the claim waited before, if that was in another way. If it still waits, it keeps its place.
    pub queued_before: Queueing,
}

impl<'a> Claim<'a> {
    /// One to an exclusive lock with a fixed lease, which does not wait.
    pub fn exclusive(key: &'a str, owner: OwnerId, term: Duration) -> Self {
        Self {
            resource: Resource::exclusive(key),
            owner,
            term,
            renewed: false,
            fresh: false,
            acknowledged_by: RequiredReplicas::NONE,
            queueing: Queueing::None,
            queued_before: Queueing::None,
        }
    }
}

/// The answer to a [`Claim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// The owner has the resource.
    Granted(Grant),
    /// Another owner has the resource.
    Busy(Left),
    /// The same, and the claim stands in the queue. When its turn comes, the store gives the
    /// resource to it without another attempt. Releasing the claim makes it leave the queue.
    Queued(Queued),
}

impl Acquired {
    /// Whether the lock was granted.
    pub fn is_grant(&self) -> bool {
        matches!(self, Self::Granted(_))
    }
}

/// A grant by the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// At least the term that was requested; less if the store has given the resource to a claim
    /// in a queue.
    pub term: Duration,
    /// The fencing token, if the store issues one with every grant.
    pub fence: Option<u64>,
    /// Whether the store has given the resource to a claim in a queue.
    pub is_transfer: bool,
}

impl Grant {
    /// A grant of the requested term, without a fencing token.
    pub fn of(term: Duration) -> Self {
        Self { term, fence: None, is_transfer: false }
    }
}

/// One lease to extend.
#[derive(Debug, Clone, Copy)]
pub struct Renewal<'a> {
    pub resource: Resource<'a>,
    pub owner: OwnerId,
    pub term: Duration,
    /// The replicas that have to acknowledge the renewal, as in [`Claim`].
    pub acknowledged_by: RequiredReplicas,
}

impl<'a> Renewal<'a> {
    /// That of an exclusive lock.
    pub fn exclusive(key: &'a str, owner: OwnerId, term: Duration) -> Self {
        let (resource, acknowledged_by) = (Resource::exclusive(key), RequiredReplicas::NONE);
        Self { resource, owner, term, acknowledged_by }
    }
}

/// The answer to a [`Renewal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// The owner still has the resource, for the term at least.
    Extended,
    /// The same, but the owner is a reader, and the renewal is that of a writer.
    AsReader,
    /// The key does not exist any more.
    Gone,
    /// The key has another owner.
    Taken,
}

/// One lease to end, or one claim that leaves the queue.
#[derive(Debug, Clone, Copy)]
pub struct Release<'a> {
    pub resource: Resource<'a>,
    pub owner: OwnerId,
    /// How long the key stays taken after the release; usually zero.
    pub keep: Duration,
    /// The term of the claim, if it may have an entry in the queue.
    pub queued: Option<Duration>,
    /// Whether the resource stays free for a moment although claims wait in a queue, so that
    /// clients get it that know no queue.
    pub leaves_gap: bool,
}

impl<'a> Release<'a> {
    /// That of an exclusive lock whose claim has not waited.
    pub fn exclusive(key: &'a str, owner: OwnerId) -> Self {
        let (resource, keep) = (Resource::exclusive(key), Duration::ZERO);
        Self { resource, owner, keep, queued: None, leaves_gap: false }
    }
}

/// The answers to several releases.
#[derive(Debug)]
pub struct ReleasedBatch {
    /// The connection that carried the releases, numbered as in [`SendTrace`](super::send_trace::SendTrace). All requests that
    /// were sent over the same connection before were served before.
    pub connection: Option<NonZeroU64>,
    /// One answer for each release.
    pub answers: Vec<Result<Released, StoreError>>,
}

/// The answer to a [`Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The key is free, or will be free after its `keep`, or was given to the next claim in its queue.
    /// `woken` is the number of other processes that were woken; with queues, 1 if claims wait.
    Freed { woken: usize },
    /// The key does not exist any more.
    Gone,
    /// The key has another owner, and was not changed.
    Taken,
}

impl Released {
    /// The reason of the loss, if the owner no longer had the lock.
    pub fn loss(self) -> Option<LostReason> {
        match self {
            Self::Freed { .. } => None,
            Self::Gone => Some(LostReason::Gone),
            Self::Taken => Some(LostReason::Taken),
        }
    }
}

/// The answer to a request for a fencing token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fenced {
    /// The token.
    With(u64),
    /// The key does not exist any more.
    Gone,
    /// The key has another owner.
    Taken,
    /// The store issues none, and would refuse another request as well. The text is the cause.
    Refused(String),
}
