//! Read-write locks and semaphores, which are claims to shares of a capacity.
//!
//! What happens to a key for which claims wait, or that has several holders, is decided by functions in the database
//! (`schema.sql`), one statement at a time: a single statement reads what was committed before it began, although it may have
//! waited for the row of the key since.

use std::time::Duration;

use tokio_postgres::Row;

use super::answers::{acquired, released, renewed, unexpected};
use super::pool::{ConnectionPool, SqlValue};
use super::statements::LockStatement;
use lock_core::store::contract::{
    Acquired, Fenced, Layout, Mode, ModeChanged, Released, Renewed, StoreError,
};
use lock_core::store::different_limits::DifferentLimits;
use lock_core::store::layout::{ALL_SHARES, Shares};
use lock_core::store::runner::{LeaseRequest, Owned};

/// What a claim asks for.
#[derive(Clone, Copy)]
pub(super) struct SharesAsked {
    count: i64,
    capacity: i64,
}

impl SharesAsked {
    /// `None` for an exclusive lock, which has no shares.
    pub(super) fn of(mode: Mode) -> Option<Self> {
        let Shares { count, capacity } = mode.shares()?;
        Some(Self { count: i64::try_from(count).ok()?, capacity: i64::try_from(capacity).ok()? })
    }
}

fn layout(shares: SharesAsked) -> Layout {
    let is_all = u64::try_from(shares.capacity) == Ok(ALL_SHARES);
    if is_all { Layout::ReadWrite } else { Layout::Semaphore }
}

/// Acquires shares.
pub(super) async fn claim(
    pool: &ConnectionPool,
    limits: &DifferentLimits,
    request: &LeaseRequest,
    shares: SharesAsked,
) -> Result<Acquired, StoreError> {
    let LeaseRequest { owned: Owned { key, owner, .. }, term, waits, .. } = request;
    let (bytes, seconds) = (key.as_bytes(), term.as_secs_f64());
    let values: [SqlValue<'_>; 6] =
        [&bytes, owner, &seconds, &shares.count, &shares.capacity, waits];
    let row = pool.row(LockStatement::Claim, &values).await?;
    if let Some(other) = row.get::<_, Option<i64>>(5).and_then(|other| u32::try_from(other).ok())
        && let Ok(limit) = u32::try_from(shares.capacity)
    {
        limits.found(key, limit, other);
    }
    acquired(&row, key, *term, layout(shares))
}

/// Each owner has shares. The outcomes are those of [`renew`](lock_core::store::runner::AsyncClient::renew); `None` if another
/// transaction has locked the row.
pub(super) async fn renew_claims(
    pool: &ConnectionPool,
    leases: &[&(Owned, Duration)],
) -> Vec<Result<Option<Renewed>, StoreError>> {
    let shares: Vec<_> =
        leases.iter().filter_map(|(owned, _)| SharesAsked::of(owned.mode)).collect();
    let keys: Vec<_> = leases.iter().map(|(owned, _)| owned.key.as_bytes()).collect();
    let owners: Vec<_> = leases.iter().map(|(owned, _)| &*owned.owner).collect();
    let terms: Vec<_> = leases.iter().map(|(_, term)| term.as_secs_f64()).collect();
    let counts: Vec<_> = shares.iter().map(|shares| shares.count).collect();
    let capacities: Vec<_> = shares.iter().map(|shares| shares.capacity).collect();
    let values: [SqlValue<'_>; 5] = [&keys, &owners, &terms, &counts, &capacities];
    let outcome = |row: &Row| match (row.get(0), row.get(1), row.get(2), row.get(3)) {
        (true, false, _, _) => Some(Renewed::Extended),
        (true, true, _, _) => Some(Renewed::AsReader),
        (false, _, _, true) => None,
        (false, _, true, false) => Some(Renewed::Taken),
        (false, _, false, false) => Some(Renewed::Gone),
    };
    renewed(pool, LockStatement::RenewClaims, (&values, leases.len()), outcome).await
}

/// Ends a hold of shares, and a claim.
pub(super) async fn leave(
    pool: &ConnectionPool,
    owned: &Owned,
    keep: Duration,
    shares: SharesAsked,
) -> Result<Released, StoreError> {
    let (key, seconds) = (owned.key.as_bytes(), keep.as_secs_f64());
    let values: [SqlValue<'_>; 5] = [&key, &owned.owner, &seconds, &shares.count, &shares.capacity];
    let row = pool.row(LockStatement::Leave, &values).await?;
    released(&row)
}

/// Changes the mode of a hold.
pub(super) async fn change(
    pool: &ConnectionPool,
    owned: &Owned,
) -> Result<ModeChanged, StoreError> {
    let shares = SharesAsked::of(owned.mode).map_or(0, |shares| shares.count);
    let values: [SqlValue<'_>; 3] = [&owned.key.as_bytes(), &owned.owner, &shares];
    let row = pool.row(LockStatement::Change, &values).await?;
    match row.get(0) {
        "DONE" => Ok(ModeChanged::Done),
        "BUSY" => Ok(ModeChanged::Busy),
        "GONE" => Ok(ModeChanged::Gone),
        "TAKEN" => Ok(ModeChanged::Taken),
        other => Err(unexpected(other)),
    }
}

/// The next token of a writer.
pub(super) async fn fence_writer(
    pool: &ConnectionPool,
    owned: &Owned,
) -> Result<Fenced, StoreError> {
    let values: [SqlValue<'_>; 2] = [&owned.key.as_bytes(), &owned.owner];
    let row = pool.row(LockStatement::FenceWriter, &values).await?;
    let token = row.get::<_, Option<i64>>(0).and_then(|token| u64::try_from(token).ok());
    Ok(match (token, row.get(1), row.get(2)) {
        (Some(token), _, _) => Fenced::With(token),
        (None, true, _) => {
            let problem = "the holder is a reader by now".to_owned();
            return Err(StoreError::Config { option: "mode", problem });
        }
        (None, false, true) => Fenced::Taken,
        (None, false, false) => Fenced::Gone,
    })
}
