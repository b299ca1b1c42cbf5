//! Where the locks of a client are.

use std::sync::Arc;

use super::LockClientBuilder;
#[cfg(feature = "store")]
use crate::client::LockClient;
use crate::error::LockError;
#[cfg(feature = "store")]
use crate::store::Store;
use crate::store::contract::Backend;
use crate::store::{Settings, open};

impl LockClientBuilder {
    /// Whether it is known where the locks are to be.
    pub(super) fn check_source(&self) -> Result<(), LockError> {
        #[cfg(feature = "store")]
        match (&self.store, &self.url) {
            (Some(_), Some(_)) => {
                let problem = "both a URL and a store were given; remove one of them".into();
                return Err(LockError::Config { option: "store", problem });
            }
            (Some(_), None) => return Ok(()),
            (None, _) => {}
        }
        if self.url.is_none() {
            let problem = "no URL was given; use `memory:` to run without a server".into();
            return Err(LockError::Config { option: "url", problem });
        }
        Ok(())
    }

    pub(super) fn open(&self, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
        #[cfg(feature = "store")]
        if let Some(store) = &self.store {
            return store.open(settings.response_timeout);
        }
        open(self.url.as_deref().unwrap_or_default(), settings)
    }
}

#[cfg(feature = "store")]
impl LockClient {
    /// Connects to a custom store, with the default settings. See [`LockClientBuilder::store`].
    ///
    /// # Errors
    ///
    /// * [`LockError::Config`]: the store says that a setting is invalid, there is no tokio runtime with timers here, or its
    ///   time is paused.
    /// * [`LockError::Unavailable`]: the store cannot be reached, has not connected within 5 s, or has panicked, or the
    ///   client's threads cannot be started.
    /// * [`LockError::Denied`]: the store says so.
    pub async fn with_store(store: impl Store) -> Result<Self, LockError> {
        Self::builder().store(store).connect().await
    }
}

#[cfg(feature = "store")]
impl LockClientBuilder {
    /// Whether the store is one that connects with its first request. A custom store does not.
    pub(super) fn check_lazy(&self) -> Result<(), LockError> {
        if self.store.is_none() {
            return Ok(());
        }
        let problem = "a custom store connects before its first request; use `connect`".into();
        Err(LockError::Config { option: "store", problem })
    }

    /// Keeps the locks in a custom store, instead of one that a URL names: see [`store`](crate::store).
    ///
    /// The store is called on a thread of the client, and connects when the client does. `credentials`, `tls`,
    /// `quarantine`, `tracking` and the address map are for servers that are named by URLs, and have no effect. Clones of the
    /// builder share the store. [`connect_lazy`](Self::connect_lazy) returns [`LockError::Config`].
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(Arc::new(store)));
        self
    }
}
