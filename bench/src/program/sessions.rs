//! A pool of sessions of PostgreSQL, with one for each task that uses it at the same time.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio_postgres::{Client, Config, NoTls, Statement};

#[derive(Clone)]
pub(super) struct Sessions {
    config: Arc<Config>,
    /// What each session prepares: the statements that acquire and release a lock.
    statements: [&'static str; 2],
    idle: Arc<Mutex<Vec<Session>>>,
}

/// A connection with its prepared statements.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) acquire: Statement,
    pub(super) release: Statement,
}

impl Sessions {
    pub(super) fn new(url: &str, statements: [&'static str; 2]) -> Result<Self> {
        Ok(Self { config: Arc::new(url.parse()?), statements, idle: Arc::default() })
    }

    /// A session that nobody else uses.
    pub(super) async fn take(&self) -> Result<Session> {
        match self.idle() {
            Some(session) => Ok(session),
            None => self.open().await,
        }
    }

    pub(super) fn give_back(&self, session: Session) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }

    fn idle(&self) -> Option<Session> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended are dropped here.
        std::iter::from_fn(|| idle.pop()).find(|session| !session.client.is_closed())
    }

    async fn open(&self) -> Result<Session> {
        let (client, connection) = self.config.connect(NoTls).await?;
        tokio::spawn(connection);
        let [acquire, release] = self.statements;
        let (acquire, release) = (client.prepare(acquire).await?, client.prepare(release).await?);
        Ok(Session { client, acquire, release })
    }
}
