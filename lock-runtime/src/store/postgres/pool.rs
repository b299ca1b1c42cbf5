//! The connections of a client to PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Mutex;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};

use super::errors;
use crate::store::store_error::StoreError;

/// A parameter of a statement.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Connections that are opened when they are first needed, and again after they were lost. Requests share them: PostgreSQL
/// serves the requests of one connection in their order.
pub(super) struct ConnectionPool {
    config: Config,
    slots: Vec<Mutex<Option<Arc<Client>>>>,
    next: AtomicUsize,
}

impl ConnectionPool {
    pub(super) fn new(config: Config, size: usize) -> Self {
        let slots = (0..size).map(|_| Mutex::new(None)).collect();
        Self { config, slots, next: AtomicUsize::new(0) }
    }

    /// The rows of a statement, over one of the connections.
    pub(super) async fn query(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let slot = self.next.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        let client = self.client(slot).await?;
        // Not prepared: a pooler may use another connection to the server for the next request.
        match client.query_typed(statement, parameters).await {
            Ok(rows) => Ok(rows),
            Err(error) => {
                if errors::ends_connection(&error) {
                    self.give_up(slot, &client).await;
                }
                Err(errors::of_request(&error))
            }
        }
    }

    /// The only row of a statement.
    pub(super) async fn row(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, StoreError> {
        let rows = self.query(statement, parameters).await?;
        rows.into_iter().next().ok_or_else(|| StoreError::Unknown("no answer".to_owned()))
    }

    async fn client(&self, slot: usize) -> Result<Arc<Client>, StoreError> {
        // Other requests wait for the connection that this one opens.
        let mut slot = self.slots[slot].lock().await;
        if let Some(client) = slot.as_ref().filter(|client| !client.is_closed()) {
            return Ok(Arc::clone(client));
        }
        *slot = None;
        let opened = self.config.connect(NoTls).await;
        let (client, connection) = opened.map_err(|error| errors::of_connection(&error))?;
        // Ends with the connection, or when the client is dropped.
        tokio::spawn(connection);
        let client = Arc::new(client);
        *slot = Some(Arc::clone(&client));
        Ok(client)
    }

    async fn give_up(&self, slot: usize, client: &Arc<Client>) {
        let mut slot = self.slots[slot].lock().await;
        if slot.as_ref().is_some_and(|current| Arc::ptr_eq(current, client)) {
            *slot = None;
        }
    }
}
