//! Read-write locks and semaphores, which are claims to shares of a capacity; and the answers of the functions in the database
//! (`schema.sql`).
//!
//! What happens to a key for which claims wait, or that has several holders, is decided there, one statement at a time: a single
//! statement reads what was committed before it began, although it may have waited for the row of the key since.

use std::time::Duration;

use tokio_postgres::Row;

use super::client::PostgresClient;
use super::joined::{busy, granted};
use super::pool::SqlValue;
use super::statements::LockStatement;
use lock_core::store::contract::{
    Acquired, Fenced, Layout, Left, Mode, ModeChanged, Queued, Released, Renewed, StoreError,
};
use lock_core::store::layout::{ALL_SHARES, Shares};
use lock_core::store::queueing::QueueTicket;
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

/// The error of a call that wants another kind of lock than the one that the key is, whose row has this owner.
pub(super) fn other_kind(key: &str, wanted: Layout, owner: Option<&str>) -> StoreError {
    let kind = owner.and_then(|owner| owner.strip_prefix('(')?.strip_suffix(')'));
    StoreError::WrongFormat {
        key: key.to_owned(),
        expected: wanted.value(),
        found: kind.unwrap_or(Layout::TOKEN.value()).to_owned(),
    }
}

fn layout(shares: SharesAsked) -> Layout {
    let is_all = u64::try_from(shares.capacity) == Ok(ALL_SHARES);
    if is_all { Layout::ReadWrite } else { Layout::Semaphore }
}

impl PostgresClient {
    pub(super) async fn claim(
        &self,
        request: &LeaseRequest,
        shares: SharesAsked,
    ) -> Result<Acquired, StoreError> {
        let LeaseRequest { owned: Owned { key, owner, .. }, term, waits, .. } = request;
        let (bytes, seconds) = (key.as_bytes(), term.as_secs_f64());
        let values: [SqlValue<'_>; 6] =
            [&bytes, owner, &seconds, &shares.count, &shares.capacity, waits];
        let row = self.requests().pool.row(LockStatement::Claim, &values).await?;
        if let Some(other) =
            row.get::<_, Option<i64>>(5).and_then(|other| u32::try_from(other).ok())
            && let Ok(limit) = u32::try_from(shares.capacity)
        {
            self.limits.found(key, limit, other);
        }
        acquired(&row, key, *term, layout(shares))
    }

    /// Each owner has shares. The outcomes are those of [`renew`](lock_core::store::runner::AsyncClient::renew); `None` if another
    /// transaction has locked the row.
    pub(super) async fn renew_claims(
        &self,
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
        self.renewed(LockStatement::RenewClaims, &values, leases.len(), outcome).await
    }

    pub(super) async fn leave(
        &self,
        owned: &Owned,
        keep: Duration,
        shares: SharesAsked,
    ) -> Result<Released, StoreError> {
        let (key, seconds) = (owned.key.as_bytes(), keep.as_secs_f64());
        let values: [SqlValue<'_>; 5] =
            [&key, &owned.owner, &seconds, &shares.count, &shares.capacity];
        let row = self.requests().pool.row(LockStatement::Leave, &values).await?;
        released(&row)
    }

    pub(super) async fn change(&self, owned: &Owned) -> Result<ModeChanged, StoreError> {
        let shares = SharesAsked::of(owned.mode).map_or(0, |shares| shares.count);
        let values: [SqlValue<'_>; 3] = [&owned.key.as_bytes(), &owned.owner, &shares];
        let row = self.requests().pool.row(LockStatement::Change, &values).await?;
        match row.get(0) {
            "DONE" => Ok(ModeChanged::Done),
            "BUSY" => Ok(ModeChanged::Busy),
            "GONE" => Ok(ModeChanged::Gone),
            "TAKEN" => Ok(ModeChanged::Taken),
            other => Err(unexpected(other)),
        }
    }

    /// The next token of a writer.
    pub(super) async fn fence_writer(&self, owned: &Owned) -> Result<Fenced, StoreError> {
        let values: [SqlValue<'_>; 2] = [&owned.key.as_bytes(), &owned.owner];
        let row = self.requests().pool.row(LockStatement::FenceWriter, &values).await?;
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

fn unexpected(outcome: &str) -> StoreError {
    StoreError::Unknown(format!("the outcome {outcome:?}; run `lockctl migrate`"))
}
