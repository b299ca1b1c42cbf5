//! The connections of a client to PostgreSQL.
//!
//! By hand, because the pools of `deadpool-postgres` (0.14) and `bb8-postgres` (0.9) lend a connection to one caller at a time.
//! Here requests share one when there are more of them than connections, and a connection whose request had no answer is not
//! used again, although it is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, OnceCell, OwnedMutexGuard};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

use super::connector::{DatabaseConnector, OpenedConnection};
use super::errors;
use super::primary::{ConnectionEpoch, PrimaryServer};
use super::statements::LockStatement;
use super::switches::{guarded, is_whole};
use lock_core::store::store_error::StoreError;

/// A value of a parameter of a statement.
pub(super) type SqlValue<'a> = &'a (dyn ToSql + Sync);

/// The same, with its type.
pub(super) type Parameter<'a> = (SqlValue<'a>, Type);

/// The place of a connection.
#[derive(Default)]
struct PoolSlot {
    /// `None` unless a connection was opened.
    connection: Arc<Mutex<Option<Arc<PooledConnection>>>>,
    /// The number of requests that use the connection, or wait for it. To open it counts as well.
    requests: Arc<AtomicUsize>,
}

/// Connections that are opened when they are first needed, and again after they were lost. Requests share them if there are
/// more requests than connections: PostgreSQL serves the requests of one connection in their order.
pub(super) struct ConnectionPool {
    connector: DatabaseConnector,
    slots: Vec<PoolSlot>,
    /// The slot that the next request uses, whose last request had no answer; [`NO_SLOT`] otherwise. To open its connection
    /// again shows whether another server is the primary one now, so that not every connection has to find that out.
    suspect: Arc<AtomicUsize>,
}

const NO_SLOT: usize = usize::MAX;

struct PooledConnection {
    client: Client,
    /// Whether it prepares statements: it leads to the server itself.
    prepares: AtomicBool,
    /// What it tells the server before that.
    settings: String,
    /// The statements that it has prepared.
    prepared: [OnceCell<Statement>; LockStatement::COUNT],
    /// Reads and writes.
    task: AbortHandle,
    /// Whether the next request needs another connection, although this one is open: it is to a server that may not
    /// write, or a request had no answer in time, so that the server may be gone or frozen.
    is_suspect: AtomicBool,
    epoch: ConnectionEpoch,
    primary: Arc<PrimaryServer>,
    place: PoolPlace,
}

/// The place of a connection in its pool.
struct PoolPlace {
    slot: usize,
    suspect: Arc<AtomicUsize>,
}

impl PooledConnection {
    fn is_usable(&self) -> bool {
        !self.client.is_closed()
            && !self.is_suspect.load(Ordering::Relaxed)
            && self.primary.is_current(self.epoch)
    }

    /// Prepares a statement about locks, unless that was done: planning one takes longer than executing it. `None` if it is
    /// not prepared over this connection.
    async fn prepare(&self, statement: LockStatement) -> Result<Option<&Statement>, Error> {
        if !self.prepares.load(Ordering::Relaxed) || !is_whole(statement.text()) {
            return Ok(None);
        }
        let prepare = async || {
            let text = guarded(statement.text());
            // One round trip.
            let planned = tokio::try_join!(
                self.client.batch_execute(&self.settings),
                self.client.prepare_typed(text, statement.types())
            );
            planned.map(|((), prepared)| prepared)
        };
        match self.prepared[statement as usize].get_or_try_init(prepare).await {
            Err(error) if errors::is_of_preparation(&error) => {
                self.prepares.store(false, Ordering::Relaxed);
                Ok(None)
            }
            prepared => prepared.map(Some),
        }
    }

