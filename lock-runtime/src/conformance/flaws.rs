//! The checks of extensions find the flaws that they are there for, in a memory store whose requests or answers are changed.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::error::LockError;
use crate::permits::Permits;
use crate::store::announcements::{Announced, Announcement};
use crate::store::contract::{
    Acquired, Backend, Capabilities, Claim, Fenced, Lane, Layout, LockStore, Mode, ModeChange,
    ModeChanged, OpenStore, Queueing, Release, Released, Renewal, Renewed, Resource, SendTrace,
    SetAcquired, SetClaim, Settings, Slot, StoreAnswer, StoreError,
};
use crate::store::memory::backend::MemoryBackend;
use crate::store::owner::OwnerId;
use crate::store::periods::{RunEnd, RunEnded, RunRecord, RunStart, RunStarted};
use crate::store::subscriptions::Subscription;
use crate::sync::{Mutex, lock};
use crate::timeout::RequestTimeout;
use lock_core::maybe_ready::MaybeReady;
use lock_core::store::left::Left;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    HandlesDiffer,
    WritersAreReaders,
    ReadersExclude,
    PermitsAreUncounted,
    AnybodyRenewsShares,
    AnybodyReleasesShares,
    SharesNeverEnd,
    ChangesDoNothing,
    ChangesOfTwoReaders,
    NobodyQueues,
    LastComesFirst,
    AnybodyComesBy,
    TransfersAreSilent,
    NobodyLeaves,
    SetsTakeWhatIsFree,
    SetsForgetAKey,
    EachRunMayBegin,
    FailuresCount,
    AnybodyRuns,
    RunsAreForgotten,
    AnybodyAnnounces,
    AnnouncementsStay,
}

/// A memory store with a flaw.
#[derive(Clone)]
struct FlawedStore {
    flaw: Flaw,
    memory: Arc<MemoryBackend>,
    /// The claims that wait, in the order in which they came.
    waiting: Arc<Mutex<Vec<OwnerId>>>,
    announced: Arc<Mutex<Option<String>>>,
}

impl OpenStore for FlawedStore {
    fn name(&self) -> &'static str {
        "flawed"
    }

    fn open(&self, _: &Settings) -> Result<Arc<dyn Backend>, LockError> {
        let handles = Layout::ALL.map(|layout| self.locks(layout));
        Ok(Arc::new(FlawedBackend { store: self.clone(), handles }))
    }
}

impl FlawedStore {
    fn locks(&self, layout: Layout) -> Arc<dyn LockStore> {
        let Self { flaw, memory, waiting, announced } = self.clone();
        Arc::new(FlawedLocks { flaw, inner: memory.locks(layout), waiting, announced })
    }
}

struct FlawedBackend {
    store: FlawedStore,
    handles: [Arc<dyn LockStore>; Layout::ALL.len()],
}

impl Backend for FlawedBackend {
    fn handle(&self, layout: Layout) -> Result<Arc<dyn LockStore>, StoreError> {
        if self.store.flaw == Flaw::HandlesDiffer {
            return Ok(self.store.locks(layout));
        }
        Ok(Arc::clone(&self.handles[layout.index()]))
    }
}

struct FlawedLocks {
    flaw: Flaw,
    inner: Arc<dyn LockStore>,
    waiting: Arc<Mutex<Vec<OwnerId>>>,
    announced: Arc<Mutex<Option<String>>>,
}

/// The answer of the memory store, which is always known.
fn known<T>(answer: MaybeReady<'_, T>) -> T {
    answer.known().expect("a memory store answers at once")
}

impl FlawedLocks {
    fn mode(&self, resource: Resource<'_>) -> Mode {
        match (self.flaw, resource.mode) {
            (Flaw::WritersAreReaders, Mode::Write) => Mode::Read,
            (Flaw::ReadersExclude, Mode::Read) => Mode::Write,
            (Flaw::PermitsAreUncounted, Mode::Permits(permits)) => {
                Mode::Permits(Permits::new(permits.count(), permits.limit() + 1))
            }
            (_, mode) => mode,
        }
    }

    fn has(&self, key: &str, owner: OwnerId, mode: Mode) -> bool {
        let resource = Resource { key, mode };
        let renewal = Renewal { resource, ..Renewal::exclusive(key, owner, Duration::ZERO) };
        known(self.inner.renew(&[renewal], Lane::Caller)) == [Ok(Renewed::Extended)]
    }

    fn claim(&self, claim: Claim<'_>) -> Result<Acquired, StoreError> {
        let (timeout, trace) = (RequestTimeout::of(Duration::MAX), SendTrace::default());
        known(self.inner.try_acquire(claim, timeout, &trace))
    }

    fn leave(&self, claim: &Claim<'_>, owner: OwnerId) {
        let (resource, queued) = (claim.resource, Some(claim.term));
        let release = Release { resource, queued, ..Release::exclusive(resource.key, owner) };
        known(self.inner.release(release, Lane::Caller)).expect("a memory store answers");
    }
}

