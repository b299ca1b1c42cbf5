//! A connection that sends the parts of a request together.
//!
//! The implementation of HTTP/2 writes the head of a request first, and the body after another task has supplied it, which
//! follows immediately. Sent one by one, the two packets would wake the server twice for each request.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The largest number of bytes that are collected before they are sent.
const MOST: usize = 16 * 1024;

/// Collects what is written until other tasks that are ready have been polled.
pub(super) struct JoinedWrites<T> {
    inner: T,
    unsent: Vec<u8>,
    /// How much of it was sent.
    sent: usize,
    /// Whether a flush of these bytes has returned `Pending`, so that other tasks are polled.
    has_yielded: bool,
}

impl<T: AsyncWrite + Unpin> JoinedWrites<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, unsent: Vec::new(), sent: 0, has_yielded: false }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.unsent.len() {
            let rest = &self.unsent[self.sent..];
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        self.unsent.clear();
        (self.sent, self.has_yielded) = (0, false);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for JoinedWrites<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for JoinedWrites<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.unsent.len() >= MOST {
            ready!(self.poll_send(cx))?;
        }
        let taken = bytes.len().min(MOST - self.unsent.len());
        self.unsent.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.unsent.is_empty() && !self.has_yielded {
            self.has_yielded = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::task::Waker;

    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tonic::Request;
    use tonic::client::Grpc;
    use tonic::codegen::http::Uri;
    use tonic::codegen::http::uri::PathAndQuery;
    use tonic::transport::Endpoint;
    use tonic_prost::ProstCodec;

    use super::super::messages::{StatusRequest, StatusResponse};
    use super::*;
    use lock_core::sync::{Mutex, lock};

    type Writes = Arc<Mutex<Vec<Vec<u8>>>>;

    /// Records what is written at a time.
    struct RecordedWrites {
        inner: DuplexStream,
        writes: Writes,
    }

    impl RecordedWrites {
        fn new(inner: DuplexStream) -> (Self, Writes) {
            let writes = Writes::default();
            (Self { inner, writes: Arc::clone(&writes) }, writes)
        }
    }

    impl AsyncRead for RecordedWrites {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_read(cx, buffer)
        }
    }

