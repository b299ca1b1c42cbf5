//! Spans around the wait for a lock and around the hold of a body.
//!
//! They have the level `DEBUG`. While no subscriber enables them, they cost one check for each call. A span is
//! boxed, because every annotated function's future has room for it.

use std::ops::Deref;

use tracing::field::Empty;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Span, debug_span};

use super::label::SiteLabel;
use super::outcome::AcquisitionOutcome;
use crate::error::LockError;
use crate::events;

/// That of all spans and events of the library.
const TARGET: &str = "lock_runtime";

/// Whether a subscriber may want spans.
#[inline]
pub(crate) fn are_enabled() -> bool {
    // A check of this callsite would not tell about the filters of the spans.
    Level::DEBUG <= LevelFilter::current()
}

/// Where a span belongs.
#[derive(Clone, Copy)]
pub(crate) struct SpanPlace<'a> {
    pub(crate) key: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) label: SiteLabel,
}

/// The span of a call that waits. If the call is dropped, it ends as cancelled.
#[derive(Debug)]
pub(crate) struct WaitSpan(Box<Span>);

impl WaitSpan {
    /// `None` if no subscriber wants it.
    pub(crate) fn new(place: SpanPlace<'_>) -> Option<Self> {
        let SpanPlace { key, namespace, label: SiteLabel { template, function } } = place;
        let span = debug_span!(
            target: TARGET,
            "lock.wait",
            lock.key = key,
            lock.template = template,
            lock.namespace = namespace,
            code.function.name = function,
            lock.outcome = AcquisitionOutcome::Cancelled.as_str(),
            lock.holder = Empty,
            error.r#type = Empty,
        );
        (!span.is_disabled()).then(|| Self(Box::new(span)))
    }

    /// The call has ended.
    pub(crate) fn ended(self, outcome: AcquisitionOutcome, error: Option<&LockError>) {
        self.0.record("lock.outcome", outcome.as_str());
        if let Some(error) = error {
            record_error(&self.0, error);
        }
        if let Some(LockError::Busy { holder, .. }) = error {
            self.0.record("lock.holder", holder.to_string());
        }
    }
}

impl Deref for WaitSpan {
    type Target = Span;

    fn deref(&self) -> &Span {
        &self.0
    }
}

/// The span of a body under its lock.
#[derive(Debug, Clone)]
pub(crate) struct HoldSpan(Box<Span>);

impl HoldSpan {
    /// `None` if no subscriber wants it. `grant` says how the call has got the lock, and `waited` for how many
    /// seconds it has waited.
    pub(crate) fn new(place: SpanPlace<'_>, grant: &'static str, waited: f64) -> Option<Self> {
        let SpanPlace { key, namespace, label: SiteLabel { template, function } } = place;
        let span = debug_span!(
            target: TARGET,
            "lock.hold",
            lock.key = key,
            lock.template = template,
            lock.namespace = namespace,
            code.function.name = function,
            lock.grant = grant,
            lock.wait_seconds = waited,
            lock.lost = Empty,
            lock.fencing_token = Empty,
            error.r#type = Empty,
        );
        (!span.is_disabled()).then(|| Self(Box::new(span)))
    }

    /// The lock was lost, if that is the error.
    pub(crate) fn lost(&self, error: &LockError) {
        if let LockError::Lost { reason, .. } = error {
            record_error(&self.0, error);
            self.0.record("lock.lost", reason.as_str());
        }
    }

    /// The body has asked for its fencing token.
    pub(crate) fn fenced(&self, token: u64) {
        self.0.record("lock.fencing_token", token);
    }
}

impl Deref for HoldSpan {
    type Target = Span;

    fn deref(&self) -> &Span {
        &self.0
    }
}

/// The span of the previous hold of a lock, which the next one follows. A subscriber is user code, so a span that
/// any thread of the library may drop is dropped on the log thread.
#[derive(Debug)]
pub(crate) struct FormerSpan(Option<HoldSpan>);

impl FormerSpan {
    pub(crate) fn new(span: &HoldSpan) -> Self {
        Self(Some(span.clone()))
    }

    /// Ends the span on this thread, which is that of the caller.
    pub(crate) fn end(mut self) {
        drop(self.0.take());
    }

    /// Says that the next hold of the lock follows this one.
    pub(crate) fn precedes(&self, next: &HoldSpan) {
        if let Some(span) = &self.0 {
            next.follows_from(span.id());
        }
    }
}

impl Drop for FormerSpan {
    fn drop(&mut self) {
        if let Some(span) = self.0.take() {
            events::drop_there(span);
        }
    }
}

/// The low-cardinality name of an error, such as `busy` or `lost.gone`.
fn record_error(span: &Span, error: &LockError) {
    match error {
        LockError::Lost { reason, .. } => {
            span.record("error.type", format!("lost.{}", reason.as_str()));
        }
        error => {
            span.record("error.type", AcquisitionOutcome::of(error).as_str());
        }
    }
}
