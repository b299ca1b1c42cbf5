//! Releases that go together.
//!
//! To start a script takes the server longer than to free a lock. So while many releases of a layout are in flight on a fast
//! network, at most two tasks of a runtime send further ones, many at a time. When a task has its answers, it takes the releases
//! that have begun meanwhile. On a slow network, that wait would cost more than the scripts.
//!
//! The callers do not send them, because they may not poll their releases.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;

use lock_core::store::contract::{Mode, Release, Released, Resource, StoreError};
use lock_core::store::owner::OwnerId;
use lock_core::store::per_runtime::PerRuntime;
use lock_core::sync::{Mutex, lock};

/// How many releases are in flight before further ones go together.
const ALONE: usize = 16;

/// How many are sent together at most.
pub(crate) const TOGETHER: usize = 32;

/// How many releases a task sends before it lets other tasks run.
const IN_A_ROUND: usize = 32 * TOGETHER;

/// How many tasks of a runtime send them.
const FLIGHTS: usize = 2;

/// The releases of one layout.
#[derive(Default)]
pub(crate) struct JoinedReleases {
    in_flight: AtomicUsize,
    pub(crate) queues: PerRuntime<Arc<Mutex<ReleaseQueue>>>,
}

/// A release in flight.
pub(crate) struct ReleaseInFlight<'a>(&'a AtomicUsize);

/// The releases that are sent next.
#[derive(Default)]
pub(crate) struct ReleaseQueue {
    queued: VecDeque<QueuedRelease>,
    /// The number of tasks that send them.
    flights: usize,
}

/// A release that a task sends, and its caller.
pub(crate) struct QueuedRelease {
    key: Box<str>,
    mode: Mode,
    owner: OwnerId,
    keep: Duration,
    queued: Option<Duration>,
    leaves_gap: bool,
    caller: oneshot::Sender<Result<Released, StoreError>>,
}

/// A task that sends releases. If the last one is dropped with its runtime, the callers are told so.
pub(crate) struct ReleaseFlight {
    queue: Arc<Mutex<ReleaseQueue>>,
    is_over: bool,
}

/// Lets other tasks run that are ready. Unlike with tokio's function, any idle thread of the runtime may go on with this one.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl JoinedReleases {
    /// Counts a release until the result is dropped. Also returns whether so many are in flight that it may go together with
    /// others.
    pub(crate) fn begin(&self) -> (ReleaseInFlight<'_>, bool) {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        (ReleaseInFlight(&self.in_flight), before >= ALONE)
    }
}

impl Drop for ReleaseInFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl QueuedRelease {
    /// Also returns what its caller awaits.
    pub(crate) fn new(
        release: Release<'_>,
    ) -> (Self, oneshot::Receiver<Result<Released, StoreError>>) {
        let Release { resource, owner, keep, queued, leaves_gap } = release;
        let (caller, told) = oneshot::channel();
        let (key, mode) = (Box::from(resource.key), resource.mode);
        (Self { key, mode, owner, keep, queued, leaves_gap, caller }, told)
    }

    pub(crate) fn tell(self, answer: Result<Released, StoreError>) {
        // It may have been given up.
        let _ = self.caller.send(answer);
    }

    pub(crate) fn release(&self) -> Release<'_> {
        let Self { mode, owner, keep, queued, leaves_gap, .. } = *self;
        Release { resource: Resource { key: &self.key, mode }, owner, keep, queued, leaves_gap }
    }
}

impl ReleaseFlight {
    /// Adds a release to a queue. Returns a flight if another one may begin.
    pub(crate) fn begin(queue: Arc<Mutex<ReleaseQueue>>, release: QueuedRelease) -> Option<Self> {
        {
            let mut queue = lock(&queue);
            queue.queued.push_back(release);
            if queue.flights == FLIGHTS {
                return None;
            }
            queue.flights += 1;
        }
        Some(Self { queue, is_over: false })
    }

    /// What is to be sent next; `None` if nothing is, and the flight is over.
    pub(crate) async fn next(&mut self) -> Option<Vec<QueuedRelease>> {
        // The tasks that are ready come first.
        yield_once().await;
        let mut releases: Vec<_> = {
            let mut queue = lock(&self.queue);
            if queue.queued.is_empty() {
                queue.flights -= 1;
                self.is_over = true;
                return None;
            }
            let count = queue.queued.len().min(IN_A_ROUND);
            queue.queued.drain(..count).collect()
        };
        // The others have been given up.
        releases.retain(|release| !release.caller.is_closed());
        Some(releases)
    }

    /// Ends what is queued, because a request before it had no answer.
    pub(crate) fn give_up(&self, cause: &str) {
        let queued = std::mem::take(&mut lock(&self.queue).queued);
        for release in queued {
            let failure = format!("not sent, because a request before it failed: {cause}");
            release.tell(Err(StoreError::Refused(failure)));
        }
    }
}

impl Drop for ReleaseFlight {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut queue = lock(&self.queue);
        queue.flights -= 1;
        let given_up =
            if queue.flights == 0 { std::mem::take(&mut queue.queued) } else { VecDeque::new() };
        // Dropping them wakes their callers.
        drop(queue);
        drop(given_up);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_round_has_a_limit_and_the_next_one_goes_on() {
        let (queue, count) = (Arc::default(), 2 * IN_A_ROUND + 1);
        let owner = OwnerId::new().expect("randomness");
        let (mut callers, mut flights) = (Vec::new(), Vec::new());
        for number in 0..count {
            let (key, mode, keep) = (number.to_string(), Mode::Exclusive, Duration::ZERO);
            let resource = Resource { key: &key, mode };
            let release = Release { resource, owner, keep, queued: None, leaves_gap: false };
            let (release, told) = QueuedRelease::new(release);
            callers.push(told);
            flights.extend(ReleaseFlight::begin(Arc::clone(&queue), release));
        }
        assert_eq!(flights.len(), FLIGHTS);
        let mut sent = Vec::new();
        for expected in [IN_A_ROUND, IN_A_ROUND, 1] {
            let round = flights[0].next().await.expect("more");
            assert_eq!(round.len(), expected);
            sent.extend(round);
        }
        assert!(flights[0].next().await.is_none());
        let are_in_order = sent.iter().map(|it| &*it.key).eq((0..count).map(|it| it.to_string()));
        assert!(are_in_order, "each is sent once");
    }
}
