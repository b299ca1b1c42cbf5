//! A store that gives prepared answers, for unit tests.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::AcquireRequest;
use crate::clock::BootInstant;
use crate::engine::Engine;
use crate::engine::fairness::limit::HandoffLimit;
use crate::engine::testing::{self, LEASE, Request};
use crate::maybe_ready::MaybeReady;
use crate::store::contract::{
    Acquired, Capabilities, Claim, Fenced, Grant, Lane, Layout, Left, LockStore, Mode, Release,
    Released, ReleasedBatch, Renewal, Renewed, Resource, SendTrace, StoreError,
};
use crate::store::faulty::OneStore;
use crate::store::owner::OwnerId;
use crate::store::subscriptions::{Subscription, Subscriptions};
use crate::sync::{Mutex, lock, time};
use crate::timeout::{RequestTimeout, Timeout, Wait};

/// The timeout of a single attempt.
pub(super) const ONCE: Wait = Wait::For(Duration::ZERO);

/// Gives the prepared answers to acquire requests, and then no more. All other requests succeed.
#[derive(Default)]
pub(super) struct ScriptedStore {
    answers: Mutex<VecDeque<Result<Acquired, StoreError>>>,
    /// Whether each attempt was fresh.
    attempts: Mutex<Vec<bool>>,
    /// The last check of the key, and when it was made.
    pub(super) last_check: Mutex<Option<(Left, BootInstant)>>,
    /// The time to each answer.
    pub(super) delay: Mutex<Duration>,
    pub(super) channels: OnceLock<Arc<Subscriptions>>,
}

impl ScriptedStore {
    pub(super) fn of(answers: impl IntoIterator<Item = Result<Acquired, StoreError>>) -> Arc<Self> {
        let store = Self::default();
        *lock(&store.answers) = answers.into_iter().collect();
        store.channels.get_or_init(Subscriptions::local);
        Arc::new(store)
    }

    pub(super) fn attempts(&self) -> Vec<bool> {
        lock(&self.attempts).clone()
    }

    pub(super) fn channels(&self) -> &Arc<Subscriptions> {
        self.channels.get().expect("created with the store")
    }
}

impl LockStore for ScriptedStore {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> MaybeReady<'a, Result<Acquired, StoreError>> {
        MaybeReady::pending(async move {
            trace.sent(1);
            lock(&self.attempts).push(claim.fresh);
            let answer = lock(&self.answers).pop_front();
            let (within, delay) = (timeout.answer.min(timeout.total), *lock(&self.delay));
            match answer {
                Some(answer) if delay < within => {
                    time::sleep(delay).await;
                    answer
                }
                _ => {
                    time::sleep(within).await;
                    Err(StoreError::Unknown("silent".into()))
                }
            }
        })
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        MaybeReady::ready(vec![Ok(Renewed::Extended); batch.len()])
    }

    fn release<'a>(
        &'a self,
        _: Release<'a>,
        _: Lane,
    ) -> MaybeReady<'a, Result<Released, StoreError>> {
        MaybeReady::ready(Ok(Released::Freed { woken: 0 }))
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        _: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        let answers = vec![Ok(Released::Freed { woken: 0 }); batch.len()];
        MaybeReady::ready(ReleasedBatch { connection: None, answers })
    }

    fn fence<'a>(
        &'a self,
        _: Resource<'a>,
        _: OwnerId,
        _: u64,
    ) -> MaybeReady<'a, Result<Fenced, StoreError>> {
        MaybeReady::ready(Ok(Fenced::With(1)))
    }

    fn count_waiters<'a>(
        &'a self,
        _: Resource<'a>,
        _: Lane,
    ) -> MaybeReady<'a, Result<usize, StoreError>> {
        MaybeReady::ready(Ok(0))
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
        self.channels().listen(resource.key, resource.key, Layout::TOKEN, owner)
    }

    fn last_check(&self, _: Resource<'_>) -> Option<(Left, BootInstant)> {
        *lock(&self.last_check)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { counts_waiters: true, ..Capabilities::PLAIN }
    }

    fn layout(&self) -> &'static str {
        "string"
    }
}

pub(super) fn engine(store: &Arc<ScriptedStore>) -> Arc<Engine> {
    testing::start(&OneStore(Arc::clone(store) as _), HandoffLimit::default())
}

pub(super) fn request(store: &Arc<ScriptedStore>, wait: Wait) -> AcquireRequest {
    let Request { key, terms, .. } = testing::request(Some(LEASE));
    AcquireRequest {
        key,
        mode: Mode::Exclusive,
        store: Arc::clone(store) as _,
        timeout: Timeout::new(wait),
        terms,
        is_fair: false,
    }
}

#[expect(clippy::unnecessary_wraps, reason = "like the other answers")]
pub(super) fn granted() -> Result<Acquired, StoreError> {
    Ok(Acquired::Granted(Grant::of(LEASE)))
}

#[expect(clippy::unnecessary_wraps, reason = "like the other answers")]
pub(super) fn busy(left: Left) -> Result<Acquired, StoreError> {
    Ok(Acquired::Busy(left))
}

pub(super) fn refused(cause: &str) -> Result<Acquired, StoreError> {
    Err(StoreError::Refused(cause.into()))
}

pub(super) fn unknown(cause: &str) -> Result<Acquired, StoreError> {
    Err(StoreError::Unknown(cause.into()))
}
