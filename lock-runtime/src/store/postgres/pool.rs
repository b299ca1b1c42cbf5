//! The connections of a client to PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{Mutex, OnceCell, OwnedMutexGuard};
use tokio::task::AbortHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

use super::connector::{DatabaseConnector, OpenedConnection};
use super::errors;
use super::primary::{ConnectionEpoch, PrimaryServer};
use super::statements::{LockStatement, PLAN};
use super::switches::{guarded, is_whole};
use crate::store::store_error::StoreError;

/// A parameter of a statement.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The connection of a slot, unless none was opened.
type PoolSlot = Arc<Mutex<Option<Arc<PooledConnection>>>>;

/// Connections that are opened when they are first needed, and again after they were lost. Requests share them: PostgreSQL
/// serves the requests of one connection in their order.
pub(super) struct ConnectionPool {
    connector: DatabaseConnector,
    slots: Vec<PoolSlot>,
    next: AtomicUsize,
    /// The slot that the next request uses, whose last request had no answer; [`NO_SLOT`] otherwise. To open its connection
    /// again shows whether another server is the primary one now, so that not every connection has to find that out.
    suspect: Arc<AtomicUsize>,
}

const NO_SLOT: usize = usize::MAX;

struct PooledConnection {
    client: Client,
    /// Whether it prepares statements: it leads to the server itself.
    prepares: AtomicBool,
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

    /// Executes a statement about locks. Planning one takes longer than executing it.
    async fn execute(
        &self,
        statement: LockStatement,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        let text = guarded(statement.text());
        if !self.prepares.load(Ordering::Relaxed) || !is_whole(statement.text()) {
            return self.client.query_typed(text, parameters).await;
        }
        let prepare = async || {
            let types: Vec<Type> = parameters.iter().map(|(_, of)| of.clone()).collect();
            // One round trip.
            let planned = tokio::try_join!(
                self.client.batch_execute(PLAN),
                self.client.prepare_typed(text, &types)
            );
            planned.map(|((), prepared)| prepared)
        };
        let executed = async {
            let prepared = self.prepared[statement as usize].get_or_try_init(prepare).await?;
            let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
            self.client.query(prepared, &values).await
        };
        match executed.await {
            Err(error) if errors::is_of_preparation(&error) => {
                // It had no effect.
                self.prepares.store(false, Ordering::Relaxed);
                self.client.query_typed(text, parameters).await
            }
            answer => answer,
        }
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
        Self { connector, slots, next: AtomicUsize::new(0), suspect }
    }

    /// The rows of a statement about locks, over one of the connections.
    ///
    /// The future may be dropped: the statement may be served nevertheless.
    pub(super) async fn repeat(
        &self,
        statement: LockStatement,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let connection = self.connection().await?;
        connection.answer(connection.execute(statement, parameters)).await
    }

    /// The rows of a statement that is rarely needed. The same as [`repeat`](Self::repeat) otherwise.
    pub(super) async fn query(
        &self,
        statement: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let connection = self.connection().await?;
        connection.answer(connection.client.query_typed(guarded(statement), parameters)).await
    }

    /// Runs statements without parameters in one transaction. The same as [`repeat`](Self::repeat) otherwise.
    pub(super) async fn execute(&self, statements: &str) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        connection.answer(connection.client.batch_execute(statements)).await
    }

    /// The only row of a statement about locks.
    pub(super) async fn row(
        &self,
        statement: LockStatement,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, StoreError> {
        let rows = self.repeat(statement, parameters).await?;
        rows.into_iter().next().ok_or_else(|| StoreError::Unknown("no answer".to_owned()))
    }

    /// The next connection.
    async fn connection(&self) -> Result<Arc<PooledConnection>, StoreError> {
        let number = match self.suspect.load(Ordering::Relaxed) {
            NO_SLOT => NO_SLOT,
            _ => self.suspect.swap(NO_SLOT, Ordering::Relaxed),
        };
        let number = match number {
            NO_SLOT => self.next.fetch_add(1, Ordering::Relaxed) % self.slots.len(),
            suspect => suspect,
        };
        // Other requests wait for the connection that this one opens.
        let mut slot = Arc::clone(&self.slots[number]).lock_owned().await;
        if let Some(connection) = slot.as_ref().filter(|connection| connection.is_usable()) {
            return Ok(Arc::clone(connection));
        }
        *slot = None;
        // Goes on if this request is given up: to reach the second host may take longer than one request.
        let place = PoolPlace { slot: number, suspect: Arc::clone(&self.suspect) };
        let opening = tokio::spawn(open(self.connector.clone(), slot, place));
        opening
            .await
            .unwrap_or_else(|_| Err(StoreError::Refused("the client has ended".to_owned())))
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
