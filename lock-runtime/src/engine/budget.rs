//! How long one call may take, with everything that it waits for.

use std::time::Duration;

use crate::clock::BootInstant;
use crate::store::Patience;
use crate::sync::time::{self, Instant};
use crate::wait::Wait;

/// How long a caller will wait, all in all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    /// On the clock of the deadlines.
    began: BootInstant,
    /// On that of the timers; `None`: for ever.
    end: Option<Instant>,
    once: bool,
}

impl Budget {
    pub(super) fn new(wait: Wait) -> Self {
        let end = wait.bound().and_then(|bound| Instant::now().checked_add(bound));
        Self { began: BootInstant::now(), end, once: wait.is_once() }
    }

    /// When the wait began, on the clock of the deadlines.
    pub(super) fn began(&self) -> BootInstant {
        self.began
    }

    pub(super) fn is_once(&self) -> bool {
        self.once
    }

    pub(super) fn waited(&self) -> Duration {
        BootInstant::now().since(self.began)
    }

    pub(super) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// How much of it is left; `None`: it never ends.
    pub(super) fn left(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Whether it will be over after a pause.
    pub(super) fn ends_within(&self, pause: Duration) -> bool {
        self.end.is_some_and(|end| Instant::now() + pause >= end)
    }

    /// How long one request may take. Who will not wait at all still gives the store the time
    /// for one answer.
    pub(super) fn for_one_try(&self, response_timeout: Duration) -> Patience {
        let total = match self.end {
            Some(end) if !self.once => end.saturating_duration_since(Instant::now()),
            Some(_) => response_timeout,
            None => Duration::MAX,
        };
        Patience { answer: response_timeout.min(total), total }
    }

    /// The future's output, or `None` if the wait is over first.
    pub(super) fn limit<F: Future>(&self, future: F) -> impl Future<Output = Option<F::Output>> {
        let end = self.end;
        async move {
            match end {
                Some(end) => time::timeout_at(end, future).await.ok(),
                None => Some(future.await),
            }
        }
    }
}
