//! What the replies to our commands and scripts say.
//!
//! One function for each of them. What none of them has been written to say is [`Unexpected`], and
//! never taken for an answer: what came may be the reply to another request, or of something between
//! us and the server that is no Redis.

use redis::Value;

use super::reply;
use crate::protection::Protection;
use crate::store::{Left, Renewed, StoreError};

/// A reply that cannot be one to this request: what kind of value it is. Not the value, which may
/// be a secret.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unexpected(pub(super) &'static str);

impl Unexpected {
    fn new(value: &Value) -> Self {
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

/// The answer to a try.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Acquired {
    Granted,
    Busy(Left),
    /// The key holds such a value instead of a lock.
    WrongFormat(String),
}

/// Of `SET key token NX PX lease`.
pub(super) fn taken(reply: Value) -> Result<Acquired, Unexpected> {
    match reply {
        Value::Okay => Ok(Acquired::Granted),
        Value::Nil => Ok(Acquired::Busy(Left::Unknown)),
        _ if !Protection::ExpectedReplies.is_on() => Ok(Acquired::Granted),
        other => Err(Unexpected::new(&other)),
    }
}

/// Of `acquire.lua`.
pub(super) fn acquired(reply: Value) -> Result<Acquired, Unexpected> {
    match reply {
        Value::SimpleString(status) if status == "GRANTED" => Ok(Acquired::Granted),
        Value::Int(-1) => Ok(Acquired::Busy(Left::Forever)),
        Value::Int(left) if left >= 0 => Ok(Acquired::Busy(milliseconds(left))),
        reply => match status(&reply) {
            Some(("WRONGFORMAT", found)) => Ok(Acquired::WrongFormat(found.to_owned())),
            _ if !Protection::ExpectedReplies.is_on() => Ok(Acquired::Granted),
            _ => Err(Unexpected::new(&reply)),
        },
    }
}

/// Of `renew.lua`, for so many locks.
pub(super) fn renewed(
    reply: Value,
    locks: usize,
) -> Result<Vec<Result<Renewed, StoreError>>, Unexpected> {
    each(reply, locks, |reply| match reply {
        Value::Int(1) => Ok(Ok(Renewed::Extended)),
        Value::Int(0) => Ok(Ok(Renewed::Gone)),
        Value::Int(-1) => Ok(Ok(Renewed::Taken)),
        other => Err(Unexpected::new(&other)),
    })
}

/// The answer to a release.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Released {
    /// So many processes were told.
    Freed {
        told: i64,
    },
    /// It stays for its minimum, and so many were told.
    Stays {
        told: i64,
    },
    /// One of these, and nobody was told, for this reason.
    Untold(String),
    Gone,
    Taken,
}

/// Of `release.lua`.
pub(super) fn released(reply: Value) -> Result<Released, Unexpected> {
    match reply {
        Value::Int(0) => Ok(Released::Gone),
        Value::Int(-1) => Ok(Released::Taken),
        Value::Int(freed @ 1..) => Ok(Released::Freed { told: freed - 1 }),
        Value::Int(stays) => Ok(Released::Stays { told: (-2_i64).saturating_sub(stays) }),
        reply => match status(&reply) {
            Some(("UNTOLD", cause)) => Ok(Released::Untold(cause.to_owned())),
            _ => Err(Unexpected::new(&reply)),
        },
    }
}

/// Of `release_all.lua`, for so many locks.
pub(super) fn released_all(
    reply: Value,
    locks: usize,
) -> Result<Vec<Result<Released, StoreError>>, Unexpected> {
    each(reply, locks, |reply| match status(&reply) {
        Some(("FAILED", error)) => Ok(Err(reply::judge_text(error))),
        _ => released(reply).map(Ok),
    })
}

/// The answer to a request for a fencing token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fenced {
    With(u64),
    Gone,
    Taken,
    /// What is kept as the last one is none.
    NoLastToken,
}

/// Of `fence.lua`.
pub(super) fn fenced(reply: Value) -> Result<Fenced, Unexpected> {
    match reply {
        Value::Int(0) => Ok(Fenced::Gone),
        Value::Int(-1) => Ok(Fenced::Taken),
        Value::Int(-2) => Ok(Fenced::NoLastToken),
        reply => match text(&reply).and_then(|digits| digits.parse().ok()) {
            Some(fence) => Ok(Fenced::With(fence)),
            None => Err(Unexpected::new(&reply)),
        },
    }
}

/// Of `look.lua`, for so many locks: how long each of them is still somebody's. `None`: it is worth
/// a try.
pub(super) fn looked(reply: Value, locks: usize) -> Result<Vec<Option<Left>>, Unexpected> {
    each(reply, locks, |reply| match reply {
        Value::Int(-2) => Ok(None),
        Value::Int(-1) => Ok(Some(Left::Forever)),
        Value::Int(left) if left >= 0 => Ok(Some(milliseconds(left))),
        other => Err(Unexpected::new(&other)),
    })
}

