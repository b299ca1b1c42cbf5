//! Running a body under a guard.
//!
//! The deadline of the lease is checked before each poll of the body, so the body runs only while
//! the lock is provably held. The body's task is also woken when the lease is lost, and by its own
//! timer when the deadline passes. The body is then dropped. However the body ends, its future is
//! dropped *before* the lock is released, so that no destructor in the body runs after the release.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::{Pin, pin};
#[cfg(feature = "testing")]
use std::sync::Arc;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::Duration;

use crate::acquiring::{AcquiredGuard, Acquiring};
use crate::clock::BootInstant;
use crate::engine::Releasing;
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::reentrancy::Scope;
use crate::release_mode::ReleaseMode;
use crate::safeguard::Safeguard;
#[cfg(feature = "testing")]
use crate::telemetry::Loser;
use crate::telemetry::{AcquiredBy, HoldSpan, SpanPlace, spans_are_enabled};

/// What happens to a body whose lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLost {
    /// The body is dropped.
    Abort,
    /// The body continues, and can check its guard.
    Continue,
    /// The body is dropped. If the body ends before the loss is noticed, the lock is released in
    /// the store, and the body's result is dropped if the lock had been lost.
    Report,
}

/// What happens after a body has ended, or has lost its lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyEnd {
    pub(crate) on_lost: OnLost,
    pub(crate) release: ReleaseMode,
}

impl BodyEnd {
    /// Whether the call waits for the release. A loss can be reported only after its answer.
    fn awaits_release(self) -> bool {
        self.release == ReleaseMode::Awaited || self.on_lost == OnLost::Report
    }
}

/// The guard of a body: of one lock, or of several.
pub(crate) trait BodyGuard {
    /// The error for the loss of a lock; `None` while all locks are held, and if they were released.
    fn loss(&self) -> Option<LockError>;

    /// Resolves with the error when a lock is lost.
    fn lost(&self) -> impl Future<Output = LockError>;

    /// The chain of holds for the body; `None` without a hold.
    fn scope(&self) -> Option<Scope>;

    /// Releases the locks; see [`LockGuard::close`].
    fn close(&self, may_hand_off: bool) -> Releasing<'_>;

    /// See [`LockGuard::close_unawaited`].
    fn close_unawaited(&self) -> Releasing<'_>;

    /// The span of a body that begins, if a subscriber wants one.
    fn begin_span(&self) -> Option<HoldSpan>;

    /// Adds what the body has asked for to its span.
    fn describe(&self, span: &HoldSpan);

    /// Ends the span of a lock that was released, unless the next hold of the lock follows it.
    fn end_trace(&self);
}

impl AcquiredGuard for LockGuard {
    fn key(&self) -> &str {
        LockGuard::key(self)
    }

    #[cfg(feature = "testing")]
    fn observe(&self) {
        observe(self, self.waited());
    }

    fn acquired_by(&self) -> AcquiredBy {
        LockGuard::acquired_by(self)
    }

    fn waited_since(&mut self, began: BootInstant) -> Duration {
        match LockGuard::acquired_by(self) {
            AcquiredBy::Store | AcquiredBy::Handover => self.hold().waited_since(began),
            // The hold is that of another call.
            AcquiredBy::Sharing => BootInstant::now().since(began),
            AcquiredBy::Reentry => Duration::ZERO,
        }
    }
}

impl BodyGuard for LockGuard {
    fn loss(&self) -> Option<LockError> {
        self.hold().loss()
    }

    async fn lost(&self) -> LockError {
        let reason = self.hold().lost().await;
        // The deadline may have been extended meanwhile. The body is dropped all the same.
        self.hold().loss().unwrap_or_else(|| self.hold().lease().lost_to(reason))
    }

    fn scope(&self) -> Option<Scope> {
        Some(Scope::new(self))
    }

    fn close(&self, may_hand_off: bool) -> Releasing<'_> {
        LockGuard::close(self, may_hand_off)
    }

    fn close_unawaited(&self) -> Releasing<'_> {
        LockGuard::close_unawaited(self)
    }

    fn begin_span(&self) -> Option<HoldSpan> {
        if !spans_are_enabled() {
            return None;
        }
        let span = span(self, self.key(), (self.waited(), self.acquired_by().as_str()))?;
        if matches!(self.acquired_by(), AcquiredBy::Store | AcquiredBy::Handover) {
            self.hold().follow(&span);
        }
        Some(span)
    }

    fn describe(&self, span: &HoldSpan) {
        if let Some(token) = self.hold().known_fence() {
            span.fenced(token);
        }
    }

    fn end_trace(&self) {
        if spans_are_enabled()
            && let Some(last) = self.hold().end_trace()
        {
            last.end();
        }
    }
}

/// Tells the test, if there is one, that a call has got this lock. Those that share a hold are left out.
#[cfg(feature = "testing")]
pub(crate) fn observe(guard: &LockGuard, waited: Duration) {
    let Some(observer) = &guard.engine().metrics().observer else { return };
    if !matches!(guard.acquired_by(), AcquiredBy::Store | AcquiredBy::Handover) {
        return;
    }
    let (engine, hold) = (Arc::downgrade(guard.engine()), guard.hold().clone());
    let loser: Loser = Box::new(move |reason, first| {
        if let Some(engine) = engine.upgrade().filter(|_| hold.is_valid(BootInstant::now())) {
            first();
            engine.background().lose(hold.lease(), reason);
        }
    });
    observer.began(guard.key(), guard.hold().site().label(), waited, loser);
}

