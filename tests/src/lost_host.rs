//! A host that is lost without a word.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::LEASE;

/// A port of the loopback interface that answers no attempt to connect, because the kernel has no room for another
/// connection to it. Linux only.
#[derive(Debug)]
pub struct LostHost {
    address: SocketAddr,
    _listener: TcpListener,
    _connections: Vec<TcpStream>,
}

impl LostHost {
    /// Takes the port, which nobody uses.
    ///
    /// # Panics
    ///
    /// If the port is in use.
    pub async fn on(port: u16) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("a socket");
        socket.bind(address).expect("a free port");
        let listener = socket.listen(0).expect("a free port");
        let mut connections = Vec::new();
        // Nobody accepts these connections.
        while let Ok(connected) = timeout(LEASE / 2, TcpStream::connect(address)).await {
            connections.push(connected.expect("somebody listens"));
        }
        Self { address, _listener: listener, _connections: connections }
    }

    /// Whether an attempt to connect gets no answer within half a lease.
    pub async fn is_silent(&self) -> bool {
        timeout(LEASE / 2, TcpStream::connect(self.address)).await.is_err()
    }
}
