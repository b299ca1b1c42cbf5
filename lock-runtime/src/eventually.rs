//! A value that is often known at once.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::engine::Driven;

/// The value itself where it is known already, so that nothing is boxed for it; else a boxed
/// future, so that the machinery behind it does not swell the futures that await it.
pub(crate) enum Eventually<'a, T> {
    /// `None` once it was handed out.
    Ready(Option<T>),
    Pending(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
    /// One that others drive if its caller does not.
    Driven(Driven<T>),
}

impl<'a, T> Eventually<'a, T> {
    pub(crate) fn ready(value: T) -> Self {
        Self::Ready(Some(value))
    }

    pub(crate) fn pending(future: impl Future<Output = T> + Send + 'a) -> Self {
        Self::Pending(Box::pin(future))
    }
}

impl<T> Eventually<'_, T> {
    /// The value if it is known already.
    pub(crate) fn known(self) -> Option<T> {
        match self {
            Self::Ready(value) => value,
            Self::Pending(_) | Self::Driven(_) => None,
        }
    }
}

impl<T: Unpin> Future for Eventually<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            // Polling again after the answer is the caller's mistake; it then waits for ever
            // instead of panicking.
            Self::Ready(value) => value.take().map_or(Poll::Pending, Poll::Ready),
            Self::Pending(future) => future.as_mut().poll(cx),
            Self::Driven(driven) => Pin::new(driven).poll(cx),
        }
    }
}
