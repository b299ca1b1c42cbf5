//! A socket whose writes wait for company.
//!
//! With many requests under way, the tasks that have just been answered are about to send their next
//! ones. Written one by one, each of these is a system call, a packet, and a wake-up of the server.
//! So a write is put off once, to behind whatever is ready to run, and takes along what was added by
//! then. That is what Nagle's algorithm does with the help of the network, at the cost of a round
//! trip; here it costs nothing that could be measured, and a client with few requests under way does
//! without.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::ConnectionAddr;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};

/// After how long a connection that nothing goes over is tried, so that no router on the way forgets
/// it, and one that is dead is known to be before somebody needs it.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// With fewer requests under way than that, nobody is to be expected.
const FEW: usize = 4;

/// A connected socket.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Socket,
    /// How many requests are under way.
    under_way: Arc<AtomicUsize>,
    /// The next write has been put off.
    put_off: bool,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
}

impl Stream {
    pub(super) async fn connect(
        address: &ConnectionAddr,
        under_way: Arc<AtomicUsize>,
    ) -> io::Result<Self> {
        let socket = match address {
            ConnectionAddr::Tcp(host, port) => Socket::Tcp(connect(host, *port).await?),
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                Socket::Unix(tokio::net::UnixStream::connect(path).await?)
            }
            _ => return Err(io::Error::from(io::ErrorKind::Unsupported)),
        };
        Ok(Self { socket, under_way, put_off: false })
    }

    /// Whether to come back for this write a moment later.
    fn put_off(&mut self, cx: &Context<'_>) -> bool {
        self.put_off = !self.put_off && self.under_way.load(Ordering::Relaxed) >= FEW;
        if self.put_off {
            cx.waker().wake_by_ref();
        }
        self.put_off
    }
}

/// To the first of the host's addresses that answers.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host((host, port)).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                let socket = SockRef::from(&stream);
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
                socket.set_tcp_keepalive(&keepalive.with_interval(KEEPALIVE))?;
                // A connection that is given up is reset, so that nothing which is still on its way
                // there arrives later: what it was for has been given up as well.
                socket.set_linger(Some(Duration::ZERO))?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Calls a method of whichever socket it is.
macro_rules! of_socket {
    ($stream:ident, $method:ident($($argument:expr),*)) => {
        match &mut $stream.get_mut().socket {
            Socket::Tcp(socket) => Pin::new(socket).$method($($argument),*),
            #[cfg(unix)]
            Socket::Unix(socket) => Pin::new(socket).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        of_socket!(self, poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.put_off(cx) {
            return Poll::Pending;
        }
        of_socket!(self, poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.put_off(cx) {
            return Poll::Pending;
        }
        of_socket!(self, poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_socket!(self, poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_socket!(self, poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::{Wake, Waker};

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    /// Counts how often somebody is to be polled again.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn pair(under_way: usize) -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let address = ConnectionAddr::Tcp("localhost".into(), port);
        let stream = Stream::connect(&address, Arc::new(AtomicUsize::new(under_way)));
        let (stream, (peer, _)) = tokio::try_join!(stream, listener.accept()).expect("loopback");
        (stream, peer)
    }

    #[tokio::test]
    async fn with_many_requests_under_way_a_write_waits_once_for_company() {
        let (mut stream, mut peer) = pair(FEW).await;
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        for writes in 1..4 {
            assert!(Pin::new(&mut stream).poll_write(&mut cx, b"a").is_pending());
            assert_eq!(woken.0.load(Ordering::Relaxed), writes, "it comes back by itself");
            let written = Pin::new(&mut stream).poll_write(&mut cx, b"ab");
            assert!(matches!(written, Poll::Ready(Ok(2))), "{written:?}");
        }
        let mut all = [0; 6];
        peer.read_exact(&mut all).await.expect("all of it");
        assert_eq!(&all, b"ababab");
    }

    #[tokio::test]
    async fn with_few_it_does_not() {
        let (mut stream, _peer) = pair(FEW - 1).await;
        let written = poll_fn(|cx| Poll::Ready(Pin::new(&mut stream).poll_write(cx, b"a")));
        assert!(matches!(written.await, Poll::Ready(Ok(1))));
    }

    #[tokio::test]
    async fn nobody_at_the_address_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        drop(listener);
        let address = ConnectionAddr::Tcp("127.0.0.1".into(), port);
        let refused = Stream::connect(&address, Arc::default()).await.map(drop);
        let kind = refused.map_err(|error| error.kind());
        assert_eq!(kind, Err(io::ErrorKind::ConnectionRefused));
    }
}
