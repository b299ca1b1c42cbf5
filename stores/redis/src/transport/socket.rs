//! A socket that batches its writes.
//!
//! With many requests in flight, the tasks whose requests have just been answered are about to send their next ones. Written
//! separately, each of these is a system call, a packet, and a wake-up of the server.
//!
//! * At low latency, Nagle's algorithm (RFC 896) batches the writes: data that is written while other data is unacknowledged
//!   is sent after the acknowledgement. Client and server then work at the same time. This costs up to a round trip, which is
//!   short.
//! * At high latency, a write is instead delayed once, until all tasks that are ready have run, and then includes what they
//!   have added. This has no measurable cost, but client and server work alternately.
//! * Over TLS, each write becomes a record, whose cost hardly depends on its length, and Nagle's algorithm cannot join
//!   records. Writes are therefore delayed at low latency as well. So are those to a cluster, because each of its nodes has
//!   only a part of the requests.
//! * With few requests in flight, writes are not delayed. With very many, both methods together are best.
//!
//! The latency is measured with the first requests of a connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};

use super::endpoint::{Address, Endpoint};
use super::error;
use super::reply_size::ReplySize;
#[cfg(feature = "tls")]
use super::tls::{SecureSocket, TlsServer};
use super::traffic::Traffic;
use lock_core::store::contract::StoreError;

/// The interval of TCP keep-alive probes. They keep routers from dropping an idle connection, and detect a dead one early.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The number of requests in flight from which writes are delayed: with fewer, no other write is likely to follow soon.
const MANY: usize = 4;
/// The same for a connection that uses Nagle's algorithm.
const MANY_WITH_NAGLE: usize = 128;

/// A latency below this is low.
const LOW_LATENCY: Duration = Duration::from_micros(250);
/// The latency is high if it was not low this many times. A single answer may be late for any reason.
const SAMPLES: u32 = 8;

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Socket {
    transport: Transport,
    traffic: Arc<Traffic>,
    reply_size: ReplySize,
    /// The current write has been delayed.
    delayed: bool,
    latency: Latency,
    /// The number of requests in flight from which writes are delayed at low latency.
    many_at_low_latency: usize,
}

/// The latency of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Latency {
    Unknown {
        /// The time of the first write since the last answer.
        written: Option<Instant>,
        /// The number of samples so far. None of them was low.
        samples: u32,
    },
    Low,
    High,
}

#[derive(Debug)]
enum Transport {
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<SecureSocket>),
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
}

impl Socket {
    /// Connects, including the TLS handshake.
    pub(crate) async fn connect(
        endpoint: &Endpoint,
        traffic: Arc<Traffic>,
    ) -> Result<Self, StoreError> {
        let transport = Transport::connect(endpoint).await?;
        let latency = Latency::Unknown { written: None, samples: 0 };
        let is_delayed = transport.has_records() || endpoint.is_node();
        let many_at_low_latency = if is_delayed { MANY } else { MANY_WITH_NAGLE };
        let reply_size = ReplySize::default();
        Ok(Self { transport, traffic, reply_size, delayed: false, latency, many_at_low_latency })
    }

    fn write_begins(&mut self) {
        if let Latency::Unknown { written, .. } = &mut self.latency {
            written.get_or_insert_with(Instant::now);
        }
    }

    fn data_arrived(&mut self) {
        self.traffic.arrival();
        let Latency::Unknown { written, samples } = &mut self.latency else { return };
        let Some(written) = written.take() else { return };
        if written.elapsed() < LOW_LATENCY {
            self.traffic.set_near();
            let has_nagle = self.transport.enable_nagle();
            return self.latency = if has_nagle { Latency::Low } else { Latency::High };
        }
        *samples += 1;
        if *samples == SAMPLES {
            self.latency = Latency::High;
        }
    }

    /// Whether this write is delayed, at most once. Wakes the task again.
    fn delay_write(&mut self, cx: &Context<'_>) -> bool {
        let many = if self.latency == Latency::Low { self.many_at_low_latency } else { MANY };
        self.delayed = !self.delayed && self.traffic.in_flight() >= many;
        if self.delayed {
            cx.waker().wake_by_ref();
        }
        self.delayed
    }
}

