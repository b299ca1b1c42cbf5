//! A socket whose writes wait for company.
//!
//! With many requests under way, the tasks that have just been answered are about to send their next
//! ones. Written one by one, each of these is a system call, a packet, and a wake-up of the server.
//!
//! Where the server is near, Nagle's algorithm (RFC 896) gathers them: what is written while something
//! is under way goes when that is answered. So server and client work at the same time, each at what
//! the other has sent. It costs up to a round trip, which is little there. Where the server is far, a
//! write is put off once instead, to behind whatever is ready to run, and takes along what was added by
//! then. That costs nothing that could be measured, but one waits while the other works. A client with
//! few requests under way does without. With very many, both together are best.
//!
//! How far it is, a connection's first requests tell.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use redis::ConnectionAddr;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};

/// After how long a connection that nothing goes over is tried, so that no router on the way forgets
/// it, and one that is dead is known to be before somebody needs it.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// With fewer requests under way than that, nobody is to be expected.
const FEW: usize = 4;
/// The same where Nagle's algorithm gathers them.
const MANY: usize = 128;

/// A server that answers within that is near.
const NEAR: Duration = Duration::from_micros(250);
/// How many of its answers are waited for to know that. One alone may be late for any reason.
const ANSWERS: u32 = 8;

/// A connected socket.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Socket,
    traffic: Arc<Traffic>,
    /// The next write has been put off.
    put_off: bool,
    distance: Distance,
}

/// What goes over a connection: written by it and by those who use it.
#[derive(Debug)]
pub(super) struct Traffic {
    /// How many requests are under way.
    requests: AtomicUsize,
    /// When something arrived last, in milliseconds since `began`.
    arrived: AtomicU64,
    began: Instant,
}

impl Default for Traffic {
    fn default() -> Self {
        Self { requests: AtomicUsize::new(0), arrived: AtomicU64::new(0), began: Instant::now() }
    }
}

impl Traffic {
    /// A request is under way from here on.
    pub(super) fn begin(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// It is not any more.
    pub(super) fn end(&self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }

    /// For how long nothing has arrived.
    pub(super) fn silence(&self) -> Duration {
        let arrived = Duration::from_millis(self.arrived.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(arrived)
    }

    fn arrival(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.arrived.store(since, Ordering::Relaxed);
    }
}

/// How far the server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distance {
    /// It was asked at some time, and has not answered yet; that was late so often.
    Unknown {
        asked: Option<Instant>,
        late: u32,
    },
    Near,
    Far,
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
        traffic: Arc<Traffic>,
    ) -> io::Result<Self> {
        let socket = match address {
            ConnectionAddr::Tcp(host, port) => Socket::Tcp(connect(host, *port).await?),
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                Socket::Unix(tokio::net::UnixStream::connect(path).await?)
            }
            _ => return Err(io::Error::from(io::ErrorKind::Unsupported)),
        };
        let distance = Distance::Unknown { asked: None, late: 0 };
        Ok(Self { socket, traffic, put_off: false, distance })
    }

    /// Something is being written.
    fn asked(&mut self) {
        if let Distance::Unknown { asked, .. } = &mut self.distance {
            asked.get_or_insert_with(Instant::now);
        }
    }

    /// Something was read.
    fn answered(&mut self) {
        self.traffic.arrival();
        let Distance::Unknown { asked, late } = &mut self.distance else { return };
        let Some(asked) = asked.take() else { return };
        if asked.elapsed() < NEAR {
            self.distance = if self.socket.gathers() { Distance::Near } else { Distance::Far };
            return;
        }
        *late += 1;
        if *late == ANSWERS {
            self.distance = Distance::Far;
        }
    }

    /// Whether to come back for this write a moment later.
    fn put_off(&mut self, cx: &Context<'_>) -> bool {
        let many = if self.distance == Distance::Near { MANY } else { FEW };
        self.put_off = !self.put_off && self.traffic.requests.load(Ordering::Relaxed) >= many;
        if self.put_off {
            cx.waker().wake_by_ref();
        }
        self.put_off
    }
}

