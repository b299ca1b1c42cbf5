//! Opening connections to members.

use std::io;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::http::Uri;

use super::address::DEFAULT_PORT;
use super::joined_writes::JoinedWrites;

/// A connection without TLS.
pub(super) async fn connect(uri: Uri) -> io::Result<TokioIo<JoinedWrites<TcpStream>>> {
    let socket = open_socket(&uri).await?;
    Ok(TokioIo::new(JoinedWrites::new(socket)))
}

/// Connects to the host and the port.
pub(super) async fn open_socket(uri: &Uri) -> io::Result<TcpStream> {
    let socket = TcpStream::connect((host_of(uri), uri.port_u16().unwrap_or(DEFAULT_PORT))).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// The host, without the brackets of an address of IPv6.
pub(super) fn host_of(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_matches(['[', ']'])
}