impl LockStore for FlawedLocks {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        _: RequestTimeout,
        trace: &'a SendTrace,
    ) -> StoreAnswer<'a, Acquired> {
        trace.sent(1);
        let Claim { owner, resource, term, .. } = claim;
        let term = if self.flaw == Flaw::SharesNeverEnd { Duration::from_secs(999) } else { term };
        let mode = self.mode(resource);
        let resource = Resource { mode, ..resource };
        let mut claim = Claim { resource, term, ..claim };
        if self.flaw == Flaw::NobodyQueues {
            claim.queueing = Queueing::None;
        }
        if self.flaw == Flaw::AnybodyComesBy && claim.queueing == Queueing::None {
            let waiting = lock(&self.waiting).clone();
            let is_given = |other: &OwnerId| self.has(resource.key, *other, mode);
            if !waiting.contains(&owner) && waiting.iter().any(is_given) {
                waiting.iter().rev().for_each(|other| self.leave(&claim, *other));
            }
        }
        let acquired = self.claim(claim);
        if matches!(acquired, Ok(Acquired::Queued(_))) {
            let mut waiting = lock(&self.waiting);
            if self.flaw == Flaw::LastComesFirst
                && let Some(first) = waiting.first()
            {
                self.leave(&claim, *first);
                self.claim(Claim { owner: *first, ..claim }).expect("a memory store answers");
            }
            waiting.push(owner);
        }
        MaybeReady::ready(acquired)
    }

    fn try_acquire_all<'a>(
        &'a self,
        claim: SetClaim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> StoreAnswer<'a, SetAcquired> {
        let SetClaim { keys, owner, term } = claim;
        match self.flaw {
            Flaw::SetsTakeWhatIsFree => {
                let acquired = keys
                    .iter()
                    .map(|key| self.claim(Claim::exclusive(key, owner, term)))
                    .map(|acquired| acquired.is_ok_and(|acquired| acquired.is_grant()));
                let taken: Vec<_> = acquired.collect();
                let busy = taken.iter().position(|taken| !taken);
                MaybeReady::ready(Ok(busy.map_or(SetAcquired::Granted, SetAcquired::Busy)))
            }
            Flaw::SetsForgetAKey => {
                let claim = SetClaim { keys: &keys[..keys.len() - 1], ..claim };
                MaybeReady::ready(known(self.inner.try_acquire_all(claim, timeout, trace)))
            }
            _ => self.inner.try_acquire_all(claim, timeout, trace),
        }
    }

    fn slot(&self, key: &str) -> Slot {
        self.inner.slot(key)
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        if self.flaw == Flaw::AnybodyRenewsShares {
            return MaybeReady::ready(vec![Ok(Renewed::Extended); batch.len()]);
        }
        self.inner.renew(batch, lane)
    }

    fn release<'a>(&'a self, release: Release<'a>, lane: Lane) -> StoreAnswer<'a, Released> {
        if self.flaw == Flaw::NobodyLeaves && release.queued.is_some() {
            return MaybeReady::ready(Ok(Released::Taken));
        }
        let mode = self.mode(release.resource);
        let release = Release { resource: Resource { mode, ..release.resource }, ..release };
        let released = known(self.inner.release(release, lane));
        let frees = self.flaw == Flaw::AnybodyReleasesShares;
        if frees && !matches!(released, Ok(Released::Freed { .. })) {
            return MaybeReady::ready(Ok(Released::Freed { woken: 0 }));
        }
        MaybeReady::ready(released)
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
        let announced = known(self.inner.announce(announcement));
        if announced == Ok(Announced::Done) {
            *lock(&self.announced) = Some(announcement.text.to_owned());
        }
        let is_done = self.flaw == Flaw::AnybodyAnnounces;
        MaybeReady::ready(if is_done { Ok(Announced::Done) } else { announced })
    }

    fn announced<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<(String, Left)>> {
        if self.flaw == Flaw::AnnouncementsStay
            && let Some(text) = &*lock(&self.announced)
        {
            return MaybeReady::ready(Ok(Some((text.clone(), Left::Unknown))));
        }
        self.inner.announced(key)
    }

    fn start_run<'a>(&'a self, start: RunStart<'a>) -> StoreAnswer<'a, RunStarted> {
        let started = known(self.inner.start_run(start));
        MaybeReady::ready(match (self.flaw, &started) {
            (Flaw::EachRunMayBegin, Ok(RunStarted::Ran(_)))
            | (Flaw::AnybodyRuns, Ok(RunStarted::Gone | RunStarted::Taken)) => {
                Ok(RunStarted::At(1))
            }
            _ => started,
        })
    }

    fn end_run<'a>(&'a self, end: RunEnd<'a>) -> StoreAnswer<'a, RunEnded> {
        let counts = end.counts || self.flaw == Flaw::FailuresCount;
        if self.flaw == Flaw::RunsAreForgotten {
            return MaybeReady::ready(Ok(RunEnded::Recorded));
        }
        self.inner.end_run(RunEnd { counts, ..end })
    }

    fn last_run<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<RunRecord>> {
        self.inner.last_run(key)
    }

    fn change_mode<'a>(&'a self, change: ModeChange<'a>) -> StoreAnswer<'a, ModeChanged> {
        match self.flaw {
            Flaw::ChangesDoNothing if self.has(change.key, change.owner, Mode::Read) => {
                MaybeReady::ready(Ok(ModeChanged::Done))
            }
            Flaw::ChangesOfTwoReaders => {
                let changed = known(self.inner.change_mode(change));
                let is_busy = changed == Ok(ModeChanged::Busy);
                MaybeReady::ready(if is_busy { Ok(ModeChanged::Done) } else { changed })
            }
            _ => self.inner.change_mode(change),
        }
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, term: Duration) -> Subscription {
        // Another owner gets the messages.
        let is_silent = self.flaw == Flaw::TransfersAreSilent;
        let owner = if is_silent { fixture::owner() } else { owner };
        self.inner.subscribe(resource, owner, term)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn layout(&self) -> &'static str {
        self.inner.layout()
    }
}