impl Transport {
    async fn connect(endpoint: &Endpoint) -> Result<Self, StoreError> {
        match endpoint.address() {
            Address::Tcp { host, port } => {
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

    /// Whether each write becomes a record of TLS.
    fn has_records(&self) -> bool {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(_) => true,
            _ => false,
        }
    }

    /// Enables Nagle's algorithm. Returns false if the socket does not support it.
    fn enable_nagle(&self) -> bool {
        match self {
            Self::Tcp(socket) => socket.set_nodelay(false).is_ok(),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.stream.get_ref().0.set_nodelay(false).is_ok(),
            #[cfg(unix)]
            Self::Unix(_) => false,
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
            stream.data_arrived();
            stream.reply_size.add(arrived)?;
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
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.delay_write(cx) {
            return Poll::Pending;
        }
        let stream = self.get_mut();
        stream.write_begins();
        of_socket!(stream, poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.delay_write(cx) {
            return Poll::Pending;
        }
        let stream = self.get_mut();
        stream.write_begins();
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::transport::endpoint::Access;
    use crate::transport::login::Login;

    /// Counts wake-ups.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn endpoint(port: u16) -> Endpoint {
        let login = Login::new(redis::RedisConnectionInfo::default(), None);
        Endpoint::tcp("localhost", port, Access::new(login, "test"))
    }

    async fn pair(in_flight: usize) -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let endpoint = endpoint(port);
        let traffic = Traffic::default();
        (0..in_flight).for_each(|_| traffic.begin());
        let stream = Socket::connect(&endpoint, Arc::new(traffic));
        let (stream, accepted) = tokio::join!(stream, listener.accept());
        (stream.expect("loopback"), accepted.expect("loopback").0)
    }

    #[tokio::test]
    async fn with_many_requests_in_flight_a_write_is_delayed_once() {
        let (mut stream, mut peer) = pair(MANY).await;
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        for writes in 1..4 {
            assert!(Pin::new(&mut stream).poll_write(&mut cx, b"a").is_pending());
            assert_eq!(woken.0.load(Ordering::Relaxed), writes, "the task is woken again");
            let written = Pin::new(&mut stream).poll_write(&mut cx, b"ab");
            assert!(matches!(written, Poll::Ready(Ok(2))), "{written:?}");
        }
        let mut all = [0; 6];
        peer.read_exact(&mut all).await.expect("all of it");
        assert_eq!(&all, b"ababab");
    }

    #[tokio::test]
    async fn with_few_requests_in_flight_a_write_is_not_delayed() {
        let (mut stream, _peer) = pair(MANY).await;
        // One of the requests is answered.
        stream.traffic.end();
        let written = poll_fn(|cx| Poll::Ready(Pin::new(&mut stream).poll_write(cx, b"a")));
        assert!(matches!(written.await, Poll::Ready(Ok(1))));
    }

    /// Writes a byte, and reads the answer that the peer writes after `pause`.
    async fn exchange(stream: &mut Socket, peer: &mut TcpStream, pause: Duration) {
        stream.write_all(b"a").await.expect("open");
        peer.read_u8().await.expect("it arrives");
        std::thread::sleep(pause);
        peer.write_u8(0).await.expect("open");
        stream.read_u8().await.expect("it arrives");
    }

    fn has_nagle(stream: &Socket) -> bool {
        let Transport::Tcp(socket) = &stream.transport else { return false };
        !socket.nodelay().expect("a TCP option")
    }

    #[tokio::test]
    async fn one_quick_answer_means_low_latency() {
        let (mut stream, mut peer) = pair(MANY - 1).await;
        assert!(!has_nagle(&stream));
        for _ in 1..SAMPLES {
            exchange(&mut stream, &mut peer, LOW_LATENCY).await;
        }
        assert!(!has_nagle(&stream), "all answers were late");
        // A write in the future: the answer is quick even on a slow machine.
        let written = Some(Instant::now() + KEEPALIVE);
        stream.latency = Latency::Unknown { written, samples: SAMPLES - 1 };
        exchange(&mut stream, &mut peer, Duration::ZERO).await;
        assert_eq!(stream.latency, Latency::Low);
        assert!(has_nagle(&stream));
    }

    #[tokio::test]
    async fn only_late_answers_mean_high_latency() {
        let (mut stream, mut peer) = pair(MANY - 1).await;
        for _ in 0..SAMPLES {
            assert_ne!(stream.latency, Latency::High);
            exchange(&mut stream, &mut peer, LOW_LATENCY).await;
        }
        assert_eq!(stream.latency, Latency::High);
        assert!(!has_nagle(&stream));
    }

    #[tokio::test]
    async fn at_low_latency_writes_are_delayed_with_very_many_requests_only() {
        for (in_flight, is_delayed) in [(MANY_WITH_NAGLE - 1, false), (MANY_WITH_NAGLE, true)] {
            let (mut stream, _peer) = pair(in_flight).await;
            stream.latency = Latency::Low;
            let written = poll_fn(|cx| Poll::Ready(Pin::new(&mut stream).poll_write(cx, b"a")));
            assert_eq!(written.await.is_pending(), is_delayed);
        }
    }

    #[tokio::test]
    async fn writes_to_a_node_of_a_cluster_are_delayed_at_low_latency() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let access = Access::new(Login::new(redis::RedisConnectionInfo::default(), None), "test");
        for (access, many) in [(access.clone(), MANY_WITH_NAGLE), (access.for_nodes(), MANY)] {
            let endpoint = Endpoint::tcp("localhost", port, access);
            let socket = Socket::connect(&endpoint, Arc::default()).await.expect("loopback");
            assert_eq!(socket.many_at_low_latency, many);
        }
    }

    #[tokio::test]
    async fn a_dropped_connection_is_reset() {
        let (mut stream, mut peer) = pair(MANY - 1).await;
        stream.write_all(b"a").await.expect("open");
        peer.read_u8().await.expect("it arrives");
        drop(stream);
        let read = peer.read_u8().await.map_err(|error| error.kind());
        assert_eq!(read, Err(io::ErrorKind::ConnectionReset));
    }

    #[tokio::test]
    async fn an_arrival_and_nothing_else_ends_the_silence() {
        let (mut stream, mut peer) = pair(MANY - 1).await;
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
        let begun = Instant::now();
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
