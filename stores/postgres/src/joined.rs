//! Acquires and releases that are sent together, as one statement.
//!
//! What the server does for a statement, and for the commit of one, costs more than the changes of a row. While a runtime has as
//! many statements in flight as it has connections, another one would have to wait in any case.
//!
//! No statement waits for another one of these that waits for it: rows are inserted in the order of their keys, rows that
//! others have locked are not deleted, and a release does not wait for an acquire.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;

use super::answers::{busy, granted, other_kind};
use super::connector::DatabaseConnector;
use super::pool::{ConnectionPool, PoolTurn, SqlValue, StatementFailure};
use super::statements::LockStatement;
use lock_core::join::join_all;
use lock_core::store::contract::{Acquired, Layout, Released};
use lock_core::store::joiner::{JoinLimits, JoinTurn, JoinableRequest, RequestJoiner};
use lock_core::store::store_error::StoreError;

/// The connections of a runtime for requests, apart from the one for renewals.
const POOL: usize = 8;

/// How requests are sent. Each acquire takes an advisory lock, of which a server has 64 for each of its connections by default.
const LIMITS: JoinLimits = JoinLimits { in_flight: POOL, together: 32 };

/// What is asked for a key.
pub(super) struct KeyRequest {
    key: Vec<u8>,
    owner: String,
    /// The term of an acquire; not used for a release.
    term: Duration,
    /// The same, in seconds.
    seconds: f64,
}

impl JoinableRequest for KeyRequest {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

impl KeyRequest {
    pub(super) fn new(key: &str, owner: &str, term: Duration) -> Self {
        let (key, owner) = (key.as_bytes().to_vec(), owner.to_owned());
        Self { key, owner, term, seconds: term.as_secs_f64() }
    }

    fn values(&self) -> [SqlValue<'_>; 3] {
        [&self.key, &self.owner, &self.seconds]
    }
}

/// An answer; `None` if the full statement is necessary.
type JoinedAnswer<T> = Result<Option<T>, StoreError>;

/// The requests of a runtime.
pub(super) struct JoinedRequests {
    pub(super) pool: ConnectionPool,
    acquires: Arc<RequestJoiner<KeyRequest, JoinedAnswer<Acquired>>>,
    releases: Arc<RequestJoiner<KeyRequest, JoinedAnswer<Released>>>,
}

impl JoinedRequests {
    pub(super) fn new(connector: DatabaseConnector) -> Self {
        let pool = ConnectionPool::new(connector, POOL);
        Self { pool, acquires: RequestJoiner::new(LIMITS), releases: RequestJoiner::new(LIMITS) }
    }

    /// Acquires a lock whose key has no row.
    pub(super) async fn acquire_free(&self, request: KeyRequest) -> JoinedAnswer<Acquired> {
        let statements = (LockStatement::AcquireFree, LockStatement::AcquireAllFree);
        self.send(&self.acquires, request, statements, taken).await
    }

    /// Releases a lock on whose row nobody else works.
    pub(super) async fn release_idle(&self, request: KeyRequest) -> JoinedAnswer<Released> {
        let statements = (LockStatement::ReleaseIdle, LockStatement::ReleaseAllIdle);
        self.send(&self.releases, request, statements, |_, row| Ok(freed(row))).await
    }

    /// The answer to a request, which is sent with others, or on its own.
    async fn send<T>(
        &self,
        joiner: &Arc<RequestJoiner<KeyRequest, JoinedAnswer<T>>>,
        request: KeyRequest,
        (one, all): (LockStatement, LockStatement),
        answer: fn(&KeyRequest, &Row) -> JoinedAnswer<T>,
    ) -> JoinedAnswer<T> {
        let mut batch = match joiner.turn(request).await {
            Some(JoinTurn::Answered(answer)) => return answer,
            Some(JoinTurn::Sends(batch)) => batch,
            None => return unanswered(),
        };
        let statement = if batch.most() > 1 { all } else { one };
        let turn = self.pool.prepared(statement).await;
        let requests = batch.take();
        let answers = match (turn, requests.as_slice()) {
            (Err(error), _) => requests.iter().map(|_| Err(error.clone())).collect(),
            (Ok(turn), [request]) if statement == one => {
                let rows = turn.rows(one, &request.values()).await;
                let rows = rows.map_err(|failure| failure.error);
                vec![
                    rows.and_then(|rows| rows.first().map_or(Ok(None), |row| answer(request, row))),
                ]
            }
            (Ok(turn), _) => {
                let is_wanted = |number| batch.is_wanted(number);
                self.send_all(&turn, &requests, is_wanted, (one, all), answer).await
            }
        };
        batch.tell(answers).unwrap_or_else(unanswered)
    }

    /// The answers to requests, in their order.
    async fn send_all<T>(
        &self,
        turn: &PoolTurn,
        requests: &[KeyRequest],
        is_wanted: impl Fn(usize) -> bool,
        (one, all): (LockStatement, LockStatement),
        answer: fn(&KeyRequest, &Row) -> JoinedAnswer<T>,
    ) -> Vec<JoinedAnswer<T>> {
        let keys: Vec<_> = requests.iter().map(|request| &request.key).collect();
        let owners: Vec<_> = requests.iter().map(|request| &request.owner).collect();
        let terms: Vec<_> = requests.iter().map(|request| request.seconds).collect();
        match turn.rows(all, &[&keys, &owners, &terms]).await {
            Ok(rows) if rows.len() == requests.len() => {
                requests.iter().zip(&rows).map(|(request, row)| answer(request, row)).collect()
            }
            Ok(_) => requests.iter().map(|_| unanswered()).collect(),
            Err(StatementFailure { may_be_of_row: false, error }) => {
                requests.iter().map(|_| Err(error.clone())).collect()
            }
            Err(_) => {
                let one_by_one = requests.iter().enumerate().map(async |(number, request)| {
                    if !is_wanted(number) {
                        return unanswered();
                    }
                    let rows = self.pool.execute_at_once(one, &request.values()).await?;
                    rows.first().map_or(Ok(None), |row| answer(request, row))
                });
                join_all(one_by_one).await
            }
        }
    }
}

/// The request with which it was sent was given up.
fn unanswered<T>() -> JoinedAnswer<T> {
    Err(StoreError::Unknown("no answer".to_owned()))
}

/// The error of a call whose key, by the owner of its row, has another kind of lock.
fn check_kind(key: &[u8], owner: Option<&str>) -> Result<(), StoreError> {
    let key = || String::from_utf8_lossy(key);
    owner.map_or(Ok(()), |owner| Err(other_kind(&key(), Layout::TOKEN, Some(owner))))
}

fn taken(request: &KeyRequest, row: &Row) -> JoinedAnswer<Acquired> {
    check_kind(&request.key, row.get(2))?;
    Ok(match (row.get::<_, Option<i64>>(0), row.get::<_, Option<f64>>(1)) {
        (Some(fence), _) => Some(granted(request.term, fence)),
        (None, left) => left.map(busy),
    })
}

fn freed(row: &Row) -> Option<Released> {
    let is_live: bool = row.get::<_, Option<bool>>(0)?;
    // Nobody waits for it.
    Some(if is_live { Released::Freed { woken: 0 } } else { Released::Gone })
}