    impl AsyncWrite for RecordedWrites {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, bytes))?;
            lock(&self.writes).push(bytes[..written].to_vec());
            Poll::Ready(Ok(written))
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.inner).poll_shutdown(cx)
        }
    }

    /// Reads frames up to the end of a request. Returns the positions of its first frame and of its last one in all that was
    /// sent.
    async fn read_request(server: &mut DuplexStream, position: &mut usize) -> (usize, usize) {
        const DATA: u8 = 0;
        const HEADERS: u8 = 1;
        const END_STREAM: u8 = 1;
        let mut first = None;
        loop {
            let mut frame = [0; 9];
            server.read_exact(&mut frame).await.expect("open");
            let length = usize::from(frame[1]) << 8 | usize::from(frame[2]);
            server.read_exact(&mut vec![0; length]).await.expect("open");
            let begin = *position;
            *position += frame.len() + length;
            match frame[3] {
                HEADERS => first = Some(begin),
                DATA if frame[4] & END_STREAM != 0 => return (first.expect("a head"), begin),
                _ => {}
            }
        }
    }

    /// The number of writes that carry the head and the body of a request, of the second one on a connection.
    async fn writes_of_a_request<T>(connection: impl FnOnce(RecordedWrites) -> T) -> usize
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        const PREFACE: usize = 24;
        /// A frame of settings without any.
        const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
        /// The answer to the first request: `:status` is 200, and `grpc-status` is 12.
        const ANSWER: &[u8] = b"\0\0\x11\x01\x05\0\0\0\x01\x88\0\x0bgrpc-status\x0212";
        let (near, mut server) = duplex(MOST);
        let (recorded, writes) = RecordedWrites::new(near);
        let mut connection = Some(TokioIo::new(connection(recorded)));
        let connector = tower::service_fn(move |_: Uri| {
            let connection = connection.take();
            let second = || io::Error::from(io::ErrorKind::NotConnected);
            std::future::ready(connection.ok_or_else(second))
        });
        let channel = Endpoint::from_static("http://member").connect_with_connector_lazy(connector);
        let requests = tokio::spawn(async move {
            let mut grpc = Grpc::new(channel);
            for _ in 0..2 {
                grpc.ready().await.expect("connected");
                let path = PathAndQuery::from_static("/etcdserverpb.Maintenance/Status");
                let codec = ProstCodec::<StatusRequest, StatusResponse>::default();
                let _ = grpc.unary(Request::new(StatusRequest {}), path, codec).await;
            }
        });
        server.write_all(SETTINGS).await.expect("open");
        let mut position = PREFACE;
        server.read_exact(&mut [0; PREFACE]).await.expect("open");
        read_request(&mut server, &mut position).await;
        server.write_all(ANSWER).await.expect("open");
        let (first, last) = read_request(&mut server, &mut position).await;
        requests.abort();
        let writes = lock(&writes);
        let write_with = |position: usize| {
            let mut end = 0;
            writes.iter().position(|write| {
                end += write.len();
                position < end
            })
        };
        1 + write_with(last).expect("written") - write_with(first).expect("written")
    }

    /// The control shows that the implementation of HTTP/2 still needs this.
    #[tokio::test]
    async fn a_request_is_one_write() {
        assert_eq!(writes_of_a_request(JoinedWrites::new).await, 1);
        assert_eq!(writes_of_a_request(|connection| connection).await, 2);
    }

    #[tokio::test]
    async fn what_is_written_before_the_second_poll_of_a_flush_is_sent_together() {
        let (near, mut far) = duplex(1024);
        let (recorded, writes) = RecordedWrites::new(near);
        let lengths = || lock(&writes).iter().map(Vec::len).collect::<Vec<_>>();
        let mut joined = JoinedWrites::new(recorded);
        joined.write_all(b"head").await.expect("open");
        // The task is polled again at once, when others have been polled.
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut joined).poll_flush(&mut cx).is_pending());
        joined.write_all(b"body").await.expect("open");
        joined.flush().await.expect("open");
        assert_eq!(lengths(), [8]);
        // Each flush waits once.
        joined.write_all(b"more").await.expect("open");
        let mut polls = 0;
        let flushed = poll_fn(|cx| {
            polls += 1;
            Pin::new(&mut joined).poll_flush(cx)
        });
        flushed.await.expect("open");
        assert_eq!((polls, lengths()), (2, vec![8, 4]));
        let mut received = [0; 12];
        far.read_exact(&mut received).await.expect("open");
        assert_eq!(&received, b"headbodymore");
    }

    #[tokio::test]
    async fn all_bytes_arrive_in_order_through_a_narrow_connection() {
        let (near, mut far) = duplex(100);
        let sent: Vec<u8> = (0..=250).cycle().take(MOST * 5).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            let mut joined = JoinedWrites::new(near);
            for part in sent.chunks(7_000) {
                joined.write_all(part).await.expect("open");
            }
            joined.shutdown().await.expect("open");
        });
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.expect("open");
        writer.await.expect("no panic");
        assert!(received == expected);
    }

    #[tokio::test]
    async fn the_unsent_bytes_are_limited() {
        let (near, _far) = duplex(1);
        let mut joined = JoinedWrites::new(near);
        let mut cx = Context::from_waker(Waker::noop());
        let bytes = vec![0; MOST * 2];
        let mut write = |bytes: &[u8]| Pin::new(&mut joined).poll_write(&mut cx, bytes);
        assert!(matches!(write(&bytes[..1]), Poll::Ready(Ok(1))));
        assert!(matches!(write(&bytes), Poll::Ready(Ok(taken)) if taken == MOST - 1));
        assert!(write(&bytes).is_pending());
        assert_eq!(joined.unsent.len(), MOST);
    }

    #[tokio::test]
    async fn a_closed_connection_is_an_error_of_the_flush() {
        let (near, far) = duplex(1);
        drop(far);
        let mut joined = JoinedWrites::new(near);
        joined.write_all(b"lost").await.expect("not sent yet");
        let error = joined.flush().await.expect_err("closed");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
