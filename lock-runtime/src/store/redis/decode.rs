//! Decodes the replies to commands and scripts, with one function for each of them.
//!
//! A script replies with a status and at most one field: either the status as a string, or an array
//! of both. A script for several locks replies with an array of these. The usual reply of a release
//! is a number without a status, which costs the server less.
//!
//! A reply that the command or script never gives is [`Unexpected`], and is not taken for an
//! answer. It may be the reply to another request, or come from something between client and server
//! that does not speak the Redis protocol.

use std::time::Duration;

use redis::Value;

use super::error;
use crate::safeguard::Safeguard;
use crate::store::contract::{Left, Renewed, StoreError};

/// A reply that does not fit its request: the type of its value. The value itself may be secret.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unexpected(pub(super) &'static str);

impl Unexpected {
    pub(super) fn new(value: &Value) -> Self {
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

/// Decodes the reply of [`PROBE`](super::dialect::PROBE).
pub(super) fn probed(reply: &Value) -> Result<(), Unexpected> {
    match reply {
        Value::Int(1) => Ok(()),
        other => Err(Unexpected::new(other)),
    }
}

/// The answer to an attempt to acquire a lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AcquireReply {
    Granted,
    Busy(Left),
    /// The key holds a value of this kind instead of a lock.
    WrongFormat(String),
}

/// Decodes the reply to `SET key token NX PX lease`.
pub(super) fn taken(reply: &Value) -> Result<AcquireReply, Unexpected> {
    match reply {
        Value::Okay => Ok(AcquireReply::Granted),
        Value::Nil => Ok(AcquireReply::Busy(Left::Unknown)),
        _ if !Safeguard::ExpectedReplies.is_on() => Ok(AcquireReply::Granted),
        other => Err(Unexpected::new(other)),
    }
}

/// Decodes the reply of `acquire.lua`.
pub(super) fn acquired(reply: &Value) -> Result<AcquireReply, Unexpected> {
    match status(reply) {
        Some(("GRANTED", Field::None)) => Ok(AcquireReply::Granted),
        Some(("BUSY", Field::Int(left @ -1..))) => Ok(AcquireReply::Busy(left_of(left))),
        Some(("WRONGFORMAT", Field::Text(found))) => Ok(AcquireReply::WrongFormat(found.into())),
        _ if !Safeguard::ExpectedReplies.is_on() => Ok(AcquireReply::Granted),
        _ => Err(Unexpected::new(reply)),
    }
}

/// Decodes the reply of `renew.lua` for this number of locks.
pub(super) fn renewed(
    reply: &Value,
    locks: usize,
) -> Result<Vec<Result<Renewed, StoreError>>, Unexpected> {
    each(reply, locks, |reply| match status(reply) {
        Some(("EXTENDED", Field::None)) => Ok(Ok(Renewed::Extended)),
        Some(("GONE", Field::None)) => Ok(Ok(Renewed::Gone)),
        Some(("TAKEN", Field::None)) => Ok(Ok(Renewed::Taken)),
        _ => Err(Unexpected::new(reply)),
    })
}

/// The answer to a release.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReleaseReply {
    /// The key is free. The message reached this number of subscribers.
    Freed {
        subscribers: i64,
    },
    /// The key stays taken for its minimum hold. The message reached this number of subscribers.
    Kept {
        subscribers: i64,
    },
    /// The key is free or stays taken, but the message could not be published, for this reason.
    Unpublished(String),
    Gone,
    Taken,
}

/// Decodes the reply of `release.lua`.
pub(super) fn released(reply: &Value) -> Result<ReleaseReply, Unexpected> {
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

/// Decodes the reply of `release_all.lua` for this number of locks.
pub(super) fn released_all(
    reply: &Value,
    locks: usize,
) -> Result<Vec<Result<ReleaseReply, StoreError>>, Unexpected> {
    each(reply, locks, |reply| match status(reply) {
        Some(("FAILED", Field::Text(error))) => Ok(Err(error::classify_text(error))),
        _ => released(reply).map(Ok),
    })
}

/// The answer to a request for a fencing token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FenceReply {
    With(u64),
    Gone,
    Taken,
    /// The key of the last token holds another value.
    NoLastToken,
}