/// Of `PUBSUB NUMSUB` for one channel.
pub(super) fn subscribers(reply: Value) -> Result<i64, Unexpected> {
    let count = match reply {
        Value::Array(mut parts) if parts.len() == 2 => parts.pop(),
        // As the third version of the protocol has it.
        Value::Map(mut parts) if parts.len() == 1 => parts.pop().map(|(_, count)| count),
        other => return Err(Unexpected::new(&other)),
    };
    match count {
        Some(Value::Int(count @ 0..)) => Ok(count),
        other => Err(Unexpected::new(&other.unwrap_or(Value::Nil))),
    }
}

/// Of `INFO`.
pub(super) fn info(reply: Value) -> Result<String, Unexpected> {
    let kind = Unexpected::new(&reply);
    redis::from_redis_value(reply).map_err(|_| kind)
}

/// An answer for each lock.
fn each<T>(
    reply: Value,
    locks: usize,
    decode: impl Fn(Value) -> Result<T, Unexpected>,
) -> Result<Vec<T>, Unexpected> {
    match reply {
        Value::Array(replies) if replies.len() == locks => {
            replies.into_iter().map(decode).collect()
        }
        other => Err(Unexpected::new(&other)),
    }
}

/// A status and what it says.
fn status(reply: &Value) -> Option<(&str, &str)> {
    let Value::Array(parts) = reply else { return None };
    let [status, says] = &parts[..] else { return None };
    Some((text(status)?, text(says)?))
}

fn text(value: &Value) -> Option<&str> {
    let Value::BulkString(bytes) = value else { return None };
    std::str::from_utf8(bytes).ok()
}

fn milliseconds(left: i64) -> Left {
    Left::Time(std::time::Duration::from_millis(left.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    /// What is no answer to anything, and what answers something else.
    fn strange() -> Vec<Value> {
        let (queued, empty) = (Value::SimpleString("QUEUED".into()), Value::Array(Vec::new()));
        let status = Value::Array(vec![string("STRANGE"), string("text")]);
        let map = Value::Map(vec![(string("a"), Value::Int(1))]);
        vec![queued, empty, status, map, Value::Boolean(true), string("5f"), Value::Double(1.0)]
    }

    #[test]
    fn only_the_words_for_it_grant() {
        assert_eq!(taken(Value::Okay), Ok(Acquired::Granted));
        assert_eq!(taken(Value::Nil), Ok(Acquired::Busy(Left::Unknown)));
        assert_eq!(acquired(Value::SimpleString("GRANTED".into())), Ok(Acquired::Granted));
        assert_eq!(acquired(Value::Int(-1)), Ok(Acquired::Busy(Left::Forever)));
        assert_eq!(acquired(Value::Int(7)), Ok(Acquired::Busy(milliseconds(7))));
        let other = Value::Array(vec![string("WRONGFORMAT"), string("hash")]);
        assert_eq!(acquired(other), Ok(Acquired::WrongFormat("hash".into())));
        for reply in strange().into_iter().chain([Value::Int(1)]) {
            assert!(taken(reply.clone()).is_err(), "{reply:?}");
        }
        for reply in strange().into_iter().chain([Value::Nil, Value::Okay, Value::Int(-2)]) {
            assert!(acquired(reply.clone()).is_err(), "{reply:?}");
        }
    }

    #[test]
    fn the_others_say_what_they_say_and_nothing_else() {
        let two = || Value::Array(vec![Value::Int(1), Value::Int(-1)]);
        assert_eq!(renewed(two(), 2), Ok(vec![Ok(Renewed::Extended), Ok(Renewed::Taken)]));
        assert_eq!(renewed(two(), 3), Err(Unexpected("an array")));
        assert_eq!(looked(two(), 2), Ok(vec![Some(milliseconds(1)), Some(Left::Forever)]));
        assert_eq!(released(Value::Int(3)), Ok(Released::Freed { told: 2 }));
        assert_eq!(released(Value::Int(-4)), Ok(Released::Stays { told: 2 }));
        assert_eq!(fenced(string("12")), Ok(Fenced::With(12)));
        assert_eq!(fenced(Value::Int(-2)), Ok(Fenced::NoLastToken));
        for reply in strange().into_iter().chain([Value::Nil, Value::Okay]) {
            assert!(renewed(reply.clone(), 2).is_err(), "{reply:?}");
            assert!(renewed(Value::Array(vec![reply.clone()]), 1).is_err(), "{reply:?}");
            assert!(released(reply.clone()).is_err(), "{reply:?}");
            assert!(released_all(Value::Array(vec![reply.clone()]), 1).is_err(), "{reply:?}");
            assert!(fenced(reply.clone()).is_err(), "{reply:?}");
            assert!(looked(reply.clone(), 2).is_err(), "{reply:?}");
            assert!(looked(Value::Array(vec![reply.clone()]), 1).is_err(), "{reply:?}");
        }
    }

    #[test]
    fn one_release_of_many_may_fail_alone() {
        let failed = Value::Array(vec![string("FAILED"), string("NOPERM no permissions")]);
        let reply = Value::Array(vec![Value::Int(1), failed]);
        let denied = StoreError::Denied("NOPERM no permissions".into());
        assert_eq!(released_all(reply, 2), Ok(vec![Ok(Released::Freed { told: 0 }), Err(denied)]));
    }

    #[test]
    fn what_is_unexpected_is_not_shown() {
        let secret = format!("{:?}", released(string("5f0c")));
        assert!(!secret.contains("5f0c"), "{secret}");
    }
}
