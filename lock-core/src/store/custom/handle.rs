//! A layout of the locks in a custom store. There is only one, that of plain locks.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::contract::{
    FenceRequest, FencingOutcome, LeaseOutcome, LeaseRequest, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, Store, without,
};
use super::shared::CustomStore;
use super::thread::{run, within};
use crate::join::join_all;
use crate::maybe_ready::MaybeReady;
use crate::store::announcements::{Announced, Announcement};
use crate::store::contract::{
    Acquired, Capabilities, Claim, Fenced, Grant, Lane, Layout, Left, LockStore, Release, Released,
    ReleasedBatch, Renewal, Renewed, Resource, SendTrace, StoreAnswer, StoreError,
};
use crate::store::owner::OwnerId;
use crate::store::periods::{RunEnd, RunEnded, RunRecord, RunStart, RunStarted};
use crate::store::subscriptions::Subscription;
use crate::timeout::RequestTimeout;
use crate::wire_format::WireFormat;

/// The number of the only connection, as far as the engine knows: a release comes after the acquires of its owner.
const CONNECTION: u64 = 1;

/// The shortest term that a store is asked for.
const SHORTEST_TERM: Duration = Duration::from_millis(10);

pub(super) struct CustomHandle<S> {
    pub(super) shared: Arc<CustomStore<S>>,
    pub(super) layout: Layout,
}

impl<S: Store> CustomHandle<S> {
    /// Fails if the store has no locks in this layout.
    pub(super) fn check_layout(&self) -> Result<(), StoreError> {
        let (option, what) = match self.layout {
            Layout::Wire(WireFormat::Token) => return Ok(()),
            Layout::Wire(_) => ("wire_format", "wire formats of other clients; use `Token`"),
            Layout::ReadWrite => ("mode", "read-write locks"),
            Layout::Semaphore => ("permits", "semaphores"),
            Layout::Vote => ("quorum", "votes"),
        };
        Err(without(self.shared.store.name(), option, what))
    }

    /// Runs a request of a lane.
    fn request<T: Send + 'static>(
        &self,
        lane: Lane,
        request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + 'static {
        run(&self.shared.runtime(lane), within(self.shared.response_timeout, request))
    }

    /// Frees a key after the acquires of its owner.
    fn release_one(
        &self,
        release: &Release<'_>,
        lane: Lane,
    ) -> impl Future<Output = Result<Released, StoreError>> + Send + 'static {
        let (shared, key) = (Arc::clone(&self.shared), release.resource.key.to_owned());
        let (id, keep) = (release.owner, release.keep);
        let owner = shared.owner_name(id);
        let response_timeout = shared.response_timeout;
        // An acquire on the thread of the store ends after two response timeouts, or a little later. One on the runtime of its
        // caller may take longer.
        let brief = shared.store.runs_on_callers().then_some(response_timeout / 8);
        let ended = shared.in_flight.ended(id, brief);
        let limit = response_timeout * if brief.is_some() { 2 } else { 4 };
        // Sent when it is polled: a release that is dropped before is sent in the background.
        async move {
            let runtime = shared.runtime(lane);
            let released = async move {
                let has_waited = ended.await;
                let request = ReleaseRequest { key: &key, owner: &owner, keep };
                let mut outcome = shared.store.release(request).await;
                if !has_waited && !shared.in_flight.tell_released(id, keep) {
                    // An acquire has ended in the meantime, and may have taken the key after this release.
                    let again = shared.store.release(request).await;
                    outcome = outcome_of_both(outcome, again);
                }
                Ok(match outcome? {
                    // If the store does not know it, others may wait.
                    ReleaseOutcome::Freed { waiting } => {
                        Released::Freed { woken: waiting.unwrap_or(1) }
                    }
                    ReleaseOutcome::Gone => Released::Gone,
                    ReleaseOutcome::Taken => Released::Taken,
                })
            };
            run(&runtime, within(limit, released)).await
        }
    }
}