/// Decodes the reply of `fence.lua`.
pub(super) fn fenced(reply: &Value) -> Result<FenceReply, Unexpected> {
    let unexpected = || Unexpected::new(reply);
    match status(reply) {
        Some(("ISSUED", Field::Text(digits))) => {
            digits.parse().map(FenceReply::With).map_err(|_| unexpected())
        }
        Some(("GONE", Field::None)) => Ok(FenceReply::Gone),
        Some(("TAKEN", Field::None)) => Ok(FenceReply::Taken),
        Some(("WRONGFORMAT", Field::None)) => Ok(FenceReply::NoLastToken),
        _ => Err(unexpected()),
    }
}

/// Decodes the reply of `check.lua` for this number of locks: how much is left of each lease.
/// `None` means that an attempt is worthwhile.
pub(super) fn checked(reply: &Value, locks: usize) -> Result<Vec<Option<Left>>, Unexpected> {
    each(reply, locks, |reply| match status(reply) {
        Some(("FREE", Field::None)) => Ok(None),
        Some(("BUSY", Field::Int(left @ -1..))) => Ok(Some(left_of(left))),
        _ => Err(Unexpected::new(reply)),
    })
}

/// Decodes the reply to `PUBSUB NUMSUB` for one channel.
pub(super) fn subscribers(reply: &Value) -> Result<i64, Unexpected> {
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
pub(super) fn info(reply: &Value) -> Result<String, Unexpected> {
    redis::from_redis_value_ref(reply).map_err(|_| Unexpected::new(reply))
}

/// A reply about the replicas of a server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReplicationReply {
    /// To a write.
    Written,
    /// To `WAIT`.
    Count(u32),
    /// To `INFO`.
    Text(String),
}

