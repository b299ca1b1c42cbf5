//! A network that misbehaves: a TCP proxy between clients and a server, on a thread of its own.
//!
//! Each connection has two directions, each of which reads as fast as it is sent to and forwards in
//! order, through a queue. Requests are forwarded frame by frame (the protocol's arrays of bulk
//! strings), so that one of them can be picked out; replies as they come.
//!
//! What stands still here is not lost: like a network that comes back, it delivers what was sent
//! meanwhile, also on connections whose other end has given up since.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Which way something goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toward {
    /// Requests.
    Server,
    /// Replies, and messages.
    Client,
}

/// What is wrong with the network just now.
#[derive(Debug, Clone, Default)]
struct Faults {
    delay: [Duration; 2],
    /// Nothing gets through.
    still: [bool; 2],
    /// Counts the resets: connections older than the latest end.
    resets: u64,
    /// New connections are closed at once.
    refuse: bool,
    /// Counts the deliveries of what was held.
    deliveries: u64,
}

/// What befalls the next request that fits.
#[derive(Debug, Clone)]
struct Ambush {
    word: String,
    fate: Fate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    /// It is done; its reply and the connection are lost.
    LoseReply,
    /// It is done; these bytes come instead of its reply.
    ReplaceReply(Vec<u8>),
    /// It waits, and what is behind it on its connection.
    Hold,
    /// The connection is lost after this many of its bytes.
    Cut(usize),
}

#[derive(Debug)]
struct Shared {
    faults: watch::Sender<Faults>,
    ambushes: Mutex<Vec<Ambush>>,
    /// Ambushes that a request has run into.
    struck: AtomicU64,
    /// Connections that were made through here.
    connections: AtomicU64,
}

/// The proxy; ends with all its connections when dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    /// Ends the thread when dropped.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy on a free port of the loopback interface, to a port there.
    #[must_use]
    pub fn to(server: u16) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a plain socket");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            faults: watch::Sender::new(Faults::default()),
            ambushes: Mutex::default(),
            struck: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        });
        let (stop, mut stopped) = mpsc::channel::<()>(1);
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = TcpListener::from_std(listener).expect("a plain socket");
                tokio::select! {
                    () = accept(listener, server, of_thread) => {}
                    _ = stopped.recv() => {}
                }
            });
        });
        Self { port, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// The URL of the server behind it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What goes this way takes so much longer from now on.
    pub fn delay(&self, toward: Toward, by: Duration) {
        self.shared.faults.send_modify(|faults| faults.delay[toward as usize] = by);
    }

    /// Nothing goes this way any more.
    pub fn blackhole(&self, toward: Toward) {
        self.shared.faults.send_modify(|faults| faults.still[toward as usize] = true);
    }

    /// Nothing goes either way, and nobody can connect: the connection attempts hang.
    pub fn partition(&self) {
        self.shared.faults.send_modify(|faults| faults.still = [true; 2]);
    }

    /// All is well again; what stood still is delivered.
    pub fn heal(&self) {
        self.ambushes().clear();
        self.shared.faults.send_modify(|faults| {
            *faults = Faults {
                resets: faults.resets,
                deliveries: faults.deliveries + 1,
                ..Faults::default()
            };
        });
    }

    /// All connections that there are end by a reset.
    pub fn reset(&self) {
        self.shared.faults.send_modify(|faults| faults.resets += 1);
    }

    /// New connections are closed at once, or not any more.
    pub fn refuse(&self, refuse: bool) {
        self.shared.faults.send_modify(|faults| faults.refuse = refuse);
    }

    /// The next request that contains `word` is done, and its reply and its connection are lost.
    pub fn lose_reply_to(&self, word: &str) {
        self.ambush(word, Fate::LoseReply);
    }

    /// The next request that contains `word` is done, and answered by these bytes instead of its
    /// reply. No other request may be under way on its connection.
    pub fn replace_reply_to(&self, word: &str, bytes: &[u8]) {
        self.ambush(word, Fate::ReplaceReply(bytes.to_vec()));
    }

    /// The next request that contains `word` waits until [`deliver`](Self::deliver), with all that
    /// comes behind it on its connection. Other connections go on.
    pub fn hold(&self, word: &str) {
        self.ambush(word, Fate::Hold);
    }

    /// The connection of the next request that contains `word` is lost after so many of its bytes.
    pub fn cut(&self, word: &str, bytes: usize) {
        self.ambush(word, Fate::Cut(bytes));
    }

    /// What was held goes on.
    pub fn deliver(&self) {
        self.shared.faults.send_modify(|faults| faults.deliveries += 1);
    }

    /// How many requests have run into what was laid for them.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.shared.struck.load(Ordering::Acquire)
    }

    /// How many connections were made through it.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Acquire)
    }

    fn ambush(&self, word: &str, fate: Fate) {
        self.ambushes().push(Ambush { word: word.to_owned(), fate });
    }

    fn ambushes(&self) -> MutexGuard<'_, Vec<Ambush>> {
        self.shared.ambushes()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked, the test has failed by what it saw.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn ambushes(&self) -> MutexGuard<'_, Vec<Ambush>> {
        self.ambushes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What befalls a request.
    fn fate(&self, request: &[u8]) -> Option<Fate> {
        let mut ambushes = self.ambushes();
        let fits = |ambush: &Ambush| {
            request.windows(ambush.word.len()).any(|part| part == ambush.word.as_bytes())
        };
        let at = ambushes.iter().position(fits)?;
        self.struck.fetch_add(1, Ordering::Release);
        Some(ambushes.remove(at).fate)
    }
}

