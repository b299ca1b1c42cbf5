//! Decodes the replies of the scripts about records beside a lock: who leads, and the last run.

use std::time::Duration;

use redis::Value;

use super::decode::{Field, Unexpected, left_of, status, text};
use lock_core::store::announcements::Announced;
use lock_core::store::contract::{Left, StoreError};
use lock_core::store::periods::{RunEnded, RunRecord, RunStarted};

/// The reply of a script about the record of a leader or a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Recorded<T> {
    /// The record is that of the owner.
    Yes(T),
    Not(T),
    /// The key of the record holds a value of this kind.
    WrongFormat(String),
}

impl<T> Recorded<T> {
    /// The answer, unless the key holds a value of another kind, which this error names.
    pub(crate) fn unless(self, wrong: impl FnOnce(String) -> StoreError) -> Result<T, StoreError> {
        match self {
            Self::WrongFormat(found) => Err(wrong(found)),
            Self::Yes(answer) | Self::Not(answer) => Ok(answer),
        }
    }
}

/// Decodes the reply of `announce.lua`.
pub(crate) fn announce(reply: &Value) -> Result<Recorded<Announced>, Unexpected> {
    match status(reply) {
        Some(("ANNOUNCED", Field::None)) => Ok(Recorded::Yes(Announced::Done)),
        Some(("GONE", Field::None)) => Ok(Recorded::Not(Announced::Gone)),
        Some(("TAKEN", Field::None)) => Ok(Recorded::Not(Announced::Taken)),
        _ => wrong_record(reply),
    }
}

/// Decodes the reply of `announced.lua`: the text, and the rest of the lease.
pub(crate) fn announced(reply: &Value) -> Result<Recorded<Option<(String, Left)>>, Unexpected> {
    record_or_none(reply, || {
        let Value::Array(parts) = reply else { return None };
        let [status, Value::Int(left @ -1..), announced] = &parts[..] else { return None };
        let announced = text(announced).filter(|_| text(status) == Some("ANNOUNCED"))?;
        Some((announced.to_owned(), left_of(*left)))
    })
}

/// Decodes the reply of `start_run.lua`.
pub(crate) fn run_started(reply: &Value) -> Result<Recorded<RunStarted>, Unexpected> {
    match status(reply) {
        Some(("STARTED", Field::Int(now @ 0..))) => {
            Ok(Recorded::Yes(RunStarted::At(now.unsigned_abs())))
        }
        Some(("RAN", Field::Int(left @ 0..))) => {
            let left = Duration::from_millis(left.unsigned_abs());
            Ok(Recorded::Not(RunStarted::Ran(left)))
        }
        Some(("GONE", Field::None)) => Ok(Recorded::Not(RunStarted::Gone)),
        Some(("TAKEN", Field::None)) => Ok(Recorded::Not(RunStarted::Taken)),
        _ => wrong_record(reply),
    }
}

/// Decodes the reply of `end_run.lua`.
pub(crate) fn run_ended(reply: &Value) -> Result<Recorded<RunEnded>, Unexpected> {
    match status(reply) {
        Some(("RECORDED", Field::None)) => Ok(Recorded::Yes(RunEnded::Recorded)),
        Some(("GONE", Field::None)) => Ok(Recorded::Not(RunEnded::Gone)),
        Some(("TAKEN", Field::None)) => Ok(Recorded::Not(RunEnded::Taken)),
        _ => wrong_record(reply),
    }
}

/// Decodes the reply of `last_run.lua`.
pub(crate) fn last_run(reply: &Value) -> Result<Recorded<Option<RunRecord>>, Unexpected> {
    record_or_none(reply, || {
        let Value::Array(parts) = reply else { return None };
        let [status, began, ended, failed, Value::BulkString(by), held] = &parts[..] else {
            return None;
        };
        let began = text(began).filter(|_| text(status) == Some("RUN"))?.parse().ok()?;
        let ended = match text(ended)? {
            "" => None,
            ended => Some((ended.parse().ok()?, text(failed) == Some("1"))),
        };
        // Everything but the times may have been changed by hand.
        let by = String::from_utf8_lossy(by).into_owned();
        Some(RunRecord { began, ended, by, is_held: text(held) == Some("1") })
    })
}

/// Decodes a reply that is a record, or says that there is none.
fn record_or_none<T>(
    reply: &Value,
    record: impl FnOnce() -> Option<T>,
) -> Result<Recorded<Option<T>>, Unexpected> {
    match status(reply) {
        Some(("NONE", Field::None)) => Ok(Recorded::Not(None)),
        Some(_) => wrong_record(reply),
        None => match record() {
            Some(record) => Ok(Recorded::Yes(Some(record))),
            None => Err(Unexpected::new(reply)),
        },
    }
}

fn wrong_record<T>(reply: &Value) -> Result<Recorded<T>, Unexpected> {
    match status(reply) {
        Some(("WRONGFORMAT", Field::Text(kind))) => Ok(Recorded::WrongFormat(kind.to_owned())),
        _ => Err(Unexpected::new(reply)),
    }
}
