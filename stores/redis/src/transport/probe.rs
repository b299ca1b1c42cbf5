//! Finds out whether a port uses TLS, to explain a connection that failed.
//!
//! A server without TLS does not answer the beginning of a TLS handshake: it waits for the end of
//! the line. A server with TLS closes the connection when it receives a command. Neither explains
//! itself, so a second connection tells which of the two the port is. Only a client that has never
//! logged in makes it.

#[cfg(feature = "tls")]
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::timeout;

/// How long a probe may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A TLS record with an invalid first message of a handshake. A TLS server answers with an alert.
const INVALID_HANDSHAKE: &[u8] = &[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0];

/// The types of the TLS records that a server begins with: an alert, or its part of the handshake.
const RECORDS: [u8; 2] = [0x15, 0x16];

/// Whether the port answers like a Redis server without TLS.
#[cfg(feature = "tls")]
pub(crate) async fn is_plain(address: SocketAddr) -> bool {
    matches!(first_byte(address, b"PING\r\n").await, Some(b'+' | b'-'))
}

/// Whether the port answers like a server with TLS.
pub(crate) async fn is_tls(host: &str, port: u16) -> bool {
    first_byte((host, port), INVALID_HANDSHAKE).await.is_some_and(|first| RECORDS.contains(&first))
}

/// The first byte of the answer to `question`.
async fn first_byte(address: impl ToSocketAddrs, question: &[u8]) -> Option<u8> {
    let ask = async {
        let mut socket = TcpStream::connect(address).await?;
        socket.write_all(question).await?;
        socket.read_u8().await
    };
    timeout(TIMEOUT, ask).await.ok()?.ok()
}
