//! One server: its address, and how to connect to it. Neither credentials nor keys are ever shown.

use std::fmt;
#[cfg(unix)]
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::login::Login;
#[cfg(feature = "tls")]
use lock_core::store::tls::Tls;

/// How to connect to servers: the credentials, and whether to use TLS. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Access {
    login: Arc<Login>,
    /// What connections are called.
    name: Arc<str>,
    /// Set by the first successful login.
    has_worked: Arc<AtomicBool>,
    #[cfg(feature = "tls")]
    tls: Option<Arc<Tls>>,
}

impl Access {
    /// Without TLS. Connections have this name.
    pub(crate) fn new(login: Login, name: &str) -> Self {
        Self {
            login: Arc::new(login),
            name: name.into(),
            has_worked: Arc::default(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// The same credentials, over TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn with_tls(self, tls: Arc<Tls>) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Other credentials, with or without TLS as before.
    pub(crate) fn with_login(&self, login: Login) -> Self {
        let mut other = self.clone();
        (other.login, other.has_worked) = (Arc::new(login), Arc::default());
        other
    }

    /// Whether the program supplies the credentials.
    pub(crate) fn has_credentials_source(&self) -> bool {
        self.login.has_source()
    }
}

pub(crate) struct Endpoint {
    address: Address,
    /// The address in one line, for messages.
    shown: String,
    access: Access,
    /// The name that its certificate has to be valid for, if that is not the host.
    tls_name: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp {
        host: String,
        port: u16,
    },
    #[cfg(unix)]
    Unix(PathBuf),
}

impl Endpoint {
    pub(crate) fn new(address: Address, shown: String, access: Access) -> Self {
        Self { address, shown, access, tls_name: None }
    }

    /// A server at a TCP address.
    pub(crate) fn tcp(host: &str, port: u16, access: Access) -> Self {
        Self::new(Address::Tcp { host: host.to_owned(), port }, shown(host, port), access)
    }

    /// The same server, whose certificate is valid for this name.
    pub(crate) fn with_tls_name(self, tls_name: Option<String>) -> Self {
        Self { tls_name, ..self }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Host and port, or the path of the socket.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// What connections are called.
    pub(crate) fn connection_name(&self) -> &str {
        &self.access.name
    }

    /// How to log in.
    pub(crate) fn login(&self) -> &Arc<Login> {
        &self.access.login
    }

    /// The name that its certificate has to be valid for, if that is not the host.
    pub(crate) fn tls_name(&self) -> Option<&str> {
        self.tls_name.as_deref()
    }

    #[cfg(feature = "tls")]
    pub(crate) fn tls(&self) -> Option<&Arc<Tls>> {
        self.access.tls.as_ref()
    }

    /// Records a successful login.
    pub(crate) fn worked(&self) {
        self.access.has_worked.store(true, Ordering::Relaxed);
    }

    /// Whether a login has ever succeeded, so that the URL fits the server.
    pub(crate) fn has_worked(&self) -> bool {
        self.access.has_worked.load(Ordering::Relaxed)
    }

    /// Host and port, unless connections use TLS or a Unix socket.
    pub(crate) fn plain_tcp(&self) -> Option<(&str, u16)> {
        #[cfg(feature = "tls")]
        if self.tls().is_some() {
            return None;
        }
        match &self.address {
            Address::Tcp { host, port } => Some((host, *port)),
            #[cfg(unix)]
            Address::Unix(_) => None,
        }
    }
}

/// A TCP address for messages.
pub(crate) fn shown(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.shown).finish()
    }
}
