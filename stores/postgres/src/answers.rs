//! What the answers of statements mean.

use std::time::Duration;

use tokio_postgres::Row;

use super::pool::{ConnectionPool, SqlValue};
use super::statements::LockStatement;
use lock_core::store::contract::{
    Acquired, Grant, Layout, Left, Queued, Released, Renewed, StoreError,
};
use lock_core::store::queueing::QueueTicket;

/// Another owner has the key for this many seconds.
pub(super) fn busy(left: f64) -> Acquired {
    Acquired::Busy(Left::Time(Duration::try_from_secs_f64(left).unwrap_or_default()))
}

/// The owner has the key for the term that was asked for, with this fencing token.
pub(super) fn granted(term: Duration, fence: i64) -> Acquired {
    Acquired::Granted(Grant { fence: u64::try_from(fence).ok(), ..Grant::of(term) })
}

/// The error of a call that wants another kind of lock than the one that the key is, whose row has this owner.
pub(super) fn other_kind(key: &str, wanted: Layout, owner: Option<&str>) -> StoreError {
    let kind = owner.and_then(|owner| owner.strip_prefix('(')?.strip_suffix(')'));
    StoreError::WrongFormat {
        key: key.to_owned(),
        expected: wanted.value(),
        found: kind.unwrap_or(Layout::TOKEN.value()).to_owned(),
    }
}

/// The answer of `distributed_lock_acquire` or `distributed_lock_claim`.
pub(super) fn acquired(
    row: &Row,
    key: &str,
    term: Duration,
    layout: Layout,
) -> Result<Acquired, StoreError> {
    let left = row.get::<_, Option<f64>>(1).unwrap_or_default();
    match row.get(0) {
        "GRANTED" => Ok(granted(term, row.get::<_, Option<i64>>(4).unwrap_or_default())),
        "BUSY" => Ok(busy(left)),
        "QUEUED" => Ok(queued(row, left)),
        "FORMAT" => Err(other_kind(key, layout, row.get(6))),
        other => Err(unexpected(other)),
    }
}

/// The answer of `distributed_lock_release` or `distributed_lock_leave`.
pub(super) fn released(row: &Row) -> Result<Released, StoreError> {
    let woken = row.get::<_, Option<i64>>(1).unwrap_or_default();
    let refused = |cause: &str| Err(StoreError::Refused(cause.to_owned()));
    match row.get(0) {
        // If the number is not known, others may wait.
        "FREED" => Ok(Released::Freed { woken: usize::try_from(woken).unwrap_or(1) }),
        "GONE" => Ok(Released::Gone),
        "TAKEN" => Ok(Released::Taken),
        "VERIFIED" => refused("a transaction is open that has verified the lock"),
        "ACQUIRING" => refused("a transaction is open that has not acquired the lock yet"),
        other => Err(unexpected(other)),
    }
}

fn queued(row: &Row, left: f64) -> Acquired {
    let number = |column| row.get::<_, Option<i64>>(column).unwrap_or_default();
    Acquired::Queued(Queued {
        left: Left::Time(Duration::try_from_secs_f64(left).unwrap_or_default()),
        ticket: QueueTicket(u64::try_from(number(2)).unwrap_or_default()),
        ahead: usize::try_from(number(3)).unwrap_or_default(),
    })
}

pub(super) fn unexpected(outcome: &str) -> StoreError {
    StoreError::Unknown(format!("the outcome {outcome:?}; run `lockctl migrate`"))
}

/// The outcomes of a statement that renews so many leases; `None` if another transaction has locked the row.
pub(super) async fn renewed(
    pool: &ConnectionPool,
    statement: LockStatement,
    (values, count): (&[SqlValue<'_>], usize),
    outcome: impl Fn(&Row) -> Option<Renewed>,
) -> Vec<Result<Option<Renewed>, StoreError>> {
    match pool.repeat(statement, values).await {
        Ok(rows) if rows.len() == count => rows.iter().map(|row| Ok(outcome(row))).collect(),
        Ok(_) => vec![Err(StoreError::Unknown("no answer".to_owned())); count],
        Err(error) => vec![Err(error); count],
    }
}
