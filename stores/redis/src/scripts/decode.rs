//! Decodes the replies to commands and scripts, with one function for each of them.
//!
//! A script replies with a status, or an array of a status and usually one field. A script for several
//! locks replies with an array of these. The usual reply of a release is a number, which costs less.
//!
//! A reply that the command or script never gives is [`Unexpected`], and no answer. It may be that to
//! another request, or come from something in between that does not speak the Redis protocol.

use std::time::Duration;

use redis::Value;

use crate::transport::error;
use lock_core::store::contract::{Left, ModeChanged, Renewed, StoreError};
use lock_core::store::queueing::{QueueTicket, Queued};
use lock_core::store::subscriptions::CheckResult;

/// A reply that does not fit its request: the type of its value. The value itself may be secret.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unexpected(pub(crate) &'static str);

impl Unexpected {
    pub(crate) fn new(value: &Value) -> Self {
        Self(match value {
            Value::Nil => "nil",
            Value::Int(_) => "an integer",
            Value::BulkString(_) => "a string",
            Value::Array(_) => "an array",
            Value::SimpleString(_) | Value::Okay => "a status",
            Value::Map(_) => "a map",
            Value::Set(_) => "a set",
            Value::Double(_) => "a floating-point number",
            Value::Boolean(_) => "a boolean",
            Value::Push { .. } => "a message",
            _ => "a value of another type",
        })
    }
}

/// Decodes the reply of [`PROBE`](super::dialects::PROBE).
pub(crate) fn probed(reply: &Value) -> Result<(), Unexpected> {
    match reply {
        Value::Int(1) => Ok(()),
        other => Err(Unexpected::new(other)),
    }
}

/// The reply of [`WRITE_PROBE`](super::dialects::WRITE_PROBE).
pub(crate) fn wrote(reply: &Value) -> Result<(), Unexpected> {
    match reply {
        Value::Int(0) => Ok(()),
        other => Err(Unexpected::new(other)),
    }
}

/// The answer to an attempt to acquire a lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AcquireReply {
    Granted,
    Busy(Left),
    Queued(Queued),
    /// Busy, and the claim could not be put into the queue: the error of the server.
    Unqueued(Left, String),
    /// The key holds a value of this kind instead of a lock.
    WrongFormat(String),
}

/// Decodes the reply to `SET key token NX PX lease`.
pub(crate) fn taken(reply: &Value) -> Result<AcquireReply, Unexpected> {
    match reply {
        Value::Okay => Ok(AcquireReply::Granted),
        Value::Nil => Ok(AcquireReply::Busy(Left::Unknown)),
        other => Err(Unexpected::new(other)),
    }
}

/// Decodes the reply of `acquire.lua`.
pub(crate) fn acquired(reply: &Value) -> Result<AcquireReply, Unexpected> {
    if let Some(waits) = waits(reply) {
        return Ok(waits);
    }
    match status(reply) {
        Some(("GRANTED", Field::None)) => Ok(AcquireReply::Granted),
        Some(("BUSY", Field::Int(left @ -1..))) => Ok(AcquireReply::Busy(left_of(left))),
        Some(("WRONGFORMAT", Field::Text(found))) => Ok(AcquireReply::WrongFormat(found.into())),
        _ => Err(Unexpected::new(reply)),
    }
}

/// Decodes the reply of `acquire_all.lua` for this number of locks: the index of the first lock that
/// is busy, if there is one.
pub(crate) fn acquired_all(reply: &Value, locks: usize) -> Result<Option<usize>, Unexpected> {
    match status(reply) {
        Some(("GRANTED", Field::None)) => Ok(None),
        Some(("BUSY", Field::Int(lock))) => {
            let index = usize::try_from(lock).ok().and_then(|lock| lock.checked_sub(1));
            index.filter(|index| *index < locks).map(Some).ok_or_else(|| Unexpected::new(reply))
        }
        _ => Err(Unexpected::new(reply)),
    }
}

/// Decodes the reply of `acquire.lua`, which may name the limit of a holder of the same semaphore.
pub(crate) fn claimed(reply: &Value) -> Result<(AcquireReply, Option<u32>), Unexpected> {
    if let Value::Array(parts) = reply
        && let [name, Value::Int(limit), reply] = &parts[..]
        && text(name) == Some("LIMIT")
    {
        return Ok((acquired(reply)?, u32::try_from(*limit).ok()));
    }
    Ok((acquired(reply)?, None))
}

/// Decodes the replies of `acquire.lua` about a claim that waits.
fn waits(reply: &Value) -> Option<AcquireReply> {
    let Value::Array(parts) = reply else { return None };
    let (status, Value::Int(left @ -1..), rest) =
        (text(parts.first()?)?, parts.get(1)?, &parts[2..])
    else {
        return None;
    };
    match (status, rest) {
        ("QUEUED", [ticket, Value::Int(ahead)]) => {
            let ticket = QueueTicket(text(ticket)?.parse().ok()?);
            let ahead = usize::try_from(*ahead).ok()?;
            Some(AcquireReply::Queued(Queued { left: left_of(*left), ticket, ahead }))
        }
        ("UNQUEUED", [error]) => {
            Some(AcquireReply::Unqueued(left_of(*left), text(error)?.to_owned()))
        }
        _ => None,
    }
}