/// Decodes the replies to `SET`, `WAIT` and `INFO`.
pub(super) fn replication(reply: &Value) -> Result<ReplicationReply, Unexpected> {
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
pub(super) enum MarkerReply {
    /// To a write, or to `GET` if there is no such key.
    None,
    /// To `TIME`, in milliseconds.
    Time(u64),
    /// To `INFO` or `GET`.
    Text(String),
}

/// Decodes the replies to `INFO`, `TIME`, `GET` and `SET`.
pub(super) fn marker(reply: &Value) -> Result<MarkerReply, Unexpected> {
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
enum Field<'a> {
    None,
    Int(i64),
    Text(&'a str),
}

/// The status of a script's reply, and its field.
fn status(reply: &Value) -> Option<(&str, Field<'_>)> {
    let Value::Array(parts) = reply else { return Some((text(reply)?, Field::None)) };
    let [status, field] = &parts[..] else { return None };
    let field = match field {
        Value::Int(number) => Field::Int(*number),
        field => Field::Text(text(field)?),
    };
    Some((text(status)?, field))
}

fn text(value: &Value) -> Option<&str> {
    let Value::BulkString(bytes) = value else { return None };
    std::str::from_utf8(bytes).ok()
}

/// What is left of a lease, as `PTTL` replies it: in ms, or -1 without an expiry.
fn left_of(pttl: i64) -> Left {
    u64::try_from(pttl).map_or(Left::Forever, |left| Left::Time(Duration::from_millis(left)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn with(status: &str, field: Value) -> Value {
        Value::Array(vec![string(status), field])
    }

    fn number(status: &str, field: i64) -> Value {
        with(status, Value::Int(field))
    }

    fn time(left: u64) -> Left {
        Left::Time(Duration::from_millis(left))
    }

    /// Replies that no script gives, and replies to other commands.
    fn unrelated() -> Vec<Value> {
        let (queued, empty) = (Value::SimpleString("QUEUED".into()), Value::Array(Vec::new()));
        let unknown = [string("STRANGE"), with("STRANGE", string("text")), number("STRANGE", 1)];
        // Statuses of scripts with a field of the wrong type, and without the field.
        let wrong =
            ["GRANTED", "EXTENDED", "GONE", "TAKEN", "FREE"].map(|status| number(status, 1));
        let typed = ["BUSY", "KEPT"].map(|status| with(status, string("1")));
        let texts = ["ISSUED", "UNPUBLISHED", "FAILED"].map(|status| number(status, 1));
        let bare = ["BUSY", "KEPT", "ISSUED", "UNPUBLISHED", "FAILED"].map(string);
        let negative = [number("BUSY", -2), number("KEPT", -1)];
        let map = Value::Map(vec![(string("a"), Value::Int(1))]);
        let plain = [queued, empty, map, Value::Boolean(true), Value::Double(1.0), Value::Nil];
        let numbers = [Value::Okay, Value::Int(0), Value::Int(1), Value::Int(-1), Value::Int(-2)];
        let three = Value::Array(vec![string("KEPT"), Value::Int(1), Value::Int(1)]);
        let mut all = vec![string("5f"), with("ISSUED", string("5f")), three];
        for some in [&unknown[..], &wrong, &typed, &texts, &bare, &negative, &plain, &numbers] {
            all.extend_from_slice(some);
        }
        all
    }

    #[test]
    fn only_the_expected_replies_grant_a_lock() {
        assert_eq!(taken(&Value::Okay), Ok(AcquireReply::Granted));
        assert_eq!(taken(&Value::Nil), Ok(AcquireReply::Busy(Left::Unknown)));
        assert_eq!(acquired(&string("GRANTED")), Ok(AcquireReply::Granted));
        assert_eq!(acquired(&number("BUSY", -1)), Ok(AcquireReply::Busy(Left::Forever)));
        assert_eq!(acquired(&number("BUSY", 0)), Ok(AcquireReply::Busy(time(0))));
        assert_eq!(acquired(&number("BUSY", 7)), Ok(AcquireReply::Busy(time(7))));
        let other = with("WRONGFORMAT", string("hash"));
        assert_eq!(acquired(&other), Ok(AcquireReply::WrongFormat("hash".into())));
        for reply in unrelated() {
            assert!(acquired(&reply).is_err(), "{reply:?}");
            if !matches!(reply, Value::Okay | Value::Nil) {
                assert!(taken(&reply).is_err(), "{reply:?}");
            }
        }
    }

    #[test]
    fn every_status_has_its_meaning() {
        assert_eq!(probed(&Value::Int(1)), Ok(()));
        assert_eq!(probed(&Value::Int(0)), Err(Unexpected("an integer")));
        let all = |replies: &[Value]| Value::Array(replies.to_vec());
        let renewals = all(&["EXTENDED", "GONE", "TAKEN"].map(string));
        let meanings = [Renewed::Extended, Renewed::Gone, Renewed::Taken].map(Ok).to_vec();
        assert_eq!(renewed(&renewals, 3), Ok(meanings));
        assert_eq!(renewed(&renewals, 2), Err(Unexpected("an array")));
        let checks = all(&[string("FREE"), number("BUSY", 1), number("BUSY", -1)]);
        assert_eq!(checked(&checks, 3), Ok(vec![None, Some(time(1)), Some(Left::Forever)]));
        assert_eq!(checked(&checks, 2), Err(Unexpected("an array")));
        let freed = ReleaseReply::Freed { subscribers: 2 };
        assert_eq!(released(&Value::Int(2)), Ok(freed));
        assert_eq!(released(&number("KEPT", 0)), Ok(ReleaseReply::Kept { subscribers: 0 }));
        assert_eq!(released(&string("GONE")), Ok(ReleaseReply::Gone));
        assert_eq!(released(&string("TAKEN")), Ok(ReleaseReply::Taken));
        let unpublished = ReleaseReply::Unpublished("NOPERM no permissions".into());
        assert_eq!(
            released(&with("UNPUBLISHED", string("NOPERM no permissions"))),
            Ok(unpublished)
        );
        assert_eq!(fenced(&with("ISSUED", string("12"))), Ok(FenceReply::With(12)));
        assert_eq!(fenced(&string("GONE")), Ok(FenceReply::Gone));
        assert_eq!(fenced(&string("TAKEN")), Ok(FenceReply::Taken));
        assert_eq!(fenced(&string("WRONGFORMAT")), Ok(FenceReply::NoLastToken));
    }

    #[test]
    fn the_replies_about_a_quarantine() {
        let time = Value::Array(vec![string("12"), string("345678")]);
        assert_eq!(marker(&time), Ok(MarkerReply::Time(12_345)));
        assert_eq!(marker(&string("a b")), Ok(MarkerReply::Text("a b".into())));
        for none in [Value::Okay, Value::Nil] {
            assert_eq!(marker(&none), Ok(MarkerReply::None));
        }
        let three = Value::Array(vec![string("1"), string("2"), string("3")]);
        let words = Value::Array(vec![string("a"), string("b")]);
        for reply in [three, words, Value::Array(Vec::new()), Value::Map(Vec::new())] {
            assert!(marker(&reply).is_err(), "{reply:?}");
        }
    }

    #[test]
    fn unrelated_replies_are_unexpected() {
        for reply in unrelated() {
            let one = || Value::Array(vec![reply.clone()]);
            assert!(renewed(&reply, 2).is_err(), "{reply:?}");
            assert!(renewed(&one(), 1).is_err(), "{reply:?}");
            assert!(fenced(&reply).is_err(), "{reply:?}");
            assert!(checked(&reply, 2).is_err(), "{reply:?}");
            assert!(checked(&one(), 1).is_err(), "{reply:?}");
            // The number of subscribers that a release has reached.
            if !matches!(reply, Value::Int(0..)) {
                assert!(released(&reply).is_err(), "{reply:?}");
                assert!(released_all(&one(), 1).is_err(), "{reply:?}");
            }
        }
    }

    #[test]
    fn one_release_of_several_may_fail() {
        let failed = Value::Array(vec![string("FAILED"), string("NOPERM no permissions")]);
        let reply = Value::Array(vec![Value::Int(0), failed]);
        let denied = StoreError::Denied("NOPERM no permissions".into());
        let freed = ReleaseReply::Freed { subscribers: 0 };
        assert_eq!(released_all(&reply, 2), Ok(vec![Ok(freed), Err(denied)]));
    }

    #[test]
    fn subscribers_are_counted_in_both_protocol_versions() {
        let (channel, count) = (|| string("channel"), || Value::Int(3));
        assert_eq!(subscribers(&Value::Array(vec![channel(), count()])), Ok(3));
        assert_eq!(subscribers(&Value::Map(vec![(channel(), count())])), Ok(3));
        for other in [
            Value::Array(vec![channel(), count(), channel(), count()]),
            Value::Map(vec![(channel(), count()), (channel(), count())]),
            Value::Array(vec![channel(), Value::Int(-1)]),
            count(),
        ] {
            assert!(subscribers(&other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn the_description_of_a_server_is_a_text() {
        assert_eq!(info(&string("redis_version:7")), Ok("redis_version:7".into()));
        assert_eq!(info(&Value::Array(Vec::new())), Err(Unexpected("an array")));
    }

    #[test]
    fn an_unexpected_value_is_not_shown() {
        let shown = format!("{:?}", released(&string("5f0c")));
        assert!(!shown.contains("5f0c"), "{shown}");
    }
}