/// The outcome of two releases of one owner.
fn outcome_of_both(
    first: Result<ReleaseOutcome, StoreError>,
    second: Result<ReleaseOutcome, StoreError>,
) -> Result<ReleaseOutcome, StoreError> {
    match (first, second) {
        (known @ Ok(_), Ok(_)) => known,
        // The first one may have freed it.
        (Err(first), Ok(ReleaseOutcome::Gone | ReleaseOutcome::Taken)) if first.may_have_run() => {
            Ok(ReleaseOutcome::Freed { waiting: None })
        }
        (Err(first), Err(_)) if first.may_have_run() => Err(first),
        (freed @ Ok(ReleaseOutcome::Freed { .. }), _) => freed,
        (_, second) => second,
    }
}

impl<S: Store> LockStore for CustomHandle<S> {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> MaybeReady<'a, Result<Acquired, StoreError>> {
        if let Err(error) = self.check_layout() {
            return MaybeReady::ready(Err(error));
        }
        let (store, key) = (Arc::clone(&self.shared.store), claim.resource.key.to_owned());
        let (owner, term) = (self.shared.owner_name(claim.owner), claim.term);
        // The cheaper request does not tell the store that calls of this client wait for the key.
        let fresh = claim.fresh && !self.shared.subscriptions.is_live(claim.resource.key);
        let renewed = claim.renewed;
        let limit = timeout.answer.min(timeout.total);
        // The request goes on for another response timeout after the caller has given up.
        let lasts = limit + self.shared.response_timeout;
        let (in_flight, shared) =
            (self.shared.in_flight.begin(claim.owner), Arc::downgrade(&self.shared));
        trace.sent(CONNECTION);
        let acquired = run(&self.shared.runtime(Lane::Caller), async move {
            let request = LeaseRequest { key: &key, owner: &owner, term, renewed, fresh };
            if in_flight.released().is_some() {
                return Err(StoreError::Refused("the call has been given up".to_owned()));
            }
            let acquired = within(lasts, store.acquire(request)).await;
            let released = in_flight.released();
            drop(in_flight);
            if let (Some(keep), Some(shared)) = (released, shared.upgrade()) {
                shared.release_again(&acquired, (key, owner, keep));
            }
            acquired
        });
        MaybeReady::pending(async move {
            Ok(match within(limit, acquired).await? {
                LeaseOutcome::Granted { fence } => {
                    Acquired::Granted(Grant { fence, ..Grant::of(term) })
                }
                LeaseOutcome::Busy { left } => {
                    Acquired::Busy(left.map_or(Left::Unknown, Left::Time))
                }
            })
        })
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        let leases: Vec<(String, String, Duration)> = batch
            .iter()
            .map(|one| {
                // A shorter term stands for a verification.
                let term = one.term.max(SHORTEST_TERM);
                (one.resource.key.to_owned(), self.shared.owner_name(one.owner), term)
            })
            .collect();
        let (store, count) = (Arc::clone(&self.shared.store), batch.len());
        let renewed = self.request(Lane::Background, async move {
            let requests: Vec<LeaseRequest<'_>> = leases
                .iter()
                .map(|(key, owner, term)| LeaseRequest::new(key, owner, *term).renewed())
                .collect();
            Ok(store.renew(&requests).await)
        });
        MaybeReady::pending(async move {
            let mut renewed = match renewed.await {
                Ok(renewed) => renewed,
                Err(error) => vec![Err(error); count],
            };
            let missing =
                || Err(StoreError::Unknown("the store gave no answer for this lease".to_owned()));
            renewed.resize_with(count, missing);
            let outcome = |outcome| match outcome {
                RenewOutcome::Extended => Renewed::Extended,
                RenewOutcome::Gone => Renewed::Gone,
                RenewOutcome::Taken => Renewed::Taken,
            };
            renewed.into_iter().map(|one| one.map(outcome)).collect()
        })
    }

    fn release<'a>(
        &'a self,
        release: Release<'a>,
        lane: Lane,
    ) -> MaybeReady<'a, Result<Released, StoreError>> {
        MaybeReady::pending(self.release_one(&release, lane))
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        let releases: Vec<_> =
            batch.iter().map(|release| self.release_one(release, lane)).collect();
        MaybeReady::pending(async move {
            let answers = join_all(releases.into_iter()).await;
            let is_ordered = self.shared.store.orders_requests();
            let connection = NonZeroU64::new(CONNECTION).filter(|_| is_ordered);
            ReleasedBatch { connection, answers }
        })
    }

    fn fence<'a>(
        &'a self,
        resource: Resource<'a>,
        owner: OwnerId,
        at_least: u64,
    ) -> MaybeReady<'a, Result<Fenced, StoreError>> {
        let (store, key) = (Arc::clone(&self.shared.store), resource.key.to_owned());
        let owner = self.shared.owner_name(owner);
        MaybeReady::pending(self.request(Lane::Caller, async move {
            let request = FenceRequest { key: &key, owner: &owner, at_least };
            Ok(match store.fence(request).await? {
                FencingOutcome::Token(token) => Fenced::With(token),
                FencingOutcome::Gone => Fenced::Gone,
                FencingOutcome::Taken => Fenced::Taken,
            })
        }))
    }

    fn announce<'a>(
        &'a self,
        _: Announcement<'a>,
    ) -> MaybeReady<'a, Result<Announced, StoreError>> {
        MaybeReady::ready(Err(without(
            self.shared.store.name(),
            "store",
            "announcements of leaders",
        )))
    }

    fn announced<'a>(&'a self, _: &'a str) -> StoreAnswer<'a, Option<(String, Left)>> {
        MaybeReady::ready(Err(without(
            self.shared.store.name(),
            "store",
            "announcements of leaders",
        )))
    }

    fn start_run<'a>(&'a self, _: RunStart<'a>) -> StoreAnswer<'a, RunStarted> {
        MaybeReady::ready(Err(without(self.shared.store.name(), "every", "records of runs")))
    }

    fn end_run<'a>(&'a self, _: RunEnd<'a>) -> StoreAnswer<'a, RunEnded> {
        MaybeReady::ready(Err(without(self.shared.store.name(), "every", "records of runs")))
    }

    fn last_run<'a>(&'a self, _: &'a str) -> StoreAnswer<'a, Option<RunRecord>> {
        MaybeReady::ready(Err(without(self.shared.store.name(), "every", "records of runs")))
    }

    fn count_waiters<'a>(
        &'a self,
        _: Resource<'a>,
        _: Lane,
    ) -> MaybeReady<'a, Result<usize, StoreError>> {
        MaybeReady::ready(Ok(0))
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
        self.shared.subscriptions.listen(resource.key, resource.key, self.layout, owner)
    }

    fn capabilities(&self) -> Capabilities {
        let keeps_after_release = self.shared.store.keeps_after_release();
        Capabilities {
            keeps_after_release,
            counts_waiters: false,
            acknowledges: false,
            ..Capabilities::ALL
        }
    }

    fn shown(&self) -> String {
        format!("the store `{}`", self.shared.store.name())
    }

    fn name_in_postgres(&self, owner: OwnerId) -> Option<String> {
        let is_there = self.shared.store.is_postgres();
        is_there.then(|| self.shared.owner_name(owner))
    }

    fn watches(&self) -> bool {
        self.shared.store.reports_losses()
    }

    fn layout(&self) -> &'static str {
        self.layout.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_release_after_one_without_an_answer_reports_no_loss() {
        use ReleaseOutcome::{Freed, Gone, Taken};

        const FREED: ReleaseOutcome = Freed { waiting: Some(3) };
        let unknown = || Err(StoreError::Unknown("no answer".to_owned()));
        let refused = || Err(StoreError::Refused("stopped".to_owned()));
        for second in [Ok(Gone), Ok(Taken), Ok(FREED), unknown()] {
            assert_eq!(outcome_of_both(Ok(FREED), second), Ok(FREED));
        }
        for (first, second, outcome) in [
            (unknown(), Ok(Gone), Ok(Freed { waiting: None })),
            (unknown(), Ok(FREED), Ok(FREED)),
            (unknown(), refused(), unknown()),
            (refused(), unknown(), unknown()),
            (refused(), Ok(Gone), Ok(Gone)),
            (refused(), Ok(Taken), Ok(Taken)),
            (Ok(Gone), Ok(FREED), Ok(Gone)),
            (Ok(Taken), Ok(Gone), Ok(Taken)),
            (Ok(Gone), unknown(), unknown()),
        ] {
            assert_eq!(outcome_of_both(first, second), outcome);
        }
    }
}
