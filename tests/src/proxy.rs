//! A TCP proxy that simulates a faulty network between clients and a server, on a thread of its
//! own.
//!
//! Each direction of a connection reads as fast as its sender writes, and forwards in order through
//! a queue. Requests are forwarded one by one (they are arrays of bulk strings), so that a fault
//! can affect a single request. Replies are forwarded as they arrive.
//!
//! Blocked data is not lost. As on a network that recovers, it is delivered later, even on
//! connections whose other end has given up in the meantime.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::server::is_cluster;

const RESET: &[u8] = b"*1\r\n$5\r\nRESET\r\n";
const RESET_REPLY: &[u8] = b"+RESET\r\n";

/// The direction of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toward {
    /// Requests.
    Server,
    /// Replies and published messages.
    Client,
}

/// The current faults of the network.
#[derive(Debug, Clone, Default)]
struct Faults {
    delay: [Duration; 2],
    /// A text in replies, and what it is replaced by.
    rewritten: Option<[Vec<u8>; 2]>,
    /// Whether data is held back, per direction.
    blocked: [bool; 2],
    /// The number of resets. Each ends all connections that are older.
    resets: u64,
    /// Whether new connections are closed at once.
    refuse: bool,
    /// The number of deliveries of held requests.
    deliveries: u64,
}