/// Decodes the reply of `renew.lua` for this number of locks.
pub(crate) fn renewed(
    reply: &Value,
    locks: usize,
) -> Result<Vec<Result<Renewed, StoreError>>, Unexpected> {
    each(reply, locks, |reply| match status(reply) {
        Some(("EXTENDED", Field::None)) => Ok(Ok(Renewed::Extended)),
        Some(("READER", Field::None)) => Ok(Ok(Renewed::AsReader)),
        Some(("GONE", Field::None)) => Ok(Ok(Renewed::Gone)),
        Some(("TAKEN", Field::None)) => Ok(Ok(Renewed::Taken)),
        _ => Err(Unexpected::new(reply)),
    })
}

/// The answer to a release.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReleaseReply {
    /// The key is free. The message reached this number of subscribers. In a layout with queues: the
    /// number of claims that have got the key, 0 or 1.
    Freed {
        subscribers: i64,
    },
    /// The key stays taken for its minimum hold. The message reached this number of subscribers; not
    /// known with queues.
    Kept {
        subscribers: i64,
    },
    /// The key is free or stays taken, but the message could not be published, for this reason.
    Unpublished(String),
    Gone,
    Taken,
}

/// Decodes the reply of `release.lua`.
pub(crate) fn released(reply: &Value) -> Result<ReleaseReply, Unexpected> {
    if let Value::Int(subscribers @ 0..) = reply {
        return Ok(ReleaseReply::Freed { subscribers: *subscribers });
    }
    match status(reply) {
        Some(("KEPT", Field::Int(subscribers @ 0..))) => Ok(ReleaseReply::Kept { subscribers }),
        Some(("UNPUBLISHED", Field::Text(cause))) => Ok(ReleaseReply::Unpublished(cause.into())),
        Some(("GONE", Field::None)) => Ok(ReleaseReply::Gone),
        Some(("TAKEN", Field::None)) => Ok(ReleaseReply::Taken),
        _ => Err(Unexpected::new(reply)),
    }
}

/// Decodes the reply of `release_all.lua` for this number of locks. 0 means that all of them are free.
pub(crate) fn released_all(
    reply: &Value,
    locks: usize,
) -> Result<Vec<Result<ReleaseReply, StoreError>>, Unexpected> {
    if let Value::Int(0) = reply {
        return Ok((0..locks).map(|_| Ok(ReleaseReply::Freed { subscribers: 0 })).collect());
    }
    each(reply, locks, |reply| match status(reply) {
        Some(("FAILED", Field::Text(error))) => Ok(Err(error::classify_text(error))),
        _ => released(reply).map(Ok),
    })
}

/// Decodes the reply of `change.lua`.
pub(crate) fn changed(reply: &Value) -> Result<ModeChanged, Unexpected> {
    match status(reply) {
        Some(("CHANGED", Field::None)) => Ok(ModeChanged::Done),
        Some(("BUSY", Field::None)) => Ok(ModeChanged::Busy),
        Some(("GONE", Field::None)) => Ok(ModeChanged::Gone),
        Some(("TAKEN", Field::None)) => Ok(ModeChanged::Taken),
        _ => Err(Unexpected::new(reply)),
    }
}

/// The answer to a request for a fencing token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FenceReply {
    With(u64),
    Gone,
    Taken,
    /// The owner is a reader.
    Reader,
    /// The token would be this far ahead of the server's clock.
    Ahead(Duration),
    /// The key of the last token holds a value of this kind instead.
    WrongFormat(String),
}

/// Decodes the reply of `fence.lua`.
pub(crate) fn fenced(reply: &Value) -> Result<FenceReply, Unexpected> {
    let unexpected = || Unexpected::new(reply);
    match status(reply) {
        Some(("ISSUED", Field::Text(digits))) => {
            digits.parse().map(FenceReply::With).map_err(|_| unexpected())
        }
        Some(("GONE", Field::None)) => Ok(FenceReply::Gone),
        Some(("TAKEN", Field::None)) => Ok(FenceReply::Taken),
        Some(("READER", Field::None)) => Ok(FenceReply::Reader),
        Some(("AHEAD", Field::Int(micros))) => u64::try_from(micros)
            .map(|micros| FenceReply::Ahead(Duration::from_micros(micros)))
            .map_err(|_| unexpected()),
        Some(("WRONGFORMAT", Field::Text(kind))) => Ok(FenceReply::WrongFormat(kind.to_owned())),
        _ => Err(unexpected()),
    }
}

