//! A network of two sides that can be parted from each other.
//!
//! All processes know each other by the ports of their relays. A relay leads to one process, and
//! knows by the addresses of a connection which side it comes from: processes connect from the
//! address of their side (`bind-source-addr`), and clients connect to it.
//!
//! As with [`Proxy`](crate::Proxy), data that is held back is delivered when the network is whole
//! again.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// A side of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side of the first master.
    Near,
    /// The other one.
    Far,
}

impl Side {
    /// The address that connections of this side come from or go to. Only Linux has more than one
    /// address of the loopback interface.
    #[must_use]
    pub fn address(self) -> Ipv4Addr {
        match self {
            Self::Near => Ipv4Addr::new(127, 0, 0, 2),
            Self::Far => Ipv4Addr::new(127, 0, 0, 3),
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// A network of two sides. Closes all connections when dropped.
#[derive(Debug)]
pub struct SplitNetwork {
    is_whole: Arc<watch::Sender<bool>>,
    runtime: Option<Runtime>,
}

/// The port at which others reach a process.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    server: watch::Sender<Option<u16>>,
}

impl SplitNetwork {
    /// A network that is whole.
    #[must_use]
    pub fn new() -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        Self { is_whole: Arc::new(watch::Sender::new(true)), runtime: Some(runtime) }
    }

    /// A relay to a process of this side. Its connections hang until it [leads](Relay::lead_to) to
    /// the process.
    #[must_use]
    pub fn relay(&self, side: Side) -> Relay {
        let server = watch::Sender::new(None);
        let (port, listeners) = listen();
        let runtime = self.runtime.as_ref().expect("a runtime");
        for listener in listeners {
            let (server, is_whole) = (server.subscribe(), self.is_whole.subscribe());
            runtime.spawn(accept(listener, side, server, is_whole));
        }
        Relay { port, server }
    }

    /// Holds back all data between the sides from now on. New connections between them hang.
    pub fn part(&self) {
        self.is_whole.send_replace(false);
    }

    /// Delivers what was held back.
    pub fn heal(&self) {
        self.is_whole.send_replace(true);
    }
}

impl Default for SplitNetwork {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SplitNetwork {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Relay {
    /// The port at which others reach the process.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leads to the process that listens on this port of 127.0.0.1.
    pub fn lead_to(&self, server: u16) {
        self.server.send_replace(Some(server));
    }
}

/// Listens on one port at the address of all processes, and at those of both sides.
fn listen() -> (u16, Vec<std::net::TcpListener>) {
    let of_sides = [Side::Near.address(), Side::Far.address()];
    // Another process may use the port at one of the addresses.
    for _ in 0..100 {
        let first = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = first.local_addr().expect("an address").port();
        let others = of_sides.map(|address| std::net::TcpListener::bind((address, port)));
        if let [Ok(near), Ok(far)] = others {
            return (port, vec![first, near, far]);
        }
    }
    panic!("no port is free at {of_sides:?}");
}

async fn accept(
    listener: std::net::TcpListener,
    side: Side,
    server: watch::Receiver<Option<u16>>,
    is_whole: watch::Receiver<bool>,
) {
    listener.set_nonblocking(true).expect("a plain socket");
    let listener = TcpListener::from_std(listener).expect("a plain socket");
    let other = IpAddr::V4(side.other().address());
    while let Ok((from, peer)) = listener.accept().await {
        let goes_to = listener.local_addr().expect("an address");
        let crosses = [peer.ip(), goes_to.ip()].contains(&other);
        let is_whole = crosses.then(|| is_whole.clone());
        tokio::spawn(serve(from, server.clone(), is_whole));
    }
}

/// Forwards a connection, as long as the network is whole if it crosses the network.
async fn serve(
    from: TcpStream,
    mut server: watch::Receiver<Option<u16>>,
    is_whole: Option<watch::Receiver<bool>>,
) {
    until_whole(is_whole.clone()).await;
    let port = server.wait_for(Option::is_some).await.ok().and_then(|port| *port);
    let Some(port) = port else { return };
    let Ok(to) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
    for socket in [&from, &to] {
        let _ = socket.set_nodelay(true);
    }
    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
    let until_open = || until_whole(is_whole.clone());
    tokio::join!(
        forward(from_read, to_write, until_open),
        forward(to_read, from_write, until_open)
    );
}

/// Forwards one direction of a connection. Data waits until the network is open for it.
pub(crate) async fn forward<F: Future<Output = ()>>(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    until_open: impl Fn() -> F,
) {
    let mut chunk = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut chunk).await {
        until_open().await;
        if to.write_all(&chunk[..read]).await.is_err() {
            return;
        }
    }
    until_open().await;
    let _ = to.shutdown().await;
}

async fn until_whole(is_whole: Option<watch::Receiver<bool>>) {
    if let Some(mut is_whole) = is_whole {
        let _ = is_whole.wait_for(|is_whole| *is_whole).await;
    }
}