/// A fault for the next request of which one argument is `word`.
#[derive(Debug, Clone)]
struct RequestFault {
    word: String,
    effect: Effect,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Effect {
    /// The server executes the request; the reply and the connection are lost.
    LoseReply,
    /// The server executes the request; the client gets these bytes instead of the reply.
    ReplaceReply(Vec<u8>),
    /// The request is held back, and so is everything behind it on its connection.
    Hold,
    /// The connection is lost after this many bytes of the request.
    Cut(usize),
    /// The server executes `RESET` before the request, and the client gets no reply to that.
    LogOut,
}

#[derive(Debug)]
struct ProxyState {
    /// The port of the server to which new connections lead.
    server: AtomicU16,
    faults: watch::Sender<Faults>,
    request_faults: Mutex<Vec<RequestFault>>,
    /// The number of request faults that have taken effect.
    triggered: AtomicU64,
    /// The number of accepted connections.
    connections: AtomicU64,
    /// In a cluster, the port of the server in its replies, and what it is replaced by. Otherwise,
    /// clients would leave the proxy for the address that the server announces.
    announced: Option<[Vec<u8>; 2]>,
}

/// A running proxy. Closes all its connections when dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<ProxyState>,
    /// Dropping the sender ends the thread.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy on a free port of the loopback interface, to the server on another port there.
    #[must_use]
    pub fn to(server: u16) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a plain socket");
        let port = listener.local_addr().expect("an address").port();
        let integer = |port| format!(":{port}\r\n").into_bytes();
        let announced = is_cluster().then(|| [server, port].map(integer));
        let shared = Arc::new(ProxyState {
            server: AtomicU16::new(server),
            announced,
            faults: watch::Sender::new(Faults::default()),
            request_faults: Mutex::default(),
            triggered: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        let (stop, mut stopped) = mpsc::channel::<()>(1);
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = TcpListener::from_std(listener).expect("a plain socket");
                tokio::select! {
                    () = accept(listener, thread_shared) => {}
                    _ = stopped.recv() => {}
                }
            });
        });
        Self { port, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// The port on which it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server through the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if is_cluster() { "redis+cluster" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Lets new connections lead to the server on this port. Existing ones stay, as when a name
    /// gets another address.
    pub fn move_to(&self, server: u16) {
        self.shared.server.store(server, Ordering::Relaxed);
    }

    /// Delays all data in this direction from now on.
    pub fn delay(&self, toward: Toward, by: Duration) {
        self.shared.faults.send_modify(|faults| faults.delay[toward as usize] = by);
    }

    /// Holds back all data in this direction from now on.
    pub fn blackhole(&self, toward: Toward) {
        self.shared.faults.send_modify(|faults| faults.blocked[toward as usize] = true);
    }

    /// Holds back all data in both directions. New connection attempts hang.
    pub fn partition(&self) {
        self.shared.faults.send_modify(|faults| faults.blocked = [true; 2]);
    }

    /// Ends all faults and delivers the data that was held back.
    pub fn heal(&self) {
        self.request_faults().clear();
        self.shared.faults.send_modify(|faults| {
            *faults = Faults {
                resets: faults.resets,
                deliveries: faults.deliveries + 1,
                ..Faults::default()
            };
        });
    }

    /// Resets all existing connections.
    pub fn reset(&self) {
        self.shared.faults.send_modify(|faults| faults.resets += 1);
    }

    /// Sets whether new connections are closed at once.
    pub fn refuse(&self, refuse: bool) {
        self.shared.faults.send_modify(|faults| faults.refuse = refuse);
    }

    /// Lets the server execute the next request that has the argument `word`, and loses the reply
    /// and the connection.
    pub fn lose_reply_to(&self, word: &str) {
        self.request_fault(word, Effect::LoseReply);
    }

    /// Lets the server execute the next request that has the argument `word`, and sends these bytes
    /// instead of the reply. No other request may be in flight on that connection.
    pub fn replace_reply_to(&self, word: &str, bytes: &[u8]) {
        self.request_fault(word, Effect::ReplaceReply(bytes.to_vec()));
    }

    /// Replaces a text in all replies by another one.
    ///
    /// # Panics
    ///
    /// If their lengths differ: a reply tells the length of its texts.
    pub fn rewrite_replies(&self, from: &str, to: &str) {
        assert_eq!(from.len(), to.len());
        let rewritten = [from, to].map(|text| text.as_bytes().to_vec());
        self.shared.faults.send_modify(|faults| faults.rewritten = Some(rewritten));
    }

    /// Holds back the next request that has the argument `word`, and everything behind it on its
    /// connection, until [`deliver`](Self::deliver). Other connections are not affected.
    pub fn hold(&self, word: &str) {
        self.request_fault(word, Effect::Hold);
    }

    /// Loses the connection of the next request that has the argument `word`, after `bytes` bytes of
    /// the request.
    pub fn cut(&self, word: &str, bytes: usize) {
        self.request_fault(word, Effect::Cut(bytes));
    }

    /// Logs the connection of the next request that has the argument `word` out, just before that
    /// request.
    pub fn log_out_before(&self, word: &str) {
        self.request_fault(word, Effect::LogOut);
    }

    /// Delivers all held requests.
    pub fn deliver(&self) {
        self.shared.faults.send_modify(|faults| faults.deliveries += 1);
    }

    /// The number of request faults that have taken effect.
    #[must_use]
    pub fn triggered(&self) -> u64 {
        self.shared.triggered.load(Ordering::Acquire)
    }

    /// The number of connections that the proxy has accepted.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Acquire)
    }

    fn request_fault(&self, word: &str, effect: Effect) {
        self.request_faults().push(RequestFault { word: word.to_owned(), effect });
    }

    fn request_faults(&self) -> MutexGuard<'_, Vec<RequestFault>> {
        self.shared.request_faults()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is ignored, because it makes the test fail in another way.
            let _ = thread.join();
        }
    }
}

impl ProxyState {
    fn request_faults(&self) -> MutexGuard<'_, Vec<RequestFault>> {
        self.request_faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the first fault that matches a request. A client writes who it is at any time, with
    /// the command that also acquires locks, so that request is never meant.
    fn effect(&self, request: &[u8]) -> Option<Effect> {
        let mut words = parts(request);
        let is_presence = words.next() == Some(b"SET")
            && words.next().is_some_and(|key| key.starts_with(b"lock_client:"));
        if is_presence {
            return None;
        }
        let mut request_faults = self.request_faults();
        let matches =
            |fault: &RequestFault| parts(request).any(|part| part == fault.word.as_bytes());
        let at = request_faults.iter().position(matches)?;
        self.triggered.fetch_add(1, Ordering::Release);
        Some(request_faults.remove(at).effect)
    }
}

