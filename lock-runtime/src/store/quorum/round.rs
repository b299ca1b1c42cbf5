//! One request to each store of a quorum, all of them at the same time.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use tokio::runtime::Handle;

/// A request to one store, which owns what it needs, so that it can outlive the call.
pub(super) type VoteRequest<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The requests to all stores, in the order of the stores.
pub(super) struct VoteRound<T> {
    /// `None` where the answer is known, or nothing is asked.
    requests: Vec<Option<VoteRequest<T>>>,
    answered: VecDeque<(usize, T)>,
}

impl<T: Send + 'static> VoteRound<T> {
    pub(super) fn new(requests: impl Iterator<Item = Option<VoteRequest<T>>>) -> Self {
        Self { requests: requests.collect(), answered: VecDeque::new() }
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
            match self.answered.pop_front() {
                Some(first) => Poll::Ready(Some(first)),
                None if is_over => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
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
