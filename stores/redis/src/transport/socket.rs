//! A socket to a server: TCP, TLS, or a Unix socket.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};

use super::endpoint::{Address, Endpoint};
use super::error;
#[cfg(feature = "testing")]
use super::test_network;
#[cfg(feature = "tls")]
use super::tls::{SecureSocket, TlsServer};
use super::traffic::Traffic;
use lock_core::store::contract::StoreError;

/// The interval of TCP keep-alive probes. They keep routers from dropping an idle connection, and detect a dead one early.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Socket {
    transport: Transport,
    traffic: Arc<Traffic>,
}

#[derive(Debug)]
enum Transport {
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<SecureSocket>),
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
    #[cfg(feature = "testing")]
    Test(Box<dyn test_network::TestSocket>),
}

impl Socket {
    /// Connects, including the TLS handshake.
    pub(crate) async fn connect(
        endpoint: &Endpoint,
        traffic: Arc<Traffic>,
    ) -> Result<Self, StoreError> {
        let transport = Transport::connect(endpoint).await?;
        Ok(Self { transport, traffic })
    }
}

impl Transport {
    async fn connect(endpoint: &Endpoint) -> Result<Self, StoreError> {
        match endpoint.address() {
            Address::Tcp { host, port } => {
                #[cfg(feature = "testing")]
                if let Some(connect) = test_network::current() {
                    return Ok(Self::Test(connect(host, *port).await.map_err(failed)?));
                }
                let socket = connect(host, *port).await.map_err(failed)?;
                #[cfg(feature = "tls")]
                if let Some(tls) = endpoint.tls() {
                    let (shown, uses_tls) = (endpoint.shown(), endpoint.has_worked());
                    let host = endpoint.tls_name().unwrap_or(host);
                    let server = TlsServer { host, shown, uses_tls };
                    let secured = SecureSocket::connect(tls, server, socket).await?;
                    return Ok(Self::Tls(Box::new(secured)));
                }
                Ok(Self::Tcp(socket))
            }
            #[cfg(unix)]
            Address::Unix(path) => {
                Ok(Self::Unix(tokio::net::UnixStream::connect(path).await.map_err(failed)?))
            }
        }
    }
}

/// The error of an attempt to connect.
fn failed(error: io::Error) -> StoreError {
    error::classify(&error.into()).error
}

/// Connects to the first address of the host that accepts the connection.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in lookup_host((host, port)).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                let socket = SockRef::from(&stream);
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
                socket.set_tcp_keepalive(&keepalive.with_interval(KEEPALIVE))?;
                // Closing the socket resets the connection, so that unsent requests, whose callers
                // have given up, do not arrive later.
                socket.set_linger(Some(Duration::ZERO))?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Calls a method of the transport.
macro_rules! of_socket {
    ($stream:ident, $method:ident($($argument:expr),*)) => {
        match &mut $stream.transport {
            Transport::Tcp(socket) => Pin::new(socket).$method($($argument),*),
            #[cfg(feature = "tls")]
            Transport::Tls(tls) => Pin::new(&mut tls.stream).$method($($argument),*),
            #[cfg(unix)]
            Transport::Unix(socket) => Pin::new(socket).$method($($argument),*),
            #[cfg(feature = "testing")]
            Transport::Test(socket) => Pin::new(socket).$method($($argument),*),
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let before = buffer.filled().len();
        let read = of_socket!(stream, poll_read(cx, buffer));
        let arrived = &buffer.filled()[before..];
        if !arrived.is_empty() {
            stream.traffic.arrival();
        }
        #[cfg(feature = "tls")]
        if let (Poll::Ready(Err(error)), Transport::Tls(tls)) = (&read, &stream.transport) {
            // The connection was closed without the end of the TLS session, as after a crash. No
            // reply is cut unnoticed, because replies have boundaries of their own.
            if error.kind() == io::ErrorKind::UnexpectedEof {
                return Poll::Ready(Ok(()));
            }
            if let Some(problem) = tls.permanent(error) {
                stream.traffic.report(problem);
            }
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        of_socket!(stream, poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        of_socket!(stream, poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        of_socket!(stream, poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::transport::endpoint::Access;
    use crate::transport::login::Login;

    fn endpoint(port: u16) -> Endpoint {
        let login = Login::new(redis::RedisConnectionInfo::default(), None);
        Endpoint::tcp("localhost", port, Access::new(login, "test"))
    }

    async fn pair() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let endpoint = endpoint(port);
        let stream = Socket::connect(&endpoint, Arc::default());
        let (stream, accepted) = tokio::join!(stream, listener.accept());
        (stream.expect("loopback"), accepted.expect("loopback").0)
    }

    /// Writes a byte, and reads the answer that the peer writes after `pause`.
    async fn exchange(stream: &mut Socket, peer: &mut TcpStream, pause: Duration) {
        stream.write_all(b"a").await.expect("open");
        peer.read_u8().await.expect("it arrives");
        std::thread::sleep(pause);
        peer.write_u8(0).await.expect("open");
        stream.read_u8().await.expect("it arrives");
    }

    #[tokio::test]
    async fn a_dropped_connection_is_reset() {
        let (mut stream, mut peer) = pair().await;
        stream.write_all(b"a").await.expect("open");
        peer.read_u8().await.expect("it arrives");
        drop(stream);
        let read = peer.read_u8().await.map_err(|error| error.kind());
        assert_eq!(read, Err(io::ErrorKind::ConnectionReset));
    }

    #[tokio::test]
    async fn an_arrival_and_nothing_else_ends_the_silence() {
        let (mut stream, mut peer) = pair().await;
        let traffic = Arc::clone(&stream.traffic);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let before = traffic.silence();
        assert!(before >= Duration::from_millis(20), "{before:?}");
        let mut buffer = [0; 1];
        let read = poll_fn(|cx| {
            Poll::Ready(Pin::new(&mut stream).poll_read(cx, &mut ReadBuf::new(&mut buffer)))
        });
        assert!(read.await.is_pending());
        assert!(traffic.silence() >= before, "nothing has arrived");
        let begun = std::time::Instant::now();
        exchange(&mut stream, &mut peer, Duration::ZERO).await;
        // Arrivals are recorded in milliseconds.
        let longest = begun.elapsed() + Duration::from_millis(1);
        assert!(traffic.silence() <= longest, "{:?}", traffic.silence());
    }

    #[tokio::test]
    async fn a_refused_connection_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        drop(listener);
        let refused = Socket::connect(&endpoint(port), Arc::default()).await.map(drop);
        let cause = refused.expect_err("nobody listens").to_string();
        assert!(cause.contains("refused"), "{cause}");
    }
}
