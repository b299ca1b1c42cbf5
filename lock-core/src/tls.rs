//! The TLS settings of a client.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::ClientConfig;

/// How a client connects to servers over TLS: with `rediss://`, `etcds://` and PostgreSQL. Needs the feature `tls`.
///
/// By default, a server's certificate must have been issued by an authority that the operating
/// system trusts, for the host name of the URL. Certificates are always verified.
///
/// The same options can be given in the URL instead, as `tls_ca`, `tls_cert`, `tls_key` and
/// `tls_server_name`: `rediss://cache:6379?tls_ca=/etc/ca.pem`.
///
/// The files are in PEM format, and private keys are not encrypted. They are read when the client
/// connects. Before each later connection, files that have changed are read again. If they cannot be
/// read then, the earlier certificates stay in use and a warning is logged. The authorities of the
/// operating system are read once per client.
///
/// # Examples
///
/// ```no_run
/// use lock_runtime::{LockClient, LockError, TlsOptions};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::builder()
///     .url("rediss://cache.internal:6379")
///     .tls(TlsOptions::new().ca_file("/etc/cache/ca.pem"))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct TlsOptions {
    #[doc(hidden)]
    pub ca: Option<PathBuf>,
    #[doc(hidden)]
    pub certificate: Option<PathBuf>,
    #[doc(hidden)]
    pub key: Option<PathBuf>,
    #[doc(hidden)]
    pub server_name: Option<String>,
    #[doc(hidden)]
    pub config: Option<Arc<ClientConfig>>,
}

impl TlsOptions {
    /// Trusts the authorities that the operating system trusts, and sends no client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// The file with the certificates of the trusted authorities, instead of the operating system's
    /// authorities.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_runtime::TlsOptions;
    /// // The same as the URL `rediss://cache:6379?tls_ca=/etc/cache/ca.pem`.
    /// let tls = TlsOptions::new().ca_file("/etc/cache/ca.pem");
    /// # let _ = tls;
    /// ```
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// The files with the client's certificate chain and with its private key, for servers that
    /// require them (`tls-auth-clients yes`).
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_runtime::TlsOptions;
    /// let tls = TlsOptions::new().client_certificate("client.pem", "client.key");
    /// # let _ = tls;
    /// ```
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.certificate = Some(certificate.into());
        self.key = Some(key.into());
        self
    }

    /// The name in the server's certificate, if it is not the host of the URL.
    ///
    /// # Examples
    ///
    /// ```
    /// # use lock_runtime::TlsOptions;
    /// // The URL contains an IP address, or the address of a tunnel.
    /// let tls = TlsOptions::new().server_name("cache.internal");
    /// # let _ = tls;
    /// ```
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    #[doc(hidden)]
    pub fn is_default(&self) -> bool {
        let Self { ca, certificate, key, server_name, config } = self;
        let files = [ca, certificate, key];
        files.iter().all(|file| file.is_none()) && server_name.is_none() && config.is_none()
    }
}

/// A configuration of rustls: for another cryptographic provider, other roots of trust, or
/// certificates that are not in files. [`TlsOptions::server_name`] can be combined with it; the
/// options that name files cannot.
///
/// The configuration is one of rustls 0.23. Its verifiers, resolvers and key log are called on the
/// threads that make connections, among them the thread that renews leases: they must not block.
///
/// # Examples
///
/// ```
/// # use tokio_rustls::rustls;
/// use lock_runtime::TlsOptions;
/// use rustls::{ClientConfig, RootCertStore};
/// use std::sync::Arc;
///
/// # fn main() -> Result<(), rustls::Error> {
/// let roots = RootCertStore::empty();
/// // … `roots.add(certificate)`, for each authority that is trusted
/// let provider = Arc::new(rustls::crypto::ring::default_provider());
/// let config = ClientConfig::builder_with_provider(provider)
///     .with_safe_default_protocol_versions()?
///     .with_root_certificates(roots)
///     .with_no_client_auth();
/// let tls = TlsOptions::from(Arc::new(config)).server_name("cache.internal");
/// # let _ = tls;
/// # Ok(())
/// # }
/// ```
impl From<Arc<ClientConfig>> for TlsOptions {
    fn from(config: Arc<ClientConfig>) -> Self {
        Self { config: Some(config), ..Self::default() }
    }
}

/// Without the configuration, which may contain a private key.
impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ca, certificate, key, server_name, config } = self;
        f.debug_struct("TlsOptions")
            .field("ca", ca)
            .field("certificate", certificate)
            .field("key", key)
            .field("server_name", server_name)
            .field("config", &config.as_ref().map(|_| "…"))
            .finish()
    }
}
