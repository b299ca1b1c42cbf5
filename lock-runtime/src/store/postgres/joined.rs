//! Acquires and releases that are sent together, as one statement.
//!
//! What the server does for a statement, and for the commit of one, costs more than the changes of a row. While a runtime has as
//! many statements in flight as it has connections, another one would have to wait in any case.
//!
//! No statement waits for another one of these that waits for it: rows are inserted in the order of their keys, rows that
//! others have locked are not deleted, and a release does not wait for an acquire.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::pool::{ConnectionPool, Parameter};
use super::statements::LockStatement;
use super::{POOL, busy};
use crate::join::join_all;
use crate::store::custom::{LeaseOutcome, ReleaseOutcome};
use crate::store::joiner::{JoinLimits, JoinableRequest, RequestJoiner};
use crate::store::store_error::StoreError;

/// How requests are sent.
const LIMITS: JoinLimits = JoinLimits { in_flight: POOL, together: 64 };

/// What is asked for a key.
pub(super) struct KeyRequest {
    key: Vec<u8>,
    owner: String,
    /// The term of an acquire, in seconds; not used for a release.
    term: f64,
}

impl JoinableRequest for KeyRequest {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

impl KeyRequest {
    pub(super) fn new(key: &str, owner: &str, term: f64) -> Self {
        Self { key: key.as_bytes().to_vec(), owner: owner.to_owned(), term }
    }
}

/// An answer; `None` if the full statement is necessary.
type JoinedAnswer<T> = Result<Option<T>, StoreError>;

/// The requests of a runtime.
pub(super) struct JoinedRequests {
    pub(super) pool: ConnectionPool,
    acquires: Arc<RequestJoiner<KeyRequest, JoinedAnswer<LeaseOutcome>>>,
    releases: Arc<RequestJoiner<KeyRequest, JoinedAnswer<ReleaseOutcome>>>,
}

impl JoinedRequests {
    pub(super) fn new(pool: ConnectionPool) -> Self {
        Self { pool, acquires: RequestJoiner::new(LIMITS), releases: RequestJoiner::new(LIMITS) }
    }

    /// Acquires a lock whose key has no row.
    pub(super) async fn acquire_free(&self, request: KeyRequest) -> JoinedAnswer<LeaseOutcome> {
        let send = |requests: Vec<KeyRequest>| async move {
            self.send(&requests, LockStatement::AcquireFree, LockStatement::AcquireAllFree, granted)
                .await
        };
        self.acquires.join(request, send).await.unwrap_or_else(unanswered)
    }

    /// Releases a lock on whose row nobody else works.
    pub(super) async fn release_idle(&self, request: KeyRequest) -> JoinedAnswer<ReleaseOutcome> {
        let send = |requests: Vec<KeyRequest>| async move {
            self.send(&requests, LockStatement::ReleaseIdle, LockStatement::ReleaseAllIdle, freed)
                .await
        };
        self.releases.join(request, send).await.unwrap_or_else(unanswered)
    }

    /// The answers to requests, in their order.
    async fn send<T>(
        &self,
        requests: &[KeyRequest],
        one: LockStatement,
        all: LockStatement,
        answer: fn(&Row) -> Option<T>,
    ) -> Vec<JoinedAnswer<T>> {
        let send_one = async |request: &KeyRequest| {
            let KeyRequest { key, owner, term } = request;
            let parameters: [Parameter<'_>; 3] =
                [(key, Type::BYTEA), (owner, Type::TEXT), (term, Type::FLOAT8)];
            let rows = self.pool.repeat(one, &parameters[..one.parameters()]).await?;
            Ok(rows.first().and_then(answer))
        };
        if let [request] = requests {
            return vec![send_one(request).await];
        }
        let keys: Vec<_> = requests.iter().map(|request| &request.key).collect();
        let owners: Vec<_> = requests.iter().map(|request| &request.owner).collect();
        let terms: Vec<_> = requests.iter().map(|request| request.term).collect();
        let parameters: [Parameter<'_>; 3] =
            [(&keys, Type::BYTEA_ARRAY), (&owners, Type::TEXT_ARRAY), (&terms, Type::FLOAT8_ARRAY)];
        match self.pool.repeat(all, &parameters[..all.parameters()]).await {
            Ok(rows) if rows.len() == requests.len() => {
                rows.iter().map(|row| Ok(answer(row))).collect()
            }
            Ok(_) => requests.iter().map(|_| unanswered()).collect(),
            // It had no effect, perhaps because of one of the requests.
            Err(StoreError::Refused(_)) => join_all(requests.iter().map(send_one)).await,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}

/// The request with which it was sent was given up.
fn unanswered<T>() -> JoinedAnswer<T> {
    Err(StoreError::Unknown("no answer".to_owned()))
}

fn granted(row: &Row) -> Option<LeaseOutcome> {
    match (row.get::<_, Option<i64>>(0), row.get::<_, Option<f64>>(1)) {
        (Some(fence), _) => Some(LeaseOutcome::Granted { fence: u64::try_from(fence).ok() }),
        (None, left) => left.map(busy),
    }
}

fn freed(row: &Row) -> Option<ReleaseOutcome> {
    let is_live: bool = row.get::<_, Option<bool>>(0)?;
    if !is_live {
        return Some(ReleaseOutcome::Gone);
    }
    Some(ReleaseOutcome::Freed { waiting: Some(usize::from(row.get::<_, bool>(1))) })
}