/// Decodes the reply of `check.lua` for this number of locks.
pub(crate) fn checked(reply: &Value, locks: usize) -> Result<Vec<CheckResult>, Unexpected> {
    let queued = |reply: &Value| {
        let Value::Array(parts) = reply else { return None };
        let [status, Value::Int(left @ -1..), Value::Int(ahead)] = &parts[..] else { return None };
        let ahead = usize::try_from(*ahead).ok().filter(|_| text(status) == Some("QUEUED"))?;
        Some(CheckResult::Queued(left_of(*left), ahead))
    };
    each(reply, locks, |reply| match status(reply) {
        Some(("FREE", Field::None)) => Ok(CheckResult::Free),
        Some(("BUSY", Field::Int(left @ -1..))) => Ok(CheckResult::Busy(left_of(left))),
        _ => queued(reply).ok_or_else(|| Unexpected::new(reply)),
    })
}

/// Decodes the reply to `ZCOUNT`.
pub(crate) fn count(reply: &Value) -> Result<usize, Unexpected> {
    match reply {
        Value::Int(count) => usize::try_from(*count).map_err(|_| Unexpected::new(reply)),
        other => Err(Unexpected::new(other)),
    }
}

/// Decodes the reply to `PUBSUB NUMSUB` for one channel.
pub(crate) fn subscribers(reply: &Value) -> Result<i64, Unexpected> {
    let count = match reply {
        Value::Array(parts) => parts.get(1).filter(|_| parts.len() == 2),
        // With protocol version 3.
        Value::Map(parts) => parts.first().map(|(_, count)| count).filter(|_| parts.len() == 1),
        _ => None,
    };
    match count {
        Some(Value::Int(count @ 0..)) => Ok(*count),
        other => Err(Unexpected::new(other.unwrap_or(reply))),
    }
}

/// Decodes the reply to `INFO`.
pub(crate) fn info(reply: &Value) -> Result<String, Unexpected> {
    redis::from_redis_value_ref(reply).map_err(|_| Unexpected::new(reply))
}

/// A reply about the replicas of a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReplicationReply {
    /// To a write.
    Written,
    /// To `WAIT`.
    Count(u32),
    /// To `INFO`.
    Text(String),
}

/// Decodes the replies to `SET`, `WAIT` and `INFO`.
pub(crate) fn replication(reply: &Value) -> Result<ReplicationReply, Unexpected> {
    match reply {
        Value::Okay => Ok(ReplicationReply::Written),
        Value::Int(count) => {
            u32::try_from(*count).map(ReplicationReply::Count).map_err(|_| Unexpected::new(reply))
        }
        text => info(text).map(ReplicationReply::Text),
    }
}

/// A reply about the quarantine of a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MarkerReply {
    /// To a write, or to `GET` if there is no such key.
    None,
    /// To `TIME`, in milliseconds.
    Time(u64),
    /// To `INFO` or `GET`.
    Text(String),
}

/// Decodes the replies to `INFO`, `TIME`, `GET` and `SET`.
pub(crate) fn marker(reply: &Value) -> Result<MarkerReply, Unexpected> {
    match reply {
        Value::Okay | Value::Nil => Ok(MarkerReply::None),
        Value::Array(_) => {
            let time: Result<(u64, u64), _> = redis::from_redis_value_ref(reply);
            let (seconds, micros) = time.map_err(|_| Unexpected::new(reply))?;
            Ok(MarkerReply::Time(seconds.saturating_mul(1_000).saturating_add(micros / 1_000)))
        }
        text => info(text).map(MarkerReply::Text),
    }
}

/// Decodes an array with one reply for each lock.
fn each<T>(
    reply: &Value,
    locks: usize,
    decode: impl Fn(&Value) -> Result<T, Unexpected>,
) -> Result<Vec<T>, Unexpected> {
    match reply {
        Value::Array(replies) if replies.len() == locks => replies.iter().map(decode).collect(),
        other => Err(Unexpected::new(other)),
    }
}

/// What a status comes with.
pub(crate) enum Field<'a> {
    None,
    Int(i64),
    Text(&'a str),
}

/// The status of a script's reply, and its field.
pub(crate) fn status(reply: &Value) -> Option<(&str, Field<'_>)> {
    let Value::Array(parts) = reply else { return Some((text(reply)?, Field::None)) };
    let [status, field] = &parts[..] else { return None };
    let field = match field {
        Value::Int(number) => Field::Int(*number),
        field => Field::Text(text(field)?),
    };
    Some((text(status)?, field))
}

pub(crate) fn text(value: &Value) -> Option<&str> {
    let Value::BulkString(bytes) = value else { return None };
    std::str::from_utf8(bytes).ok()
}

/// What is left of a lease, as `PTTL` replies it: in ms, or -1 without an expiry.
pub(crate) fn left_of(pttl: i64) -> Left {
    u64::try_from(pttl).map_or(Left::Forever, |left| Left::Time(Duration::from_millis(left)))
}

#[cfg(test)]
mod tests;