    /// Executes a statement about locks, again if it has had no effect because of other sessions: they have changed its
    /// rows, or if it `waits`, have locked them. Values without a parameter are not used.
    async fn execute(
        &self,
        statement: LockStatement,
        values: &[SqlValue<'_>],
        waits: bool,
    ) -> Result<Vec<Row>, Error> {
        loop {
            match self.execute_once(statement, values).await {
                Err(error) if errors::is_of_others(&error, waits) => {
                    sleep(Duration::from_millis(fastrand::u64(1..20))).await;
                }
                executed => return executed,
            }
        }
    }

    async fn execute_once(
        &self,
        statement: LockStatement,
        values: &[SqlValue<'_>],
    ) -> Result<Vec<Row>, Error> {
        let types = statement.types();
        let values = &values[..types.len().min(values.len())];
        if let Some(prepared) = self.prepare(statement).await? {
            match self.client.query(prepared, values).await {
                // It had no effect.
                Err(error) if errors::is_of_preparation(&error) => {
                    self.prepares.store(false, Ordering::Relaxed);
                }
                answer => return answer,
            }
        }
        let parameters: Vec<Parameter<'_>> =
            values.iter().copied().zip(types.iter().cloned()).collect();
        self.client.query_typed(guarded(statement.text()), &parameters).await
    }

    /// The answer to a request, which suspects the connection if there is none.
    async fn answer<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StoreError> {
        let mut unanswered = UnansweredStatement(Some(self));
        let answer = request.await;
        unanswered.0 = None;
        if !self.primary.is_current(self.epoch) {
            let cause = "the answer is that of a former primary server".to_owned();
            return Err(StoreError::Unknown(cause));
        }
        answer.map_err(|error| {
            if errors::ends_connection(&error) {
                self.is_suspect.store(true, Ordering::Relaxed);
            }
            errors::of_request(&error)
        })
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        // It would wait for the answers of a server that may be gone.
        if self.is_suspect.load(Ordering::Relaxed) {
            self.task.abort();
        }
    }
}

/// Suspects a connection unless the request over it has an answer.
struct UnansweredStatement<'a>(Option<&'a PooledConnection>);

impl Drop for UnansweredStatement<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.0 {
            connection.is_suspect.store(true, Ordering::Relaxed);
            connection.place.suspect.store(connection.place.slot, Ordering::Relaxed);
        }
    }
}

impl ConnectionPool {
    pub(super) fn new(connector: DatabaseConnector, size: usize) -> Self {
        let slots = (0..size).map(|_| PoolSlot::default()).collect();
        let suspect = Arc::new(AtomicUsize::new(NO_SLOT));
        Self { connector, slots, suspect }
    }

