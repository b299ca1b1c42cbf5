//! What is known about a key beside its lock: the last run of a period, and what the holder announces.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::answers::unexpected;
use super::pool::ConnectionPool;
use super::statements::{ANNOUNCE, ANNOUNCED, END_RUN, LAST_RUN, START_RUN};
use lock_core::store::announcements::Announced;
use lock_core::store::contract::{Left, StoreError};
use lock_core::store::periods::{RunEnded, RunRecord, RunStarted};
use lock_core::store::runner::{Owned, RunEndRequest, RunStartRequest};

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).max(1)
}

fn no_answer() -> StoreError {
    StoreError::Unknown("no answer".to_owned())
}

pub(super) async fn start_run(
    pool: &ConnectionPool,
    owned: &Owned,
    run: &RunStartRequest,
) -> Result<RunStarted, StoreError> {
    let (key, every) = (owned.key.as_bytes(), milliseconds(run.every));
    let (attempt, kept) = (i32::try_from(run.attempt).unwrap_or(i32::MAX), run.kept.as_secs_f64());
    let rows = pool
        .query(
            START_RUN,
            &[
                (&key, Type::BYTEA),
                (&owned.owner, Type::TEXT),
                (&every, Type::INT8),
                (&run.counts, Type::BOOL),
                (&attempt, Type::INT4),
                (&run.by, Type::TEXT),
                (&kept, Type::FLOAT8),
            ],
        )
        .await?;
    let row = rows.first().ok_or_else(no_answer)?;
    let at = row.get::<_, Option<i64>>(1).and_then(|at| u64::try_from(at).ok()).unwrap_or_default();
    match row.get(0) {
        "STARTED" => Ok(RunStarted::At(at)),
        "RAN" => Ok(RunStarted::Ran(Duration::from_millis(at))),
        "GONE" => Ok(RunStarted::Gone),
        "TAKEN" => Ok(RunStarted::Taken),
        other => Err(unexpected(other)),
    }
}

pub(super) async fn end_run(
    pool: &ConnectionPool,
    owned: &Owned,
    run: &RunEndRequest,
) -> Result<RunEnded, StoreError> {
    let (key, kept) = (owned.key.as_bytes(), run.kept.as_secs_f64());
    let began = run.began.map(|began| i64::try_from(began).unwrap_or(i64::MAX));
    let rows = pool
        .query(
            END_RUN,
            &[
                (&key, Type::BYTEA),
                (&owned.owner, Type::TEXT),
                (&began, Type::INT8),
                (&run.counts, Type::BOOL),
                (&run.failed, Type::BOOL),
                (&run.by, Type::TEXT),
                (&kept, Type::FLOAT8),
            ],
        )
        .await?;
    match rows.first().ok_or_else(no_answer)?.get(0) {
        "RECORDED" => Ok(RunEnded::Recorded),
        "GONE" => Ok(RunEnded::Gone),
        "TAKEN" => Ok(RunEnded::Taken),
        other => Err(unexpected(other)),
    }
}

pub(super) async fn last_run(
    pool: &ConnectionPool,
    key: &str,
) -> Result<Option<RunRecord>, StoreError> {
    let rows = pool.query(LAST_RUN, &[(&key.as_bytes(), Type::BYTEA)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let time = |column| row.get::<_, Option<i64>>(column).and_then(|time| u64::try_from(time).ok());
    let Some(began) = time(0) else { return Ok(None) };
    let ended = time(1).map(|ended| (ended, row.get::<_, Option<bool>>(2).unwrap_or_default()));
    Ok(Some(RunRecord { began, ended, by: row.get(3), is_held: row.get(4) }))
}

pub(super) async fn announce(
    pool: &ConnectionPool,
    owned: &Owned,
    text: &str,
    keep: Duration,
) -> Result<Announced, StoreError> {
    let (key, keep) = (owned.key.as_bytes(), keep.as_secs_f64());
    let parameters = [
        (&key as _, Type::BYTEA),
        (&owned.owner as _, Type::TEXT),
        (&text as _, Type::TEXT),
        (&keep as _, Type::FLOAT8),
    ];
    match pool.query(ANNOUNCE, &parameters).await?.first().ok_or_else(no_answer)?.get(0) {
        "DONE" => Ok(Announced::Done),
        "GONE" => Ok(Announced::Gone),
        "TAKEN" => Ok(Announced::Taken),
        other => Err(unexpected(other)),
    }
}

pub(super) async fn announced(
    pool: &ConnectionPool,
    key: &str,
) -> Result<Option<(String, Left)>, StoreError> {
    let rows = pool.query(ANNOUNCED, &[(&key.as_bytes(), Type::BYTEA)]).await?;
    let announced = rows.first().map(|row| {
        let left = row.get::<_, Option<f64>>(1).map(Duration::try_from_secs_f64);
        let left = left.map_or(Left::Forever, |left| Left::Time(left.unwrap_or_default()));
        (row.get(0), left)
    });
    Ok(announced)
}
