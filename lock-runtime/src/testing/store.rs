//! The store of a test client: the memory store, whose answers are awaited.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::BootInstant;
use crate::maybe_ready::MaybeReady;
use crate::questions::Answerer;
use crate::replicas::RequiredReplicas;
use crate::store::announcements::{Announced, Announcement};
#[cfg(feature = "admin")]
use crate::store::contract::Asker;
use crate::store::contract::{
    Acquired, Backend, BackgroundRuntimes, Capabilities, Claim, Fenced, Lane, Layout, Left,
    LockStore, Mode, ModeChange, ModeChanged, Queueing, Release, Released, ReleasedBatch, Renewal,
    Renewed, Resource, SendTrace, SetAcquired, SetClaim, Slot, StoreAnswer, StoreError,
};
use crate::store::hold_reports::HoldReports;
use crate::store::key_holder::KeyHolder;
use crate::store::memory::backend::MemoryBackend;
use crate::store::owner::OwnerId;
use crate::store::periods::{RunEnd, RunEnded, RunRecord, RunStart, RunStarted};
use crate::store::subscriptions::Subscription;
use crate::timeout::RequestTimeout;

/// A memory store whose answers are awaited, as those of a server.
pub(super) struct TestBackend {
    inner: Arc<MemoryBackend>,
    handles: [Arc<TestStore>; Layout::ALL.len()],
}

impl TestBackend {
    pub(super) fn new() -> Arc<Self> {
        let inner = MemoryBackend::new();
        let handle = |layout| Arc::new(TestStore { inner: inner.locks(layout) });
        let handles = Layout::ALL.map(handle);
        Arc::new(Self { inner, handles })
    }

    fn plain(&self) -> Arc<dyn LockStore> {
        self.inner.locks(Layout::TOKEN)
    }

    /// Acquires a plain lock for somebody else.
    pub(super) fn acquire(&self, (key, owner): (&str, OwnerId), term: Duration) -> bool {
        let claim = Claim {
            resource: Resource { key, mode: Mode::Exclusive },
            owner,
            term,
            renewed: false,
            fresh: true,
            acknowledged_by: RequiredReplicas::NONE,
            queueing: Queueing::None,
            queued_before: Queueing::None,
        };
        let (store, trace) = (self.plain(), SendTrace::default());
        let answer = store.try_acquire(claim, RequestTimeout::of(Duration::MAX), &trace).known();
        matches!(answer, Some(Ok(Acquired::Granted(_))))
    }

    pub(super) fn renew(&self, (key, owner): (&str, OwnerId), term: Duration) -> bool {
        let resource = Resource { key, mode: Mode::Exclusive };
        let renewal = Renewal { resource, owner, term, acknowledged_by: RequiredReplicas::NONE };
        let (store, batch) = (self.plain(), [renewal]);
        let answers = store.renew(&batch, Lane::Background).known().unwrap_or_default();
        matches!(answers[..], [Ok(Renewed::Extended)])
    }

    pub(super) fn release(&self, (key, owner): (&str, OwnerId)) -> bool {
        let resource = Resource { key, mode: Mode::Exclusive };
        let (keep, queued, leaves_gap) = (Duration::ZERO, None, false);
        let release = Release { resource, owner, keep, queued, leaves_gap };
        let store = self.plain();
        let answer = store.release(release, Lane::Background).known();
        matches!(answer, Some(Ok(Released::Freed { .. })))
    }

    /// Deletes a key, or all keys.
    pub(super) fn delete(&self, key: Option<&str>) {
        self.inner.delete(key);
    }
}

impl fmt::Debug for TestBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestBackend").finish_non_exhaustive()
    }
}

impl Backend for TestBackend {
    fn adopt(&self, _: &BackgroundRuntimes, _: HoldReports) {}

    fn runs_on_the_callers_runtime(&self) -> bool {
        true
    }

    fn holder<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<KeyHolder>> {
        self.inner.holder(key)
    }

    fn has_questions(&self) -> bool {
        self.inner.has_questions()
    }

    fn answer_with(&self, answerer: Weak<dyn Answerer>) {
        self.inner.answer_with(answerer);
    }

    #[cfg(feature = "admin")]
    fn asker(&self, namespace: &str) -> Result<Box<dyn Asker>, StoreError> {
        self.inner.asker(namespace)
    }

    fn handle(&self, layout: Layout) -> Result<Arc<dyn LockStore>, StoreError> {
        Ok(Arc::clone(&self.handles[layout.index()]) as Arc<dyn LockStore>)
    }
}

struct TestStore {
    inner: Arc<dyn LockStore>,
}

impl LockStore for TestStore {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> StoreAnswer<'a, Acquired> {
        // The answer is awaited, as that of a server.
        MaybeReady::pending(self.inner.try_acquire(claim, timeout, trace))
    }

    fn try_acquire_all<'a>(
        &'a self,
        claim: SetClaim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> StoreAnswer<'a, SetAcquired> {
        MaybeReady::pending(self.inner.try_acquire_all(claim, timeout, trace))
    }

    fn slot(&self, key: &str) -> Slot {
        self.inner.slot(key)
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        self.inner.renew(batch, lane)
    }

    fn release<'a>(&'a self, release: Release<'a>, lane: Lane) -> StoreAnswer<'a, Released> {
        self.inner.release(release, lane)
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        self.inner.release_all(batch, lane)
    }

    fn fence<'a>(
        &'a self,
        resource: Resource<'a>,
        owner: OwnerId,
        at_least: u64,
    ) -> StoreAnswer<'a, Fenced> {
        self.inner.fence(resource, owner, at_least)
    }

    fn announce<'a>(&'a self, announcement: Announcement<'a>) -> StoreAnswer<'a, Announced> {
        self.inner.announce(announcement)
    }

    fn announced<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<(String, Left)>> {
        self.inner.announced(key)
    }

    fn start_run<'a>(&'a self, start: RunStart<'a>) -> StoreAnswer<'a, RunStarted> {
        self.inner.start_run(start)
    }

    fn end_run<'a>(&'a self, end: RunEnd<'a>) -> StoreAnswer<'a, RunEnded> {
        self.inner.end_run(end)
    }

    fn last_run<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<RunRecord>> {
        self.inner.last_run(key)
    }

    fn change_mode<'a>(&'a self, change: ModeChange<'a>) -> StoreAnswer<'a, ModeChanged> {
        self.inner.change_mode(change)
    }

    fn count_waiters<'a>(&'a self, resource: Resource<'a>, lane: Lane) -> StoreAnswer<'a, usize> {
        self.inner.count_waiters(resource, lane)
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, term: Duration) -> Subscription {
        self.inner.subscribe(resource, owner, term)
    }

    fn last_check(&self, resource: Resource<'_>) -> Option<(Left, BootInstant)> {
        self.inner.last_check(resource)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn layout(&self) -> &'static str {
        self.inner.layout()
    }

    fn is_immediate(&self) -> bool {
        false
    }
}
