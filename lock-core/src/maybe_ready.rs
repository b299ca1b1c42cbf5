//! A result that is often known immediately.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

/// A result that is already known, which needs no allocation, or otherwise a boxed future, which
/// keeps the futures that await it small.
#[expect(missing_debug_implementations, reason = "a future has nothing to show")]
pub enum MaybeReady<'a, T> {
    /// `None` after the result was taken.
    Ready(Option<T>),
    Pending(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
    /// A future that the notifier thread polls if its caller does not.
    Driven(Driven<T>),
}

impl<'a, T> MaybeReady<'a, T> {
    pub fn ready(value: T) -> Self {
        Self::Ready(Some(value))
    }

    pub fn pending(future: impl Future<Output = T> + Send + 'a) -> Self {
        Self::Pending(Box::pin(future))
    }
}

impl<T> MaybeReady<'_, T> {
    /// The result if it is already known.
    pub fn known(self) -> Option<T> {
        match self {
            Self::Ready(value) => value,
            Self::Pending(_) | Self::Driven(_) => None,
        }
    }
}

impl<T: Unpin> Future for MaybeReady<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // A task whose calls have their results at once lets others run, as with tokio's calls.
        let progress = ready!(poll_proceed(cx));
        let polled = match self.get_mut() {
            // A poll after completion is a bug of the caller. The library never panics, so the
            // future is pending forever.
            Self::Ready(value) => value.take().map_or(Poll::Pending, Poll::Ready),
            Self::Pending(future) => future.as_mut().poll(cx),
            Self::Driven(driven) => Pin::new(driven).poll(cx),
        };
        if polled.is_ready() {
            progress.made_progress();
        }
        polled
    }
}

/// A future that its caller and the notifier thread may poll in turns.
pub trait Drive<T>: Send + Sync {
    /// Polls for the caller. Takes an `Arc`, because `self` becomes the waker.
    fn poll(self: Arc<Self>, cx: &Context<'_>) -> Poll<T>;

    /// Cancels the work, because the caller has dropped the future.
    fn cancel(&self);
}

/// The caller's handle to a [`Drive`]. Dropping it cancels the work.
#[expect(missing_debug_implementations, reason = "a future has nothing to show")]
pub struct Driven<T>(Arc<dyn Drive<T>>);

impl<T> Driven<T> {
    pub fn new(work: Arc<dyn Drive<T>>) -> Self {
        Self(work)
    }
}

impl<T> Future for Driven<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Arc::clone(&self.0).poll(cx)
    }
}

impl<T> Drop for Driven<T> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
