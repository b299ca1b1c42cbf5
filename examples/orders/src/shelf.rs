//! The shop's storage: named values that are read and written one at a time.

use std::collections::HashMap;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;

/// Does not protect a read followed by a write against concurrent writers.
#[derive(Clone)]
pub(crate) enum Shelf {
    Memory(Arc<Mutex<HashMap<String, String>>>),
    Redis(MultiplexedConnection),
}

/// The storage could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("the shop's storage is unavailable: {0}")]
pub(crate) struct ShelfError(#[from] redis::RedisError);

impl Shelf {
    /// Opens the storage at the URL that the lock client also uses.
    pub(crate) async fn open(url: &str) -> Result<Self, ShelfError> {
        if url.starts_with("memory:") {
            return Ok(Self::Memory(Arc::default()));
        }
        Ok(Self::Redis(redis::Client::open(url)?.get_multiplexed_async_connection().await?))
    }

    pub(crate) async fn get(&self, name: &str) -> Result<Option<String>, ShelfError> {
        match self {
            Self::Memory(values) => Ok(values.lock().await.get(name).cloned()),
            Self::Redis(server) => {
                Ok(redis::cmd("GET").arg(name).query_async(&mut server.clone()).await?)
            }
        }
    }

    pub(crate) async fn set(&self, name: &str, value: String) -> Result<(), ShelfError> {
        match self {
            Self::Memory(values) => {
                values.lock().await.insert(name.to_owned(), value);
            }
            Self::Redis(server) => {
                redis::cmd("SET")
                    .arg(name)
                    .arg(value)
                    .query_async::<()>(&mut server.clone())
                    .await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn remove(&self, name: &str) -> Result<(), ShelfError> {
        match self {
            Self::Memory(values) => {
                values.lock().await.remove(name);
            }
            Self::Redis(server) => {
                redis::cmd("DEL").arg(name).query_async::<()>(&mut server.clone()).await?;
            }
        }
        Ok(())
    }
}