async fn accept(listener: TcpListener, server: u16, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Release);
        let faults = shared.faults.borrow().clone();
        if !faults.refuse {
            tokio::spawn(serve(client, server, faults.resets, Arc::clone(&shared)));
        }
    }
}

/// How a connection is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Open,
    /// What the server says next is replaced by this.
    Replace(Vec<u8>),
    /// What the server says next is lost, and the connection with it.
    Mute,
    Lost,
}

async fn serve(client: TcpStream, server: u16, born: u64, shared: Arc<Shared>) {
    let mut faults = shared.faults.subscribe();
    // A partition lasts for those who connect in it, too.
    let _ = faults.wait_for(|faults| !faults.still.contains(&true)).await;
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let phase = watch::Sender::new(Phase::Open);
    let mut lost = phase.subscribe();
    let requests = forward(&mut from_client, &mut to_server, Toward::Server, &shared, &phase);
    let replies = forward(&mut from_server, &mut to_client, Toward::Client, &shared, &phase);
    tokio::select! {
        _ = async { tokio::join!(requests, replies) } => return,
        _ = faults.wait_for(|faults| faults.resets > born) => {}
        _ = lost.wait_for(|phase| *phase == Phase::Lost) => {}
    }
    // The client hears of it by a reset; the server does what has reached it.
    let _ = to_client.as_ref().set_zero_linger();
}

async fn forward(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    toward: Toward,
    shared: &Shared,
    phase: &watch::Sender<Phase>,
) {
    let (sender, queue) = mpsc::unbounded_channel();
    tokio::join!(take(from, sender, toward, shared), give(queue, to, toward, shared, phase));
}

/// Reads as fast as it is sent to.
async fn take(
    from: &mut OwnedReadHalf,
    queue: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
    toward: Toward,
    shared: &Shared,
) {
    let mut unfinished = Vec::new();
    let mut chunk = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut chunk).await {
        let at = Instant::now() + shared.faults.borrow().delay[toward as usize];
        unfinished.extend_from_slice(&chunk[..read]);
        while let Some(length) = match toward {
            Toward::Server => frame(&unfinished),
            Toward::Client => Some(unfinished.len()).filter(|length| *length > 0),
        } {
            let rest = unfinished.split_off(length);
            // Nobody takes it any more only when the connection is lost.
            let _ = queue.send((at, std::mem::replace(&mut unfinished, rest)));
        }
    }
}

/// Delivers in order.
async fn give(
    mut queue: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>,
    to: &mut OwnedWriteHalf,
    toward: Toward,
    shared: &Shared,
    phase: &watch::Sender<Phase>,
) {
    let mut faults = shared.faults.subscribe();
    while let Some((at, mut bytes)) = queue.recv().await {
        sleep_until(at).await;
        let _ = faults.wait_for(|faults| !faults.still[toward as usize]).await;
        let fate = match toward {
            Toward::Server => shared.fate(&bytes),
            Toward::Client => {
                let now = phase.borrow().clone();
                match now {
                    Phase::Mute => {
                        phase.send_replace(Phase::Lost);
                        return;
                    }
                    Phase::Replace(instead) => {
                        phase.send_replace(Phase::Open);
                        bytes = instead;
                    }
                    Phase::Open | Phase::Lost => {}
                }
                None
            }
        };
        let mut is_cut = false;
        match fate {
            None => {}
            Some(Fate::LoseReply) => {
                phase.send_replace(Phase::Mute);
            }
            Some(Fate::ReplaceReply(instead)) => {
                phase.send_replace(Phase::Replace(instead));
            }
            Some(Fate::Hold) => {
                let before = faults.borrow().deliveries;
                let _ = faults.wait_for(|faults| faults.deliveries > before).await;
            }
            Some(Fate::Cut(length)) => {
                bytes.truncate(length);
                is_cut = true;
            }
        }
        let written = to.write_all(&bytes).await;
        if is_cut {
            phase.send_replace(Phase::Lost);
        }
        if written.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// The length of the first whole request, if there is one. What is no array of bulk strings is one
/// request as far as it goes.
fn frame(bytes: &[u8]) -> Option<usize> {
    let line = |start: usize| {
        let end = bytes.get(start..)?.windows(2).position(|pair| pair == b"\r\n")? + start;
        let number = std::str::from_utf8(&bytes[start + 1..end]).ok()?.parse::<usize>().ok()?;
        Some((number, end + 2))
    };
    if bytes.first()? != &b'*' {
        return Some(bytes.len());
    }
    let (parts, mut at) = line(0)?;
    for _ in 0..parts {
        let (length, start) = line(at)?;
        at = start + length + 2;
    }
    (at <= bytes.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let (one, two) = (b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", b"*1\r\n$4\r\nPING\r\n");
        let both = [one.as_slice(), two].concat();
        assert_eq!(frame(&both), Some(one.len()));
        assert_eq!(frame(&both[one.len()..]), Some(two.len()));
        for length in 0..one.len() {
            assert_eq!(frame(&one[..length]), None, "{length} bytes are no request");
        }
        assert_eq!(frame(b"PING\r\n"), Some(6));
    }
}
