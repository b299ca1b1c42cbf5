//! One server: its address, and how to log in. Neither credentials nor keys are ever shown.

use std::fmt;
#[cfg(unix)]
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::login::Login;
#[cfg(feature = "tls")]
use super::tls::Tls;

pub(super) struct Endpoint {
    address: Address,
    /// The address in one line, for messages.
    shown: String,
    login: Arc<Login>,
    /// Set by the first successful login.
    has_worked: AtomicBool,
    #[cfg(feature = "tls")]
    tls: Option<Arc<Tls>>,
}

#[derive(Debug)]
pub(super) enum Address {
    Tcp {
        host: String,
        port: u16,
    },
    #[cfg(unix)]
    Unix(PathBuf),
}

impl Endpoint {
    pub(super) fn new(address: Address, shown: String, login: Login) -> Self {
        Self {
            address,
            shown,
            login: Arc::new(login),
            has_worked: AtomicBool::new(false),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// The same server, over TLS.
    #[cfg(feature = "tls")]
    pub(super) fn with_tls(self, tls: Arc<Tls>) -> Self {
        Self { tls: Some(tls), ..self }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Host and port, or the path of the socket.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// How to log in.
    pub(super) fn login(&self) -> &Arc<Login> {
        &self.login
    }

    #[cfg(feature = "tls")]
    pub(super) fn tls(&self) -> Option<&Arc<Tls>> {
        self.tls.as_ref()
    }

    /// Records a successful login.
    pub(super) fn worked(&self) {
        self.has_worked.store(true, Ordering::Relaxed);
    }

    /// Whether a login has ever succeeded, so that the URL fits the server.
    pub(super) fn has_worked(&self) -> bool {
        self.has_worked.load(Ordering::Relaxed)
    }

    /// Host and port, unless connections use TLS or a Unix socket.
    pub(super) fn plain_tcp(&self) -> Option<(&str, u16)> {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return None;
        }
        match &self.address {
            Address::Tcp { host, port } => Some((host, *port)),
            #[cfg(unix)]
            Address::Unix(_) => None,
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.shown).finish()
    }
}