    /// The rows of a statement about locks, over one of the connections.
    ///
    /// The future may be dropped: the statement may be served nevertheless.
    pub(super) async fn repeat(
        &self,
        statement: LockStatement,
        values: &[SqlValue<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let PoolTurn { connection, .. } = &self.turn().await?;
        connection.answer(connection.execute(statement, values, true)).await
    }

    /// The same, but the statement fails if other sessions have locked its row.
    pub(super) async fn execute_at_once(
        &self,
        statement: LockStatement,
        values: &[SqlValue<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let PoolTurn { connection, .. } = &self.turn().await?;
        connection.answer(connection.execute(statement, values, false)).await
    }

    /// A connection that has prepared a statement, so that it is sent at once.
    pub(super) async fn prepared(&self, statement: LockStatement) -> Result<PoolTurn, StoreError> {
        let turn = self.turn().await?;
        let prepared = turn.connection.answer(turn.connection.prepare(statement)).await;
        match prepared.map(drop) {
            Ok(()) => Ok(turn),
            // The statement was not sent.
            Err(StoreError::Unknown(cause)) => Err(StoreError::Refused(cause)),
            Err(error) => Err(error),
        }
    }

    /// The rows of a statement that is rarely needed. The same as [`repeat`](Self::repeat) otherwise.
    pub(super) async fn query(
        &self,
        statement: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let PoolTurn { connection, .. } = &self.turn().await?;
        connection.answer(connection.client.query_typed(guarded(statement), parameters)).await
    }

    /// Runs statements without parameters in one transaction. The same as [`repeat`](Self::repeat) otherwise.
    pub(super) async fn execute(&self, statements: &str) -> Result<(), StoreError> {
        let PoolTurn { connection, .. } = &self.turn().await?;
        connection.answer(connection.client.batch_execute(statements)).await
    }

    /// The only row of a statement about locks.
    pub(super) async fn row(
        &self,
        statement: LockStatement,
        values: &[SqlValue<'_>],
    ) -> Result<Row, StoreError> {
        let rows = self.repeat(statement, values).await?;
        rows.into_iter().next().ok_or_else(|| StoreError::Unknown("no answer".to_owned()))
    }

    /// The connection for the next request.
    async fn turn(&self) -> Result<PoolTurn, StoreError> {
        let number = match self.suspect.load(Ordering::Relaxed) {
            NO_SLOT => NO_SLOT,
            _ => self.suspect.swap(NO_SLOT, Ordering::Relaxed),
        };
        let number = if number == NO_SLOT { self.idlest() } else { number };
        let PoolSlot { connection, requests } = &self.slots[number];
        let request = PooledRequest::begin(requests);
        // Other requests wait for the connection that this one opens.
        let mut connection = Arc::clone(connection).lock_owned().await;
        if let Some(open) = connection.as_ref().filter(|open| open.is_usable()) {
            return Ok(PoolTurn { connection: Arc::clone(open), _request: request });
        }
        *connection = None;
        // Goes on if this request is given up: to reach the second host may take longer than one request.
        let place = PoolPlace { slot: number, suspect: Arc::clone(&self.suspect) };
        let (connector, opening) = (self.connector.clone(), PooledRequest::begin(requests));
        let opening = tokio::spawn(async move {
            let opened = open(connector, connection, place).await;
            drop(opening);
            opened
        });
        let opened = opening
            .await
            .unwrap_or_else(|_| Err(StoreError::Refused("the client has ended".to_owned())));
        Ok(PoolTurn { connection: opened?, _request: request })
    }

    /// The first of the slots with the fewest requests. So a client opens no more connections than it has requests at one
    /// time, and the server process behind the first one has what it needs in its caches.
    fn idlest(&self) -> usize {
        let requests = |&slot: &usize| self.slots[slot].requests.load(Ordering::Relaxed);
        (0..self.slots.len()).min_by_key(requests).unwrap_or_default()
    }
}

/// A connection for one request.
pub(super) struct PoolTurn {
    connection: Arc<PooledConnection>,
    _request: PooledRequest,
}

/// Why a statement about several locks has failed.
pub(super) struct StatementFailure {
    pub(super) error: StoreError,
    /// Whether that may be because of one of them. The statement had no effect then.
    pub(super) may_be_of_row: bool,
}

impl PoolTurn {
    /// The rows of a statement.
    pub(super) async fn rows(
        &self,
        statement: LockStatement,
        values: &[SqlValue<'_>],
    ) -> Result<Vec<Row>, StatementFailure> {
        let mut may_be_of_row = false;
        let executed = async {
            let waits = !statement.is_about_several();
            let executed = self.connection.execute(statement, values, waits).await;
            may_be_of_row = executed.as_ref().is_err_and(errors::may_be_of_row);
            executed
        };
        let answer = self.connection.answer(executed).await;
        answer.map_err(|error| StatementFailure { error, may_be_of_row })
    }
}

/// A request that uses a slot.
struct PooledRequest(Arc<AtomicUsize>);

impl PooledRequest {
    fn begin(requests: &Arc<AtomicUsize>) -> Self {
        requests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(requests))
    }
}

impl Drop for PooledRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn open(
    connector: DatabaseConnector,
    mut slot: OwnedMutexGuard<Option<Arc<PooledConnection>>>,
    place: PoolPlace,
) -> Result<Arc<PooledConnection>, StoreError> {
    let OpenedConnection { client, connection, epoch, is_direct } = connector.connect().await?;
    // Ends with the connection, or when the client is dropped.
    let task = tokio::spawn(connection).abort_handle();
    let opened = Arc::new(PooledConnection {
        client,
        prepares: AtomicBool::new(is_direct),
        settings: connector.session_settings(),
        prepared: Default::default(),
        task,
        is_suspect: AtomicBool::new(false),
        epoch,
        primary: connector.primary,
        place,
    });
    *slot = Some(Arc::clone(&opened));
    Ok(opened)
}
