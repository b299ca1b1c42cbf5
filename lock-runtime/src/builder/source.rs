//! Where the locks of a client are.

use std::sync::Arc;

use super::LockClientBuilder;
#[cfg(feature = "store")]
use crate::client::LockClient;
use crate::error::LockError;
use crate::store::contract::Backend;
#[cfg(feature = "store")]
use crate::store::contract::OpenStore;
use crate::store::{Settings, StoreAddress, open};

/// Where the locks of a client are.
pub(crate) enum StoreSource {
    Address(StoreAddress),
    #[cfg(feature = "store")]
    Custom(Arc<dyn OpenStore>),
}

impl StoreSource {
    pub(crate) fn open(&self, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
        match self {
            Self::Address(address) => open(address, settings),
            #[cfg(feature = "store")]
            Self::Custom(store) => store.open(settings),
        }
    }
}

impl LockClientBuilder {
    /// Where the locks are to be. A quorum also gets the settings that it needs.
    pub(super) fn source(&mut self) -> Result<StoreSource, LockError> {
        let (url, quorum) = (self.url.take(), self.quorum.take());
        #[cfg(feature = "store")]
        if let Some(store) = self.store.take() {
            if url.is_some() || quorum.is_some() {
                let problem = "both a store and URLs were given; remove one of them";
                return Err(LockError::config("store", problem));
            }
            return Ok(StoreSource::Custom(store));
        }
        let address = match (url, quorum) {
            (Some(url), None) => StoreAddress::Url(url),
            (None, Some(urls)) => StoreAddress::Quorum(urls),
            (Some(_), Some(_)) => {
                let problem = "a URL was given as well; choose one";
                return Err(LockError::config("quorum", problem));
            }
            (None, None) => {
                let problem = "no URL was given; use `memory:` to run without a server";
                return Err(LockError::config("url", problem));
            }
        };
        if address.is_quorum() {
            self.prepare_votes()?;
        }
        Ok(StoreSource::Address(address))
    }
}

#[cfg(feature = "store")]
impl LockClient {
    /// Connects to a custom store, with the default settings. See [`LockClientBuilder::store`].
    ///
    /// # Errors
    ///
    /// Those of the store, and:
    ///
    /// * [`LockError::Config`]: there is no tokio runtime with timers here, or its time is paused.
    /// * [`LockError::Unavailable`]: the client's threads cannot be started. A store that uses
    ///   [`runner`](crate::store::runner) has not connected within 5 s, or has panicked.
    pub async fn with_store(store: impl OpenStore) -> Result<Self, LockError> {
        Self::builder().store(store).connect().await
    }
}

#[cfg(feature = "store")]
impl LockClientBuilder {
    /// Whether the store is one that connects with its first request. A custom store does not.
    pub(super) fn check_lazy(&self) -> Result<(), LockError> {
        let scheme = self.url.as_deref().and_then(|url| Some(url.trim().split_once(':')?.0));
        let option = match scheme {
            Some("etcd" | "etcds") if cfg!(feature = "etcd") => "url",
            Some("postgres" | "postgresql") if cfg!(feature = "postgres") => "url",
            _ if self.store.is_some() => "store",
            _ => return Ok(()),
        };
        let problem = "this store connects before its first request; use `connect`";
        Err(LockError::config(option, problem))
    }

    /// Keeps the locks where those of another client are.
    pub(crate) fn from(mut self, source: &StoreSource) -> Self {
        match source {
            StoreSource::Address(StoreAddress::Url(url)) => self.url = Some(url.clone()),
            StoreSource::Address(StoreAddress::Quorum(urls)) => self.quorum = Some(urls.clone()),
            StoreSource::Custom(store) => self.store = Some(Arc::clone(store)),
        }
        self
    }

    /// Keeps the locks in a custom store, instead of one that a URL names: see [`store`](crate::store).
    ///
    /// Each client opens the store with its own settings, and connects it. Clones of the builder share the store.
    /// [`connect_lazy`](Self::connect_lazy) returns [`LockError::Config`].
    pub fn store(mut self, store: impl OpenStore) -> Self {
        self.store = Some(Arc::new(store));
        self
    }
}
