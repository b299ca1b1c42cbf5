//! One request to each store of a quorum, all of them at the same time.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep, timeout};

use lock_core::store::contract::StoreError;

/// A request to one store, which owns what it needs, so that it can outlive the call.
pub(super) type VoteRequest<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The requests to all stores, in the order of the stores.
pub(super) struct VoteRound<T> {
    /// `None` where the answer is known, or nothing is asked.
    requests: Vec<Option<VoteRequest<T>>>,
    answered: VecDeque<(usize, T)>,
    timeout: Option<RoundTimeout<T>>,
}

/// The timeout of all requests of a round, for those that have none themselves.
struct RoundTimeout<T> {
    limit: Duration,
    end: Pin<Box<Sleep>>,
    /// The answer of a store that has not answered in time.
    missing: fn(Duration) -> T,
}

impl<T: Send + 'static> VoteRound<T> {
    pub(super) fn new(requests: impl Iterator<Item = Option<VoteRequest<T>>>) -> Self {
        Self { requests: requests.collect(), answered: VecDeque::new(), timeout: None }
    }

    /// The next answer, and the number of its store; `None` if there are no more. The first poll sends all
    /// requests.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        if let Some(known) = self.answered.pop_front() {
            return Some(known);
        }
        poll_fn(|cx| {
            let mut is_over = true;
            for (number, request) in self.requests.iter_mut().enumerate() {
                let Some(pending) = request else { continue };
                match pending.as_mut().poll(cx) {
                    Poll::Ready(answer) => {
                        *request = None;
                        self.answered.push_back((number, answer));
                    }
                    Poll::Pending => is_over = false,
                }
            }
            if !is_over && self.answered.is_empty() {
                self.end_if_late(cx);
            }
            match self.answered.pop_front() {
                Some(first) => Poll::Ready(Some(first)),
                None if is_over => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// After the timeout, the requests that are left have had no answer.
    fn end_if_late(&mut self, cx: &mut Context<'_>) {
        let Some(RoundTimeout { limit, end, missing }) = &mut self.timeout else { return };
        if end.as_mut().poll(cx).is_pending() {
            return;
        }
        for (number, request) in self.requests.iter_mut().enumerate() {
            if request.take().is_some() {
                self.answered.push_back((number, missing(*limit)));
            }
        }
    }

    /// An answer that has come with an earlier one.
    pub(super) fn known(&mut self) -> Option<(usize, T)> {
        self.answered.pop_front()
    }

    /// Whether the answer of a store is still to come.
    pub(super) fn awaits(&self, number: usize) -> bool {
        self.requests[number].is_some()
    }

    /// Drops the requests that `keeps` rejects.
    pub(super) fn retain(&mut self, keeps: impl Fn(usize) -> bool) {
        for (number, request) in self.requests.iter_mut().enumerate() {
            request.take_if(|_| !keeps(number));
        }
    }

    /// Awaits the other answers in a task of its own, and passes each to `on_answer`. Only a request that is awaited
    /// notices that its connection gives no answers any more.
    pub(super) fn finish_later(mut self, on_answer: impl Fn(usize, T) + Send + 'static) {
        if self.requests.iter().all(Option::is_none) && self.answered.is_empty() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            while let Some((number, answer)) = self.next().await {
                on_answer(number, answer);
            }
        });
    }
}

impl<T: Send + 'static> VoteRound<Result<T, StoreError>> {
    /// Each store has so much time for its answer, and some grace.
    pub(super) fn within(self, limit: Duration) -> Self {
        let limit = with_grace(limit);
        let (end, missing) = (Box::pin(sleep(limit)), |limit| Err(no_answer(limit)));
        Self { timeout: Some(RoundTimeout { limit, end, missing }), ..self }
    }
}

/// A request to a store with this timeout.
pub(super) fn within<T: Send + Unpin + 'static>(
    limit: Duration,
    request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> VoteRequest<Result<T, StoreError>> {
    let limit = with_grace(limit);
    Box::pin(async move { timeout(limit, request).await.unwrap_or_else(|_| Err(no_answer(limit))) })
}

/// The timeout of a request to a store. The store has a shorter one, after which it closes a connection without answers.
fn with_grace(limit: Duration) -> Duration {
    limit + limit / 4
}

fn no_answer(limit: Duration) -> StoreError {
    StoreError::Unknown(format!("no answer within {} ms", limit.as_millis()))
}
