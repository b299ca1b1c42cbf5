//! Releases that go together.
//!
//! A server works longer for a script than for the lock that it frees, and a client longer for a request than for a release. So
//! while many releases of a layout are in flight on a fast network, further ones are sent together: at most two such requests
//! are in flight on a runtime, and the next one takes all that have begun meanwhile. On a slow network, they would wait for
//! longer than the server works.
//!
//! Tasks of their own send them, because a caller may not poll its release.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::handle::RedisStore;
use super::route::Route;
use crate::join::join_all;
use crate::safeguard::Safeguard;
use crate::store::contract::{Lane, Mode, Release, Released, Resource, StoreError};
use crate::store::owner::OwnerId;
use crate::store::per_runtime::PerRuntime;
use crate::sync::{Mutex, lock, yield_now};
use crate::telemetry::StoreOperation;

/// How many releases are in flight before further ones go together.
const ALONE: usize = 16;

/// How many are sent together at most.
const TOGETHER: usize = 32;

/// How many requests with several releases are in flight on a runtime.
const FLIGHTS: usize = 2;

/// The releases of one layout that callers await.
#[derive(Default)]
pub(super) struct JoinedReleases {
    in_flight: AtomicUsize,
    queues: PerRuntime<Arc<Mutex<ReleaseQueue>>>,
}

/// A release in flight.
pub(super) struct ReleaseInFlight<'a>(&'a AtomicUsize);

/// The releases that are sent next.
#[derive(Default)]
struct ReleaseQueue {
    queued: Vec<QueuedRelease>,
    /// The number of tasks that send them.
    flights: usize,
}

/// A release that a task sends, and its caller.
struct QueuedRelease {
    key: Box<str>,
    mode: Mode,
    owner: OwnerId,
    keep: Duration,
    queued: Option<Duration>,
    leaves_gap: bool,
    caller: oneshot::Sender<Result<Released, StoreError>>,
}

/// A task that sends releases. If the last one is dropped with its runtime, the callers are told that there is no answer.
struct ReleaseFlight {
    queue: Arc<Mutex<ReleaseQueue>>,
    is_over: bool,
}

impl JoinedReleases {
    /// Counts a release until the result is dropped. Also returns whether so many are in flight that it may go together with
    /// others.
    pub(super) fn begin(&self) -> (ReleaseInFlight<'_>, bool) {
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
    fn release(&self) -> Release<'_> {
        let Self { mode, owner, keep, queued, leaves_gap, .. } = *self;
        Release { resource: Resource { key: &self.key, mode }, owner, keep, queued, leaves_gap }
    }
}

impl ReleaseFlight {
    /// Adds a release to a queue. Returns a flight if another one may begin.
    fn begin(queue: Arc<Mutex<ReleaseQueue>>, release: QueuedRelease) -> Option<Self> {
        {
            let mut queue = lock(&queue);
            queue.queued.push(release);
            if queue.flights == FLIGHTS {
                return None;
            }
            queue.flights += 1;
        }
        Some(Self { queue, is_over: false })
    }

    /// Sends what is queued until nothing is.
    async fn run(mut self, store: RedisStore) {
        loop {
            // The tasks that are ready come first.
            yield_now().await;
            let mut releases = {
                let mut queue = lock(&self.queue);
                if queue.queued.is_empty() {
                    queue.flights -= 1;
                    self.is_over = true;
                    return;
                }
                std::mem::take(&mut queue.queued)
            };
            // The others have been given up.
            releases.retain(|release| !release.caller.is_closed());
            let mut releases = releases.into_iter();
            let next = || Some(releases.by_ref().take(TOGETHER).collect::<Vec<_>>());
            let batches = std::iter::from_fn(next).take_while(|batch| !batch.is_empty());
            join_all(batches.map(|batch| store.send_together(batch))).await;
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
            if queue.flights == 0 { std::mem::take(&mut queue.queued) } else { Vec::new() };
        // Dropping them wakes their callers.
        drop(queue);
        drop(given_up);
    }
}

impl RedisStore {
    /// Whether a release of this lane may go together with others. In a cluster, keys have different nodes.
    pub(super) fn can_join(&self, lane: Lane) -> bool {
        let is_near = |route: &Route| match route {
            Route::One(connection) => connection.is_near(),
            Route::Cluster(_) => false,
        };
        lane == Lane::Caller && self.shared.route(lane).is_ok_and(|route| is_near(&route))
    }

    /// Frees one together with others.
    pub(super) async fn free_together(
        &self,
        release: Release<'_>,
        _in_flight: ReleaseInFlight<'_>,
    ) -> Result<Released, StoreError> {
        let Release { resource, owner, keep, queued, leaves_gap } = release;
        let (caller, told) = oneshot::channel();
        let (key, mode) = (Box::from(resource.key), resource.mode);
        let release = QueuedRelease { key, mode, owner, keep, queued, leaves_gap, caller };
        let queue = self.joined.queues.here(Arc::default);
        if let Some(flight) = ReleaseFlight::begin(queue, release) {
            let flight = flight.run(self.clone());
            if Safeguard::JoinedReleasesHaveATask.is_on() {
                drop(tokio::spawn(flight));
            } else {
                flight.await;
            }
        }
        let ended = |_| Err(StoreError::Unknown("the runtime has ended".to_owned()));
        told.await.unwrap_or_else(ended)
    }

    async fn send_together(&self, batch: Vec<QueuedRelease>) {
        let releases: Vec<Release<'_>> = batch.iter().map(QueuedRelease::release).collect();
        let mut answers = match &releases[..] {
            [single] => vec![self.free_alone(*single, Lane::Caller, None).await],
            _ => {
                let options = self.holder_options(StoreOperation::Release);
                let answers = self.free_all(&releases, Lane::Caller, &options).await;
                answers.unwrap_or_else(|error| vec![Err(error); releases.len()])
            }
        };
        // The user may have no permission for one of the keys.
        let is_denied = matches!(answers[..], [Err(StoreError::Denied(_)), ..]);
        if releases.len() > 1 && is_denied && Safeguard::DeniedReleasesGoAlone.is_on() {
            let alone = releases.iter().map(|one| self.free_alone(*one, Lane::Caller, None));
            answers = join_all(alone).await;
        }
        for (release, answer) in batch.into_iter().zip(answers) {
            // It may have been given up.
            let _ = release.caller.send(answer);
        }
    }
}
