//! Sockets with TLS.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{error, probe};
use lock_core::store::contract::StoreError;
use lock_core::store::tls::{Tls, config_error, permanent, speaks_no_tls};

/// How long a handshake may take before the server is suspected not to use TLS.
const SLOW_HANDSHAKE: Duration = Duration::from_millis(500);

/// The server of a handshake.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TlsServer<'a> {
    pub(crate) host: &'a str,
    /// The address, for messages.
    pub(crate) shown: &'a str,
    /// Whether it has used TLS before.
    pub(crate) uses_tls: bool,
}

/// A socket with TLS.
pub(crate) struct SecureSocket {
    pub(crate) stream: TlsStream<TcpStream>,
    /// The server's address, for messages.
    server: String,
    has_certificate: bool,
}

impl SecureSocket {
    /// Makes the handshake over `socket`. If the server does not answer, checks whether it uses TLS
    /// at all.
    pub(crate) async fn connect(
        tls: &Arc<Tls>,
        server: TlsServer<'_>,
        socket: TcpStream,
    ) -> Result<Self, StoreError> {
        let TlsServer { host, shown: server, uses_tls } = server;
        let config = tls.config().await?;
        let has_certificate = config.client_auth_cert_resolver.has_certs();
        let address = socket.peer_addr().ok().filter(|_| !uses_tls);
        let handshake = TlsConnector::from(config).connect(tls.name_of(host)?, socket);
        let plain = async {
            let Some(address) = address else { return std::future::pending().await };
            sleep(SLOW_HANDSHAKE).await;
            if !probe::is_plain(address).await {
                std::future::pending::<()>().await;
            }
        };
        let handshake = tokio::select! {
            handshake = handshake => handshake,
            () = plain => return Err(config_error("url", speaks_no_tls(server))),
        };
        match handshake {
            Ok(stream) => Ok(Self { stream, server: server.to_owned(), has_certificate }),
            Err(error) => Err(permanent(&error, server, has_certificate)
                .unwrap_or_else(|| error::classify(&error.into()).error)),
        }
    }

    /// Explains an error that another attempt would meet as well.
    pub(crate) fn permanent(&self, error: &io::Error) -> Option<StoreError> {
        permanent(error, &self.server, self.has_certificate)
    }
}

impl fmt::Debug for SecureSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SecureSocket").field(&self.server).finish()
    }
}
