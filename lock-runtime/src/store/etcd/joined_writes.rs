//! A connection that sends the parts of a request together.
//!
//! The implementation of HTTP/2 writes the head of a request, and the body when another task has supplied it, which happens at
//! once. Two packets would wake the server twice for each request.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is collected at most before it is sent.
const MOST: usize = 16 * 1024;

/// Collects what is written until other tasks that are ready have been polled.
pub(super) struct JoinedWrites<T> {
    inner: T,
    unsent: Vec<u8>,
    /// How much of it was sent.
    sent: usize,
    /// Whether other tasks have been polled since the last bytes were sent.
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
        let taken = bytes.len().min(MOST);
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
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// Counts what is written at a time.
    struct Counted<T>(T, Vec<usize>);

    impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let written = ready!(Pin::new(&mut self.0).poll_write(cx, bytes))?;
            self.1.push(written);
            Poll::Ready(Ok(written))
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    #[tokio::test]
    async fn what_is_written_before_the_second_poll_of_a_flush_is_sent_together() {
        let (near, mut far) = duplex(1024);
        let mut joined = JoinedWrites::new(Counted(near, Vec::new()));
        joined.write_all(b"head").await.expect("open");
        // The task is polled again at once, when others have been polled.
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut joined).poll_flush(&mut cx).is_pending());
        joined.write_all(b"body").await.expect("open");
        joined.flush().await.expect("open");
        assert_eq!(joined.inner.1, [8]);
        // Each flush waits once.
        joined.write_all(b"more").await.expect("open");
        let mut polls = 0;
        let flushed = poll_fn(|cx| {
            polls += 1;
            Pin::new(&mut joined).poll_flush(cx)
        });
        flushed.await.expect("open");
        assert_eq!((polls, &joined.inner.1[..]), (2, &[8, 4][..]));
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
        assert!(matches!(write(&bytes), Poll::Ready(Ok(MOST))));
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
