//! The network between the members of a cluster of etcd, from which a member can be cut off.
//!
//! The members know each other by addresses that lead nowhere, and each of them connects through a proxy of its own, which
//! `HTTPS_PROXY` names. So the proxy shows which member a connection comes from, and its `CONNECT` request shows to which
//! one it goes. (Programs in Go use no proxy for addresses of the loopback interface.)
//!
//! As with [`SplitNetwork`](crate::SplitNetwork), data that is held back is delivered when the network is whole again.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::split_network::forward;

/// The address of all members for each other, which is reserved for documentation.
pub(crate) const NOWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The longest request of a member to its proxy.
const LONGEST: usize = 4096;

/// A network of members, which are known by their ports for each other. Closes all connections when dropped.
#[derive(Debug)]
pub(crate) struct PeerNetwork {
    /// The member that is cut off.
    cut_off: watch::Sender<Option<u16>>,
    runtime: Option<Runtime>,
}

impl PeerNetwork {
    /// A network that is whole.
    pub(crate) fn new() -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        Self { cut_off: watch::Sender::new(None), runtime: Some(runtime) }
    }

    /// The port of a new proxy for the connections of this member.
    pub(crate) fn proxy_of(&self, member: u16) -> u16 {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let runtime = self.runtime.as_ref().expect("a runtime");
        runtime.spawn(accept(listener, member, self.cut_off.subscribe()));
        port
    }

    /// Holds back all data between this member and the others from now on. New connections between them hang.
    pub(crate) fn cut_off(&self, member: u16) {
        self.cut_off.send_replace(Some(member));
    }

    /// Delivers what was held back.
    pub(crate) fn heal(&self) {
        self.cut_off.send_replace(None);
    }
}

impl Drop for PeerNetwork {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(
    listener: std::net::TcpListener,
    member: u16,
    cut_off: watch::Receiver<Option<u16>>,
) {
    listener.set_nonblocking(true).expect("a plain socket");
    let listener = TcpListener::from_std(listener).expect("a plain socket");
    while let Ok((from, _)) = listener.accept().await {
        tokio::spawn(serve(from, member, cut_off.clone()));
    }
}

/// Forwards a connection of a member, as long as neither it nor the other one is cut off.
async fn serve(mut from: TcpStream, member: u16, cut_off: watch::Receiver<Option<u16>>) {
    let Some(other) = read_target(&mut from).await else { return };
    let until_open = || until_reachable([member, other], cut_off.clone());
    until_open().await;
    let Ok(to) = TcpStream::connect((Ipv4Addr::LOCALHOST, other)).await else { return };
    if from.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.is_err() {
        return;
    }
    for socket in [&from, &to] {
        let _ = socket.set_nodelay(true);
    }
    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
    tokio::join!(
        forward(from_read, to_write, until_open),
        forward(to_read, from_write, until_open)
    );
}

/// The port in the request of a member, such as `CONNECT 192.0.2.1:20001 HTTP/1.1`, after which it waits for the answer.
async fn read_target(from: &mut TcpStream) -> Option<u16> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && request.len() < LONGEST {
        request.push(from.read_u8().await.ok()?);
    }
    let request = String::from_utf8(request).ok()?;
    let address = request.strip_prefix("CONNECT ")?.split(' ').next()?;
    address.strip_prefix(&format!("{NOWHERE}:"))?.parse().ok()
}

async fn until_reachable(members: [u16; 2], mut cut_off: watch::Receiver<Option<u16>>) {
    let is_open = |cut_off: &Option<u16>| cut_off.is_none_or(|member| !members.contains(&member));
    let _ = cut_off.wait_for(is_open).await;
}