async fn accept(listener: TcpListener, shared: Arc<ProxyState>) {
    while let Ok((client, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Release);
        let faults = shared.faults.borrow().clone();
        if !faults.refuse {
            let server = shared.server.load(Ordering::Relaxed);
            tokio::spawn(serve(client, server, faults, Arc::clone(&shared)));
        }
    }
}

/// The state of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ConnectionPhase {
    Open,
    /// The next reply of the server is replaced by these bytes.
    ReplaceReply(Vec<u8>),
    /// The next reply of the server is lost, and then the connection.
    LoseReply,
    /// The reply to `RESET` is not delivered.
    LogOut,
    Lost,
}

async fn serve(client: TcpStream, server: u16, before: Faults, shared: Arc<ProxyState>) {
    let mut faults = shared.faults.subscribe();
    // A partition also holds up connections that are made while it lasts.
    let _ = faults.wait_for(|faults| !faults.blocked.contains(&true)).await;
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let phase = watch::Sender::new(ConnectionPhase::Open);
    let mut lost = phase.subscribe();
    let requests = forward(&mut from_client, &mut to_server, Toward::Server, &shared, &phase);
    let replies = forward(&mut from_server, &mut to_client, Toward::Client, &shared, &phase);
    tokio::select! {
        _ = async { tokio::join!(requests, replies) } => return,
        _ = faults.wait_for(|faults| faults.resets > before.resets) => {}
        _ = lost.wait_for(|phase| *phase == ConnectionPhase::Lost) => {}
    }
    // The client sees a reset. The server executes the requests that have reached it.
    let _ = to_client.as_ref().set_zero_linger();
}

async fn forward(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    toward: Toward,
    shared: &ProxyState,
    phase: &watch::Sender<ConnectionPhase>,
) {
    let (sender, queue) = mpsc::unbounded_channel();
    tokio::join!(
        receive(from, sender, toward, shared),
        deliver_all(queue, to, toward, shared, phase)
    );
}

/// Reads as fast as the sender writes.
async fn receive(
    from: &mut OwnedReadHalf,
    queue: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
    toward: Toward,
    shared: &ProxyState,
) {
    let mut unfinished = Vec::new();
    let mut chunk = vec![0; 16 * 1024];
    let mut is_encrypted = None;
    while let Ok(read @ 1..) = from.read(&mut chunk).await {
        let at = Instant::now() + shared.faults.borrow().delay[toward as usize];
        // Later parts of a connection with TLS may begin with any byte.
        let is_encrypted = *is_encrypted.get_or_insert(chunk[0] != b'*');
        unfinished.extend_from_slice(&chunk[..read]);
        while let Some(length) = match toward {
            Toward::Server if !is_encrypted => frame(&unfinished),
            _ => Some(unfinished.len()).filter(|length| *length > 0),
        } {
            let rest = unfinished.split_off(length);
            // The queue is closed only after the connection is lost.
            let _ = queue.send((at, std::mem::replace(&mut unfinished, rest)));
        }
    }
}