/// The span of a body under this guard, if a subscriber wants it. `keys` are those of the body.
pub(crate) fn span(
    guard: &LockGuard,
    keys: &str,
    (waited, grant): (Duration, &'static str),
) -> Option<HoldSpan> {
    let namespace = guard.engine().metrics().namespace();
    let label = guard.hold().site().label();
    HoldSpan::new(SpanPlace { key: keys, namespace, label }, grant, waited.as_secs_f64())
}

/// The slot from which a body takes its guard.
#[derive(Debug)]
pub struct GuardSlot<G = LockGuard>(OnceLock<G>);

impl GuardSlot {
    /// Creates an empty slot.
    #[must_use]
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self::empty()
    }
}

impl<G> GuardSlot<G> {
    pub(crate) const fn empty() -> Self {
        Self(OnceLock::new())
    }

    /// The guard, if the lock was acquired.
    pub fn get(&self) -> Option<&G> {
        self.0.get()
    }

    /// The guard of a body that runs under its lock. Without a guard, the future is pending
    /// forever.
    pub async fn held(&self) -> &G {
        match self.get() {
            Some(guard) => guard,
            None => std::future::pending().await,
        }
    }
}

/// Waits for `hold`, runs the body in `slot` while the lock is held, and releases the lock. Empties
/// the slot.
///
/// The body's output is returned even if the release fails, except if `end.on_lost` is
/// [`OnLost::Report`] and the release notices a loss.
///
/// Cancel safe: the body is dropped first, and the guard then releases the lock in the background.
pub(crate) fn run<F: Future, G: BodyGuard + AcquiredGuard>(
    mut hold: Acquiring<G>,
    end: BodyEnd,
    place: Option<&GuardSlot<G>>,
    slot: Pin<&mut Option<F>>,
) -> impl Future<Output = Result<F::Output, LockError>> {
    let on_lost = end.on_lost;
    // A block, because the future of an async function has room for its arguments twice.
    async move {
        let acquired = (&mut hold).await;
        drop(hold);
        let guard = match (acquired.map_err(|error| *error)?, place) {
            (guard, None) => Held::Here(guard),
            (guard, Some(place)) => Held::InFrame(place.0.get_or_init(|| guard)),
        };
        let span;
        // Declared after these, so that it is dropped first wherever this future is dropped.
        let mut body = Body(slot);
        let outcome = {
            let Some(future) = body.0.as_mut().as_pin_mut() else { return Err(run_before()) };
            let Some(scope) = guard.scope() else { return Err(run_before()) };
            span = guard.begin_span();
            let mut body = pin!(scope.enclose(future));
            // Boxed when the body first waits, because this future is large and would be a part of
            // every future that calls an annotated function.
            let mut lost = None;
            poll_fn(|cx| {
                let _entered = span.as_ref().map(|span| span.enter());
                let is_checked = on_lost != OnLost::Continue && Safeguard::CheckBeforePoll.is_on();
                if is_checked && let Some(loss) = guard.loss() {
                    return Poll::Ready(Err(loss));
                }
                if let Poll::Ready(output) = body.as_mut().poll(cx) {
                    return Poll::Ready(Ok(output));
                }
                if !is_checked {
                    return Poll::Pending;
                }
                // Created only when the body waits, so that a body that never waits has no cost.
                let lost = lost.get_or_insert_with(|| Box::pin(guard.lost()));
                lost.as_mut().poll(cx).map(Err)
            })
            .await
        };
        match &span {
            Some(span) => span.in_scope(|| drop(body)),
            None => drop(body),
        }
        if let Some(span) = &span {
            guard.describe(span);
            if let Err(error) = &outcome {
                span.lost(error);
            }
        }
        if outcome.is_ok() {
            let released = if end.awaits_release() {
                guard.close(on_lost != OnLost::Report)
            } else {
                guard.close_unawaited()
            };
            let released = released.await;
            if let (Some(span), Err(error)) = (&span, &released) {
                span.lost(error);
            }
            guard.end_trace();
            match released {
                Ok(()) => {}
                Err(error)
                    if on_lost == OnLost::Report && matches!(*error, LockError::Lost { .. }) =>
                {
                    return Err(*error);
                }
                // There is nothing left to release, and the loss itself has been logged.
                Err(error) if matches!(*error, LockError::Lost { .. }) => {
                    tracing::debug!(
                        key = guard.key(),
                        %error,
                        "the body has ended after its lock was lost"
                    );
                }
                Err(error) => {
                    tracing::warn!(
                        key = guard.key(),
                        %error,
                        "the body has ended, but its lock was not released"
                    );
                }
            }
        }
        guard.end_trace();
        outcome
    }
}

/// Runs the body in `slot` without a lock. Empties the slot.
pub(crate) async fn run_unlocked<F: Future>(
    slot: Pin<&mut Option<F>>,
) -> Result<F::Output, LockError> {
    let mut body = Body(slot);
    match body.0.as_mut().as_pin_mut() {
        Some(body) => Ok(body.await),
        None => Err(run_before()),
    }
}

pub(crate) fn run_before() -> LockError {
    LockError::config("body", "the body has already run")
}

/// The guard of a running body.
enum Held<'a, G> {
    Here(G),
    /// In the slot from which the body takes it.
    InFrame(&'a G),
}

impl<G> Deref for Held<'_, G> {
    type Target = G;

    fn deref(&self) -> &G {
        match self {
            Self::Here(guard) => guard,
            Self::InFrame(guard) => guard,
        }
    }
}

/// A body. Drops the future in place.
pub(crate) struct Body<'a, F>(pub(crate) Pin<&'a mut Option<F>>);

impl<F> Drop for Body<'_, F> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

#[cfg(test)]
mod tests;
