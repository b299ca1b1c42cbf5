//! An acquisition in progress, and its measurement.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::BootInstant;
use crate::error::LockError;
use crate::maybe_ready::MaybeReady;
use crate::telemetry::{AcquiredBy, ClientMetrics, ObservedCall, SiteMetrics};

/// The result of an acquisition. Its error is boxed, because every annotated function's future contains
/// it.
pub(crate) type AcquireOutcome<G> = Result<G, Box<LockError>>;

/// An acquisition that is not measured.
pub(crate) type Unmeasured<G> = MaybeReady<'static, AcquireOutcome<G>>;

/// An acquisition in progress. It is measured when it ends, or when it is dropped.
pub(crate) struct Acquiring<G: AcquiredGuard> {
    // Before the result, so that it is dropped while the client's measurements exist.
    call: Option<ObservedCall>,
    result: Unmeasured<G>,
    /// The measurements that `call` refers to, if the result was not known at once. The client may end with
    /// the result.
    _metrics: Option<Arc<ClientMetrics>>,
}

/// The guard that an acquisition results in.
pub(crate) trait AcquiredGuard: Unpin {
    /// How the call has got the lock.
    fn acquired_by(&self) -> AcquiredBy;

    /// Records how long the call has waited that began at this time.
    fn waited_since(&mut self, began: BootInstant) -> Duration;
}

impl<G: AcquiredGuard> Acquiring<G> {
    /// An acquisition that began at this time.
    pub(crate) fn new(
        (metrics, site): (&Arc<ClientMetrics>, &'static SiteMetrics),
        began: BootInstant,
        result: Unmeasured<G>,
    ) -> Self {
        let is_known = matches!(result, MaybeReady::Ready(_));
        let metrics = (!is_known).then(|| Arc::clone(metrics));
        Self { call: Some(ObservedCall::new(site, began)), result, _metrics: metrics }
    }

    /// An acquisition that has failed at once.
    pub(crate) fn failed(site: &'static SiteMetrics, error: LockError) -> Self {
        let call = Some(ObservedCall::new(site, BootInstant::PAST));
        Self { call, result: MaybeReady::ready(Err(Box::new(error))), _metrics: None }
    }

    /// The result of an acquisition that is measured elsewhere, or that has no client.
    pub(crate) fn known(result: AcquireOutcome<G>) -> Self {
        Self { call: None, result: MaybeReady::ready(result), _metrics: None }
    }

    /// The same acquisition as a part of a call that is measured as a whole.
    pub(crate) fn unmeasured(mut self) -> Self {
        if let Some(call) = &mut self.call {
            call.forget();
        }
        Self { call: None, ..self }
    }
}

impl<G: AcquiredGuard> Future for Acquiring<G> {
    type Output = AcquireOutcome<G>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut polled = Pin::new(&mut this.result).poll(cx);
        if let Some(call) = &mut this.call {
            match &mut polled {
                Poll::Pending => call.waits(),
                Poll::Ready(Ok(guard)) => {
                    call.acquired(guard.acquired_by(), |began| guard.waited_since(began));
                }
                Poll::Ready(Err(error)) => call.failed(error),
            }
        }
        polled
    }
}