/// Delivers the queue in order.
async fn deliver_all(
    mut queue: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>,
    to: &mut OwnedWriteHalf,
    toward: Toward,
    shared: &ProxyState,
    phase: &watch::Sender<ConnectionPhase>,
) {
    let mut faults = shared.faults.subscribe();
    while let Some((at, mut bytes)) = queue.recv().await {
        sleep_until(at).await;
        let _ = faults.wait_for(|faults| !faults.blocked[toward as usize]).await;
        // Read before an effect counts as triggered.
        let deliveries = faults.borrow().deliveries;
        let effect = match toward {
            Toward::Server => shared.effect(&bytes),
            Toward::Client => {
                let rewritten = faults.borrow().rewritten.clone();
                for [from, to] in shared.announced.iter().chain(&rewritten) {
                    bytes = replaced(&bytes, from, to);
                }
                let now = phase.borrow().clone();
                match now {
                    ConnectionPhase::LoseReply => {
                        phase.send_replace(ConnectionPhase::Lost);
                        return;
                    }
                    ConnectionPhase::ReplaceReply(replacement) => {
                        phase.send_replace(ConnectionPhase::Open);
                        bytes = replacement;
                    }
                    ConnectionPhase::LogOut => {
                        let left = replaced(&bytes, RESET_REPLY, b"");
                        if left.len() < bytes.len() {
                            phase.send_replace(ConnectionPhase::Open);
                        }
                        bytes = left;
                    }
                    ConnectionPhase::Open | ConnectionPhase::Lost => {}
                }
                None
            }
        };
        let mut is_cut = false;
        match effect {
            None => {}
            Some(Effect::LoseReply) => {
                phase.send_replace(ConnectionPhase::LoseReply);
            }
            Some(Effect::ReplaceReply(replacement)) => {
                phase.send_replace(ConnectionPhase::ReplaceReply(replacement));
            }
            Some(Effect::Hold) => {
                let before = deliveries;
                let _ = faults.wait_for(|faults| faults.deliveries > before).await;
            }
            Some(Effect::Cut(length)) => {
                bytes.truncate(length);
                is_cut = true;
            }
            Some(Effect::LogOut) => {
                phase.send_replace(ConnectionPhase::LogOut);
                bytes.splice(0..0, RESET.iter().copied());
            }
        }
        let written = to.write_all(&bytes).await;
        if is_cut {
            phase.send_replace(ConnectionPhase::Lost);
        }
        if written.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// The bytes with `to` instead of each `from`.
fn replaced(mut bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut result = Vec::with_capacity(bytes.len());
    while let Some(at) = bytes.windows(from.len()).position(|window| window == from) {
        result.extend_from_slice(&bytes[..at]);
        result.extend_from_slice(to);
        bytes = &bytes[at + from.len()..];
    }
    result.extend_from_slice(bytes);
    result
}

/// The length of the first complete request, if there is one. Bytes that are not an array of bulk
/// strings count as one request.
fn frame(bytes: &[u8]) -> Option<usize> {
    if bytes.first()? != &b'*' {
        return Some(bytes.len());
    }
    let (parts, mut at) = number(bytes, 0)?;
    for _ in 0..parts {
        let (length, start) = number(bytes, at)?;
        at = start + length + 2;
    }
    (at <= bytes.len()).then_some(at)
}

/// The arguments of a complete request, which starts with the command. Empty if the request is not
/// an array of bulk strings.
fn parts(request: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = number(request, 0).map(|(_, end)| end);
    std::iter::from_fn(move || {
        let (length, start) = number(request, at?)?;
        at = Some(start + length + 2);
        request.get(start..start + length)
    })
}

/// The number on the line that starts at `start`, after the character of its type, and the start of
/// the next line.
fn number(bytes: &[u8], start: usize) -> Option<(usize, usize)> {
    let end = bytes.get(start..)?.windows(2).position(|pair| pair == b"\r\n")? + start;
    let number = std::str::from_utf8(bytes.get(start + 1..end)?).ok()?.parse().ok()?;
    Some((number, end + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_split_at_their_boundaries() {
        let (one, two) = (b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", b"*1\r\n$4\r\nPING\r\n");
        let both = [one.as_slice(), two].concat();
        assert_eq!(frame(&both), Some(one.len()));
        assert_eq!(frame(&both[one.len()..]), Some(two.len()));
        for length in 0..one.len() {
            assert_eq!(frame(&one[..length]), None, "{length} bytes are not a complete request");
        }
        assert_eq!(frame(b"PING\r\n"), Some(6));
    }

    #[test]
    fn the_port_of_the_server_is_replaced() {
        assert_eq!(
            replaced(b"a:1\r\nb:1\r\n:12\r\n", b":1\r\n", b":20\r\n"),
            b"a:20\r\nb:20\r\n:12\r\n"
        );
        assert_eq!(replaced(b"", b":1\r\n", b":2\r\n"), b"");
    }

    #[test]
    fn a_fault_matches_whole_arguments() {
        let get = b"*2\r\n$3\r\nGET\r\n$4\r\nSET1\r\n";
        assert_eq!(parts(get).collect::<Vec<_>>(), [b"GET".as_slice(), b"SET1"]);
        assert_eq!(parts(b"PING\r\n").count(), 0);
        for length in 0..get.len() {
            assert!(parts(&get[..length]).count() <= 2, "{length} bytes");
        }
    }
}
