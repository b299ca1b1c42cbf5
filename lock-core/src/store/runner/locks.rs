//! The locks of a client whose requests are asynchronous functions.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::client::{AsyncClient, LeaseRequest, Owned, RunEndRequest, RunStartRequest};
use super::requests::{CONNECTION, RequestRunner};
use crate::join::join_all;
use crate::maybe_ready::MaybeReady;
use crate::store::announcements::{Announced, Announcement};
use crate::store::contract::{
    Acquired, Capabilities, Claim, Extensions, Fenced, Lane, Layout, Left, LockStore, ModeChange,
    ModeChanged, Queueing, Release, Released, ReleasedBatch, Renewal, Renewed, Resource, SendTrace,
    StoreAnswer, StoreError,
};
use crate::store::owner::{ClientTag, OwnerId};
use crate::store::periods::{RunEnd, RunEnded, RunRecord, RunStart, RunStarted};
use crate::store::subscriptions::{Subscription, Subscriptions};
use crate::timeout::RequestTimeout;

/// The shortest term that a store is asked for.
const SHORTEST_TERM: Duration = Duration::from_millis(10);

/// The locks of a client in one layout.
pub(super) struct AsyncLocks<C> {
    pub(super) client: Arc<C>,
    pub(super) layout: Layout,
    /// What it has besides the required requests.
    pub(super) extensions: Extensions,
    /// What error messages call the store.
    pub(super) shown: String,
    pub(super) runner: Arc<RequestRunner>,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) tag: ClientTag,
}

type BoxedRelease = Pin<Box<dyn Future<Output = Result<Released, StoreError>> + Send>>;

impl<C: AsyncClient> AsyncLocks<C> {
    fn owned(&self, resource: Resource<'_>, owner: OwnerId) -> Owned {
        Owned::new(resource.key, &self.tag.owner_name(owner)).in_mode(resource.mode)
    }

    /// Releases an owner, as often as it is called.
    fn releasing(
        &self,
        resource: Resource<'_>,
        owner: OwnerId,
    ) -> impl Fn(Duration) -> BoxedRelease + Send + Sync + use<C> {
        let released = Arc::new((Arc::clone(&self.client), self.owned(resource, owner)));
        move |keep| {
            let released = Arc::clone(&released);
            Box::pin(async move { released.0.release(&released.1, keep).await })
        }
    }
}

impl<C: AsyncClient> LockStore for AsyncLocks<C> {
    /// The attempt goes on for a response timeout after its caller has given up. If its owner was released meanwhile, it is
    /// released again.
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> StoreAnswer<'a, Acquired> {
        let Claim { resource, owner, term, renewed, queueing, .. } = claim;
        // A request of a call that waits tells the holder so.
        let fresh = claim.fresh && !self.subscriptions.is_live(resource.key);
        let (owned, waits) = (self.owned(resource, owner), queueing != Queueing::None);
        let request = LeaseRequest { owned, term, renewed, fresh, waits };
        let client = Arc::clone(&self.client);
        let acquire = async move { client.acquire(request).await };
        let release = self.releasing(resource, owner);
        self.runner.acquire(owner, (timeout, trace), acquire, release)
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        // A shorter term stands for a verification.
        let renewal =
            |one: &Renewal<'_>| (self.owned(one.resource, one.owner), one.term.max(SHORTEST_TERM));
        let leases: Vec<_> = batch.iter().map(renewal).collect();
        let client = Arc::clone(&self.client);
        self.runner.renew(batch.len(), async move { client.renew(&leases).await })
    }

    /// Comes after the acquires of the owner.
    fn release<'a>(
        &'a self,
        Release { resource, owner, keep, .. }: Release<'a>,
        lane: Lane,
    ) -> StoreAnswer<'a, Released> {
        self.runner.release((owner, keep), lane, self.releasing(resource, owner))
    }

    /// None of them has to be repeated because of an acquire that ends later: see [`try_acquire`](Self::try_acquire).
    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        let releases: Vec<_> = batch.iter().map(|release| self.release(*release, lane)).collect();
        MaybeReady::pending(async move {
            ReleasedBatch {
                connection: Some(CONNECTION),
                answers: join_all(releases.into_iter()).await,
            }
        })
    }

    fn fence<'a>(
        &'a self,
        resource: Resource<'a>,
        owner: OwnerId,
        at_least: u64,
    ) -> StoreAnswer<'a, Fenced> {
        let (client, hold) = (Arc::clone(&self.client), self.owned(resource, owner));
        self.runner.request(Lane::Caller, async move { client.fence(&hold, at_least).await })
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, _: Duration) -> Subscription {
        self.subscriptions.listen(resource.key, resource.key, self.layout, owner)
    }

    fn change_mode<'a>(&'a self, change: ModeChange<'a>) -> StoreAnswer<'a, ModeChanged> {
        let resource = Resource { key: change.key, mode: change.to };
        let (client, hold) = (Arc::clone(&self.client), self.owned(resource, change.owner));
        self.runner.request(Lane::Caller, async move { client.change_mode(&hold).await })
    }

    fn announce<'a>(&'a self, announcement: Announcement<'a>) -> StoreAnswer<'a, Announced> {
        let Announcement { key, owner, text, keep } = announcement;
        let (client, hold) =
            (Arc::clone(&self.client), self.owned(Resource::exclusive(key), owner));
        let text = text.to_owned();
        let announced = async move { client.announce(&hold, &text, keep).await };
        self.runner.request(Lane::Caller, announced)
    }

    fn announced<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<(String, Left)>> {
        let (client, key) = (Arc::clone(&self.client), key.to_owned());
        self.runner.request(Lane::Caller, async move { client.announced(&key).await })
    }

    fn start_run<'a>(&'a self, start: RunStart<'a>) -> StoreAnswer<'a, RunStarted> {
        let RunStart { key, owner, run, every, counts, attempt, .. } = start;
        let (client, hold) =
            (Arc::clone(&self.client), self.owned(Resource::exclusive(key), owner));
        let (by, kept) = (run.by.clone(), run.kept);
        let run = RunStartRequest { every, counts, attempt, by, kept };
        self.runner.request(Lane::Caller, async move { client.start_run(&hold, run).await })
    }

    fn end_run<'a>(&'a self, end: RunEnd<'a>) -> StoreAnswer<'a, RunEnded> {
        let RunEnd { key, owner, run, began, counts, failed, .. } = end;
        let (client, hold) =
            (Arc::clone(&self.client), self.owned(Resource::exclusive(key), owner));
        let (by, kept) = (run.by.clone(), run.kept);
        let run = RunEndRequest { began, counts, failed, by, kept };
        self.runner.request(Lane::Caller, async move { client.end_run(&hold, run).await })
    }

    fn last_run<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<RunRecord>> {
        let (client, key) = (Arc::clone(&self.client), key.to_owned());
        self.runner.request(Lane::Caller, async move { client.last_run(&key).await })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { extensions: self.extensions, ..Capabilities::PLAIN }
    }

    fn reports_changes(&self) -> bool {
        self.client.reports_changes()
    }

    fn shown(&self) -> String {
        self.shown.clone()
    }

    fn name_in_transactions(&self, owner: OwnerId) -> Option<String> {
        self.client.name_in_transactions(self.tag.owner_name(owner))
    }

    fn layout(&self) -> &'static str {
        self.layout.value()
    }
}
