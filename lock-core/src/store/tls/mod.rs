//! TLS: the configuration of a client, and the explanation of failed handshakes.
//!
//! The libraries of the servers would read the certificates of the operating system before every connection, which takes
//! milliseconds. Here, a client reads all certificates once, and again only if a file has changed.

mod certificates;
mod explain;
mod verification;

use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tracing::Level;

use self::certificates::{FileState, read};
pub use self::explain::{config_error, permanent, speaks_no_tls};
pub use self::verification::Verification;
use crate::error::LockError;
use crate::events;
use crate::store::per_runtime::PerRuntime;
use crate::store::store_error::StoreError;
use crate::sync::{Mutex, lock};
use crate::tls::TlsOptions;

/// The TLS configuration of a client.
pub struct Tls {
    options: TlsOptions,
    server_name: Option<ServerName<'static>>,
    /// What has to be true of the certificate of a server.
    verification: Verification,
    /// What was read from the files.
    loaded: Mutex<Option<Loaded>>,
    /// Locked while the files are read, so that files that cannot be read, such as those of a
    /// network that hangs, block one thread of each runtime at most.
    reading: PerRuntime<Arc<tokio::sync::Mutex<()>>>,
}

struct Loaded {
    config: Arc<ClientConfig>,
    /// The states of the files that were read.
    files: Vec<FileState>,
    /// The states of the files that could not be read later. The log has said so.
    failed: Vec<FileState>,
}

impl Tls {
    /// Checks the options. Reads no files.
    pub fn new(options: TlsOptions) -> Result<Self, LockError> {
        let error = |problem: &str| LockError::config("tls", problem);
        if options.certificate.is_some() != options.key.is_some() {
            return Err(error(
                "a client certificate needs two files: give both `tls_cert` and `tls_key`",
            ));
        }
        if options.config.is_some() && (options.ca.is_some() || options.certificate.is_some()) {
            return Err(error(
                "a rustls configuration cannot be combined with files; name the certificates in \
                 the configuration",
            ));
        }
        let server_name = match &options.server_name {
            None => None,
            Some(name) => Some(ServerName::try_from(name.clone()).map_err(|_| {
                error("`tls_server_name` is neither a host name nor an IP address")
            })?),
        };
        let (loaded, reading) = (Mutex::default(), PerRuntime::default());
        Ok(Self { options, server_name, verification: Verification::Full, loaded, reading })
    }

    /// The same, but requires less of the certificates of servers.
    pub fn verify(self, verification: Verification) -> Self {
        Self { verification, ..self }
    }

    /// The name that the certificate of the server at `host` must be valid for.
    pub fn name_of(&self, host: &str) -> Result<ServerName<'static>, StoreError> {
        if let Some(name) = &self.server_name {
            return Ok(name.clone());
        }
        ServerName::try_from(host.to_owned()).map_err(|_| {
            config_error("url", "its host is neither a valid host name nor an IP address".into())
        })
    }

    /// The current configuration. Reads files that are new or have changed.
    pub async fn config(self: &Arc<Self>) -> Result<Arc<ClientConfig>, StoreError> {
        if let Some(config) = &self.options.config {
            return Ok(Arc::clone(config));
        }
        let (tls, reading) = (Arc::clone(self), self.reading.here(Arc::default).lock_owned().await);
        let load = spawn_blocking(move || {
            let _reading = reading;
            tls.load()
        });
        load.await.map_err(|_| StoreError::Refused("the runtime is shutting down".into()))?
    }

    fn load(&self) -> Result<Arc<ClientConfig>, StoreError> {
        let TlsOptions { ca, certificate, key, .. } = &self.options;
        let files = [ca, certificate, key].into_iter().flatten();
        let files: Vec<FileState> = files.map(|path| FileState::of(path)).collect();
        let is_current = |loaded: &&Loaded| loaded.files == files;
        if let Some(loaded) = lock(&self.loaded).as_ref().filter(is_current) {
            return Ok(Arc::clone(&loaded.config));
        }
        let read = read(&self.options, self.verification);
        let mut loaded = lock(&self.loaded);
        match (read, &mut *loaded) {
            (Ok(config), _) => {
                let config = Arc::new(config);
                let failed = Vec::new();
                *loaded = Some(Loaded { config: Arc::clone(&config), files, failed });
                Ok(config)
            }
            (Err(problem), None) => Err(config_error("tls", problem)),
            // The next connection tries again.
            (Err(problem), Some(earlier)) => {
                if earlier.failed != files {
                    earlier.failed = files;
                    events::emit(Level::WARN, move || {
                        tracing::warn!(
                            target: "lock_runtime::store",
                            problem,
                            "cannot read the changed TLS certificates; the earlier ones stay in use"
                        );
                    });
                }
                Ok(Arc::clone(&earlier.config))
            }
        }
    }
}