/// What a check finds in a store with this flaw.
async fn finding(check: impl Future<Output = ()> + Send + 'static) -> Option<String> {
    let panic = tokio::spawn(check).await.err()?.into_panic();
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).expect("a text"))
}

macro_rules! finds {
    ($($flaw:ident by $check:ident($($store:ident),+) seeing $text:literal;)*) => {
        // With a clock that jumps to the end of each wait.
        #[tokio::test(start_paused = true)]
        async fn each_flaw_of_an_extension_is_found_by_its_check() {
            $({
                let (waiting, announced) = (Arc::default(), Arc::default());
                let (flaw, memory) = (Flaw::$flaw, MemoryBackend::new());
                let store = FlawedStore { flaw, memory, waiting, announced };
                $(let $store = CheckedStore::new(store.clone());)+
                let found = finding($check($($store),+)).await.unwrap_or_default();
                assert!(found.contains($text), "{:?}: {found:?}", Flaw::$flaw);
            })*
            let found = [$(Flaw::$flaw),*];
            let last = Flaw::AnnouncementsStay as usize;
            assert!((0..=last).all(|flaw| found.iter().any(|found| *found as usize == flaw)));
        }
    };
}

finds! {
    HandlesDiffer by an_announcement_ends_with_its_hold(one) seeing "a layout has one handle";
    WritersAreReaders by readers_share_and_writers_do_not(one, two) seeing "a writer and two readers";
    ReadersExclude by readers_share_and_writers_do_not(one, two) seeing "two readers exclude each other";
    PermitsAreUncounted by permits_are_counted(one, two) seeing "four of three permits";
    AnybodyRenewsShares by shares_belong_to_their_owner(one) seeing "a renewal by another owner";
    AnybodyReleasesShares by shares_belong_to_their_owner(one) seeing "a release by somebody else";
    SharesNeverEnd by shares_belong_to_their_owner(one) seeing "outlives its lease";
    ChangesDoNothing by a_hold_changes_its_mode(one) seeing "a writer that was a reader";
    ChangesOfTwoReaders by a_hold_changes_its_mode(one) seeing "one of two readers";
    NobodyQueues by claims_are_served_in_their_order(one, two) seeing "that waits for a resource is Busy";
    LastComesFirst by claims_are_served_in_their_order(one, two) seeing "the first claim was not served";
    AnybodyComesBy by claims_are_served_in_their_order(one, two) seeing "somebody who has not waited";
    TransfersAreSilent by claims_are_served_in_their_order(one, two) seeing "a claim is told that the resource was given";
    NobodyLeaves by a_claim_that_leaves_is_passed_over(one) seeing "the claim that has stayed was not served";
    SetsTakeWhatIsFree by several_keys_are_taken_or_none(one) seeing "a refused claim has taken";
    SetsForgetAKey by several_keys_are_taken_or_none(one) seeing "was not taken";
    EachRunMayBegin by a_period_has_one_run(one) seeing "a second run in a period";
    FailuresCount by a_period_has_one_run(one) seeing "a run that has failed is not repeated";
    AnybodyRuns by a_period_has_one_run(one) seeing "nobody has the key";
    RunsAreForgotten by a_period_has_one_run(one) seeing "another owner has the key";
    AnybodyAnnounces by an_announcement_ends_with_its_hold(one) seeing "nobody has the key";
    AnnouncementsStay by an_announcement_ends_with_its_hold(one) seeing "the hold has ended";
}
