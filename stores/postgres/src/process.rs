//! The process of the server that serves a connection.
//!
//! A server tells a new connection the number of its process, for requests that cancel a statement. A pooler makes a number
//! up, because it may send each transaction to another process. So a connection leads to the server itself if a statement that
//! is executed over it sees the same number. Only then may it prepare statements: in the process of a pooler, another client
//! may have prepared another statement with the same name.

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio_postgres::CancelToken;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

/// The process that executes the statement.
pub(super) const PROCESS: &str = "SELECT pg_backend_pid()";

/// The code of a request for TLS, and the answer that agrees.
const TLS_REQUEST: i32 = 80_877_103;
const TLS_ACCEPTED: u8 = b'S';

/// The number of the process that a new connection was told. `None` if there is none.
///
/// It is part of the request that cancels a statement, which is sent to nobody here.
pub(super) async fn told_process(token: &CancelToken) -> Option<i32> {
    let (ours, theirs) = duplex(64);
    let sent = token.cancel_query_raw(ours, Unencrypted);
    let (sent, read) = tokio::join!(sent, read_process(theirs));
    sent.ok()?;
    read.ok().filter(|process| *process != 0)
}

/// Reads a request that cancels a statement: <https://www.postgresql.org/docs/current/protocol-message-formats.html>.
async fn read_process(mut stream: DuplexStream) -> io::Result<i32> {
    // Each request begins with its length and its code.
    let _length = stream.read_i32().await?;
    if stream.read_i32().await? == TLS_REQUEST {
        stream.write_u8(TLS_ACCEPTED).await?;
        let _length_and_code = stream.read_i64().await?;
    }
    let process = stream.read_i32().await?;
    // Until the sender has ended.
    stream.read_to_end(&mut Vec::new()).await?;
    Ok(process)
}

/// Leaves the stream as it is.
struct Unencrypted;

struct UnencryptedStream(DuplexStream);

impl TlsConnect<DuplexStream> for Unencrypted {
    type Stream = UnencryptedStream;
    type Error = io::Error;
    type Future = Ready<io::Result<UnencryptedStream>>;

    fn connect(self, stream: DuplexStream) -> Self::Future {
        ready(Ok(UnencryptedStream(stream)))
    }
}

impl TlsStream for UnencryptedStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for UnencryptedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for UnencryptedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that cancels a statement of process 4711.
    const CANCEL: [u8; 16] = [0, 0, 0, 16, 4, 210, 22, 46, 0, 0, 18, 103, 1, 2, 3, 4];

    #[tokio::test]
    async fn the_process_is_read_with_and_without_a_request_for_tls() {
        for asks in [false, true] {
            let (mut ours, theirs) = duplex(64);
            let sending = async {
                if asks {
                    ours.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.expect("room");
                    assert_eq!(ours.read_u8().await.expect("an answer"), TLS_ACCEPTED);
                }
                ours.write_all(&CANCEL).await.expect("room");
                drop(ours);
            };
            let ((), read) = tokio::join!(sending, read_process(theirs));
            assert_eq!(read.expect("a request"), 4711);
        }
        let (ours, theirs) = duplex(64);
        drop(ours);
        assert!(read_process(theirs).await.is_err(), "nothing was sent");
    }
}
