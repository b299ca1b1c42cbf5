//! Connections with TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use lock_core::store::tls::Tls;

/// Makes the handshakes of one connection.
pub(super) struct Handshakes(Option<(Arc<Tls>, Arc<ClientConfig>)>);

impl Handshakes {
    pub(super) fn new(tls: Arc<Tls>, config: Arc<ClientConfig>) -> Self {
        Self(Some((tls, config)))
    }

    /// For a connection that uses no TLS.
    pub(super) fn none() -> Self {
        Self(None)
    }
}

/// A handshake with a server of this name.
pub(super) struct Handshake(Option<(TlsConnector, ServerName<'static>)>);

impl MakeTlsConnect<Socket> for Handshakes {
    type Stream = SecureStream;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, io::Error> {
        // A socket in the file system has no name, and uses no TLS.
        let Some((tls, config)) = self.0.as_ref().filter(|_| !host.is_empty()) else {
            return Ok(Handshake(None));
        };
        let name = tls.name_of(host).map_err(io::Error::other)?;
        Ok(Handshake(Some((TlsConnector::from(Arc::clone(config)), name))))
    }
}

impl TlsConnect<Socket> for Handshake {
    type Stream = SecureStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<SecureStream, io::Error>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let Some((connector, name)) = self.0 else {
                return Err(io::Error::other("the connection uses no TLS"));
            };
            Ok(SecureStream(Box::new(connector.connect(name, socket).await?)))
        })
    }
}

/// A socket with TLS.
pub(super) struct SecureStream(Box<tokio_rustls::client::TlsStream<Socket>>);

impl TlsStream for SecureStream {
    /// Needs the algorithm of the signature of the certificate, which rustls does not tell. `channel_binding=require`
    /// is refused.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for SecureStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for SecureStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
