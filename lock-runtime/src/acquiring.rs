//! An acquisition in progress, and its measurement.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::BootInstant;
use crate::connected::Connected;
use crate::error::LockError;
use crate::maybe_ready::MaybeReady;
use crate::telemetry::{
    AcquiredBy, AcquisitionOutcome, ObservedCall, SiteMetrics, SpanPlace, WaitSpan,
};

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
    /// The client, if the result was not known at once. Its measurements end with it, and `result` alone does
    /// not keep it.
    client: Option<Arc<Connected>>,
    /// Whether the client asks the store who holds a lock that is busy.
    asks_for_holder: bool,
    /// While a subscriber wants it.
    span: Option<WaitSpan>,
}

/// The guard that an acquisition results in.
pub(crate) trait AcquiredGuard: Unpin {
    /// The key that log events show.
    fn key(&self) -> &str;

    /// Tells the test, if there is one, which locks the guard holds.
    #[cfg(feature = "testing")]
    fn observe(&self);

    /// How the call has got the lock.
    fn acquired_by(&self) -> AcquiredBy;

    /// Records how long the call has waited that began at this time.
    fn waited_since(&mut self, began: BootInstant) -> Duration;
}

impl<G: AcquiredGuard> Acquiring<G> {
    /// An acquisition that began at this time.
    pub(crate) fn new(
        (client, site): (&Arc<Connected>, &'static SiteMetrics),
        began: BootInstant,
        result: Unmeasured<G>,
    ) -> Self {
        let is_known = matches!(result, MaybeReady::Ready(_));
        let client = (!is_known).then(|| Arc::clone(client));
        Self { client, ..Self::with(Some(ObservedCall::new(site, began)), result) }
    }

    /// If the lock is busy in the end, the store is asked who holds it.
    pub(crate) fn ask_for_holder(&mut self) {
        self.asks_for_holder = true;
    }

    /// The holder of a busy lock does not matter.
    pub(crate) fn without_holder(self) -> Self {
        Self { asks_for_holder: false, ..self }
    }

    /// Begins a span, if a subscriber wants one, and the result is not known at once.
    pub(crate) fn trace(&mut self, key: &str) {
        if let (Some(client), Some(call)) = (&self.client, &self.call) {
            let (namespace, label) = (&*client.namespace, call.site().label());
            self.span = WaitSpan::new(SpanPlace { key, namespace, label });
        }
    }

    /// An acquisition that has failed at once.
    pub(crate) fn failed(site: &'static SiteMetrics, error: LockError) -> Self {
        let call = ObservedCall::new(site, BootInstant::PAST);
        Self::with(Some(call), MaybeReady::ready(Err(Box::new(error))))
    }

    /// The result of an acquisition that is measured elsewhere, or that has no client.
    pub(crate) fn known(result: AcquireOutcome<G>) -> Self {
        Self::with(None, MaybeReady::ready(result))
    }

    /// An acquisition without a client, a question or a span.
    fn with(call: Option<ObservedCall>, result: Unmeasured<G>) -> Self {
        Self { call, result, client: None, asks_for_holder: false, span: None }
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
        let mut polled = this.poll_result(cx);
        match &mut polled {
            Poll::Pending => this.call.iter_mut().for_each(ObservedCall::waits),
            Poll::Ready(Ok(guard)) => this.acquired(guard),
            Poll::Ready(Err(error)) => this.call.iter_mut().for_each(|call| call.failed(error)),
        }
        let polled = match polled {
            Poll::Ready(Err(error)) if this.asks_for_holder && is_busy_elsewhere(&error) => {
                this.asks_for_holder = false;
                let Some(client) = this.client.clone() else { return Poll::Ready(Err(error)) };
                // Only now, because the call has released its place in the queue with its result.
                this.result =
                    MaybeReady::pending(async move { Err(client.with_holder(error).await) });
                this.poll_result(cx)
            }
            polled => polled,
        };
        this.ended_with(&polled);
        polled
    }
}

impl<G: AcquiredGuard> Acquiring<G> {
    fn poll_result(&mut self, cx: &mut Context<'_>) -> Poll<AcquireOutcome<G>> {
        let _entered = self.span.as_ref().map(|span| span.enter());
        Pin::new(&mut self.result).poll(cx)
    }

    fn acquired(&mut self, guard: &mut G) {
        let by = guard.acquired_by();
        if let Some(call) = &mut self.call {
            let waited = call.acquired(by, |began| guard.waited_since(began));
            if let Some(client) = &self.client {
                let slow = client.engine.metrics().slow;
                slow.acquired(guard.key(), || call.site().label(), waited);
            }
        }
        #[cfg(feature = "testing")]
        guard.observe();
        if let Some(span) = self.span.take() {
            span.ended(by.outcome(), None);
        }
    }

    /// Logs a call that has failed, when its error is complete.
    fn ended_with(&mut self, polled: &Poll<AcquireOutcome<G>>) {
        let Poll::Ready(Err(error)) = polled else { return };
        if let (Some(client), Some(call)) = (&self.client, &self.call) {
            client.engine.metrics().slow.failed(error, || call.site().label());
        }
        if let Some(span) = self.span.take() {
            span.ended(AcquisitionOutcome::of(error), Some(error));
        }
    }
}

/// Whether the lock is held by another client, which the store may know.
fn is_busy_elsewhere(error: &LockError) -> bool {
    matches!(error, LockError::Busy { holder, .. } if holder.is_another_client())
}