impl Socket {
    /// Has writes gathered by Nagle's algorithm, if there is one for this socket.
    fn gathers(&self) -> bool {
        match self {
            Self::Tcp(socket) => socket.set_nodelay(false).is_ok(),
            #[cfg(unix)]
            Self::Unix(_) => false,
        }
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
        match &mut $stream.socket {
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
        let stream = self.get_mut();
        let before = buffer.filled().len();
        let read = of_socket!(stream, poll_read(cx, buffer));
        if buffer.filled().len() > before {
            stream.answered();
        }
        read
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
        let stream = self.get_mut();
        stream.asked();
        of_socket!(stream, poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.put_off(cx) {
            return Poll::Pending;
        }
        let stream = self.get_mut();
        stream.asked();
        of_socket!(stream, poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
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
    use std::task::{Wake, Waker};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
        let traffic = Traffic { requests: AtomicUsize::new(under_way), ..Traffic::default() };
        let stream = Stream::connect(&address, Arc::new(traffic));
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

    /// Sends something and reads what comes back after a while.
    async fn exchange(stream: &mut Stream, peer: &mut TcpStream, pause: Duration) {
        stream.write_all(b"a").await.expect("open");
        peer.read_u8().await.expect("there it comes");
        std::thread::sleep(pause);
        peer.write_u8(0).await.expect("open");
        stream.read_u8().await.expect("there it comes");
    }

    fn gathers(stream: &Stream) -> bool {
        let Socket::Tcp(socket) = &stream.socket else { return false };
        !socket.nodelay().expect("an option of its socket")
    }

    #[tokio::test]
    async fn a_server_that_answers_quickly_once_is_near() {
        let (mut stream, mut peer) = pair(FEW - 1).await;
        assert!(!gathers(&stream));
        for _ in 1..ANSWERS {
            exchange(&mut stream, &mut peer, NEAR).await;
        }
        assert!(!gathers(&stream), "late every time");
        // Later than the answer, however long this machine takes for it.
        let asked = Some(Instant::now() + KEEPALIVE);
        stream.distance = Distance::Unknown { asked, late: ANSWERS - 1 };
        exchange(&mut stream, &mut peer, Duration::ZERO).await;
        assert_eq!(stream.distance, Distance::Near);
        assert!(gathers(&stream));
    }

    #[tokio::test]
    async fn one_that_is_late_every_time_is_far() {
        let (mut stream, mut peer) = pair(FEW - 1).await;
        for _ in 0..ANSWERS {
            assert_ne!(stream.distance, Distance::Far);
            exchange(&mut stream, &mut peer, NEAR).await;
        }
        assert_eq!(stream.distance, Distance::Far);
        assert!(!gathers(&stream));
    }

    #[tokio::test]
    async fn where_the_server_is_near_only_very_many_wait_for_company() {
        for (under_way, waits) in [(MANY - 1, false), (MANY, true)] {
            let (mut stream, _peer) = pair(under_way).await;
            stream.distance = Distance::Near;
            let written = poll_fn(|cx| Poll::Ready(Pin::new(&mut stream).poll_write(cx, b"a")));
            assert_eq!(written.await.is_pending(), waits);
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_given_up_is_reset() {
        let (mut stream, mut peer) = pair(FEW - 1).await;
        stream.write_all(b"a").await.expect("open");
        peer.read_u8().await.expect("there it comes");
        drop(stream);
        let read = peer.read_u8().await.map_err(|error| error.kind());
        assert_eq!(read, Err(io::ErrorKind::ConnectionReset));
    }

    #[tokio::test]
    async fn what_arrives_ends_the_silence() {
        let (mut stream, mut peer) = pair(FEW - 1).await;
        let traffic = Arc::clone(&stream.traffic);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let before = traffic.silence();
        assert!(before >= Duration::from_millis(20), "{before:?}");
        exchange(&mut stream, &mut peer, Duration::ZERO).await;
        assert!(traffic.silence() < before, "{:?}", traffic.silence());
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
