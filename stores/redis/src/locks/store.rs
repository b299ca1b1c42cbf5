//! The requests about locks in one dialect.

use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use crate::connections::admission::RequestClass;
use crate::connections::connection::RequestOptions;
use crate::connections::request::{BatchAnswers, ScriptBatch};
use crate::connections::route::Route;
use crate::hash_slot;
use crate::scripts::decode;
use crate::scripts::dialect::{Dialect, milliseconds};
use crate::shared::Shared;
use lock_core::clock::BootInstant;
use lock_core::maybe_ready::MaybeReady;
use lock_core::replicas::RequiredReplicas;
use lock_core::safeguard::Safeguard;
use lock_core::store::announcements::{Announced, Announcement};
use lock_core::store::contract::{
    Acquired, Capabilities, Claim, Fenced, Lane, Left, LockStore, Mode, ModeChange, ModeChanged,
    Place, Release, Released, ReleasedBatch, Renewal, Renewed, Resource, SendTrace, SetAcquired,
    SetClaim, Slot, StoreAnswer, StoreError,
};
use lock_core::store::owner::OwnerId;
use lock_core::store::periods::{RunEnd, RunEnded, RunRecord, RunStart, RunStarted};
use lock_core::store::subscriptions::Subscription;
use lock_core::telemetry::requests::StoreOperation;
use lock_core::timeout::RequestTimeout;

/// How long the request of a lock's holder may wait until it can be sent. Only a program that
/// releases very many locks at once makes it wait, and nothing is wrong then.
const HOLDER_SEND_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct RedisStore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) dialect: &'static Dialect,
}

impl RedisStore {
    pub(crate) fn new(shared: Arc<Shared>, dialect: &'static Dialect) -> Self {
        Self { shared, dialect }
    }

    /// Whether the server reports changes of the keys that the background connection reads.
    pub(crate) fn tracks(&self) -> bool {
        self.shared.tracking.as_ref().is_some_and(|tracking| tracking.holds.is_on())
    }

    /// For a request about a lock that is or was held.
    pub(crate) fn holder_options(&self, operation: StoreOperation) -> RequestOptions<'_> {
        let answer = self.shared.response_timeout;
        let timeout = RequestTimeout { answer, total: answer + HOLDER_SEND_TIMEOUT };
        let measured = Some(self.shared.measured(operation));
        RequestOptions { measured, ..RequestOptions::new(RequestClass::Holders, timeout) }
    }

    async fn renew(
        &self,
        batch: &[Renewal<'_>],
        lane: Lane,
    ) -> Result<Vec<Result<Renewed, StoreError>>, StoreError> {
        let longest = batch.iter().map(|renewal| renewal.term).max();
        self.shared.presence.covers(longest.unwrap_or_default());
        let route = self.shared.route(lane)?;
        let none = RequiredReplicas::NONE;
        let required = batch.iter().fold(none, |all, one| all.and(one.acknowledged_by));
        if required.is_none() || !Safeguard::RenewalsAreAcknowledged.is_on() {
            return Ok(self.send_renewals(&route, batch, false).await.answers);
        }
        Ok(Box::pin(self.renew_acknowledged(&route, batch, required)).await)
    }

    pub(crate) async fn send_renewals(
        &self,
        route: &Route,
        batch: &[Renewal<'_>],
        wants_carriers: bool,
    ) -> BatchAnswers<Renewed> {
        let dialect = self.dialect;
        let args = |call: &mut Cmd, some: Range<usize>| {
            let batch = &batch[some];
            call.arg(batch.len() * dialect.keys());
            for renewal in batch {
                dialect.add_keys(call, renewal.resource.key);
            }
            for renewal in batch {
                let owner = dialect.owner(renewal.owner, &self.shared.id);
                let (mode, lease) = (renewal.resource.mode, milliseconds(renewal.term));
                call.arg(owner);
                match mode {
                    Mode::Exclusive => call.arg(lease),
                    _ => call.arg(format!("{mode}{lease}")),
                };
            }
        };
        let timeout = RequestTimeout::of(self.shared.response_timeout);
        let class = if LockStore::reports_changes(self) {
            RequestClass::Tracked
        } else {
            RequestClass::Unlimited
        };
        let measured = Some(self.shared.measured(StoreOperation::Renew));
        let options = RequestOptions { measured, ..RequestOptions::new(class, timeout) };
        let key = |index: usize| batch[index].resource.key;
        let (script, locks) = (&dialect.renew, batch.len());
        let requests = ScriptBatch { script, locks, key: &key, options, wants_carriers };
        route.run_for_each(&requests, &args, decode::renewed).await
    }
}

impl LockStore for RedisStore {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> MaybeReady<'a, Result<Acquired, StoreError>> {
        MaybeReady::pending(self.acquire(claim, timeout, trace))
    }

    fn try_acquire_all<'a>(
        &'a self,
        claim: SetClaim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> MaybeReady<'a, Result<SetAcquired, StoreError>> {
        MaybeReady::pending(self.acquire_all(claim, timeout, trace))
    }

    fn slot(&self, key: &str) -> Slot {
        let in_cluster = self.shared.servers.is_cluster();
        if in_cluster { Slot(hash_slot::slot(key)) } else { Slot::ONLY }
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        MaybeReady::pending(async move {
            let renewed = RedisStore::renew(self, batch, lane).await;
            renewed.unwrap_or_else(|error| vec![Err(error); batch.len()])
        })
    }

    fn release<'a>(
        &'a self,
        release: Release<'a>,
        lane: Lane,
    ) -> MaybeReady<'a, Result<Released, StoreError>> {
        self.shared.presence.covers_kept(slice::from_ref(&release));
        MaybeReady::pending(self.free(release, lane))
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        self.shared.presence.covers_kept(batch);
        MaybeReady::pending(async move {
            let trace = SendTrace::default();
            let options = self.background_options(&trace);
            let answers = self.free_all(batch, lane, &options).await;
            let answers = answers.unwrap_or_else(|error| vec![Err(error); batch.len()]);
            ReleasedBatch { connection: trace.connection(), answers }
        })
    }

    fn fence<'a>(
        &'a self,
        resource: Resource<'a>,
        owner: OwnerId,
        at_least: u64,
    ) -> MaybeReady<'a, Result<Fenced, StoreError>> {
        MaybeReady::pending(self.fencing_token(resource.key, owner, at_least))
    }

    fn announce<'a>(
        &'a self,
        announcement: Announcement<'a>,
    ) -> MaybeReady<'a, Result<Announced, StoreError>> {
        MaybeReady::pending(self.announce_holder(announcement))
    }

    fn announced<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<(String, Left)>> {
        MaybeReady::pending(self.announced_holder(key))
    }

    fn start_run<'a>(&'a self, start: RunStart<'a>) -> StoreAnswer<'a, RunStarted> {
        MaybeReady::pending(self.record_start(start))
    }

    fn end_run<'a>(&'a self, end: RunEnd<'a>) -> StoreAnswer<'a, RunEnded> {
        MaybeReady::pending(self.record_end(end))
    }

    fn last_run<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<RunRecord>> {
        MaybeReady::pending(self.recorded_run(key))
    }

    fn change_mode<'a>(&'a self, change: ModeChange<'a>) -> StoreAnswer<'a, ModeChanged> {
        MaybeReady::pending(self.change_hold(change))
    }

    fn count_waiters<'a>(
        &'a self,
        resource: Resource<'a>,
        lane: Lane,
    ) -> MaybeReady<'a, Result<usize, StoreError>> {
        MaybeReady::pending(self.waiters(resource.key, lane))
    }

    fn watch_waiters<'a>(
        &'a self,
        resource: Resource<'a>,
    ) -> MaybeReady<'a, Result<bool, StoreError>> {
        MaybeReady::pending(self.watch_queue(resource.key))
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, term: Duration) -> Subscription {
        let (shared, layout) = (&self.shared, self.dialect.layout);
        if self.dialect.queues {
            let channel = format!("{}{}", self.channels(resource.key), shared.id.uuid());
            return shared.subscriptions.wait_in_queue(
                &channel,
                resource.key,
                layout,
                (owner, resource.mode, term),
            );
        }
        let channel = self.dialect.channel(resource.key);
        shared.subscriptions.listen(&channel, resource.key, layout, owner)
    }

    fn last_check(&self, resource: Resource<'_>) -> Option<(Left, BootInstant)> {
        self.shared.subscriptions.last_check(resource.key, self.dialect.layout)
    }

    fn capabilities(&self) -> Capabilities {
        let verifies_transfers = self.shared.servers.have_quarantines();
        let extensions = self.dialect.extensions();
        Capabilities { extensions, verifies_transfers, counts_waiters: true, ..Capabilities::PLAIN }
    }

    fn reports_changes(&self) -> bool {
        // Holders that share a key would report each other's renewals.
        !self.dialect.has_modes() && self.tracks()
    }

    fn place(&self, key: &str) -> Place {
        self.shared.servers.place(key)
    }

    fn layout(&self) -> &'static str {
        self.dialect.layout.value()
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of_val;

    use super::*;
    use crate::connections::servers::Servers;
    use crate::scripts::dialects;
    use crate::url;
    use lock_core::store::contract::Layout;
    use lock_core::store::settings::Settings;
    use lock_core::wire_format::WireFormat;

    /// A store that has not connected yet.
    fn store(layout: Layout) -> RedisStore {
        let target = url::parse("redis://localhost", &Settings::default()).expect("valid");
        let settings = Settings { tracking: false, ..Settings::default() };
        let shared = Shared::new(Servers::new(target, None), &settings).expect("randomness");
        RedisStore::new(Arc::new(shared), dialects::of(layout))
    }

    /// The messages of this format do not name their senders.
    #[test]
    fn a_message_counts_as_that_of_the_own_release_if_one_was_published() {
        let store = store(Layout::Wire(WireFormat::Redisson));
        let (owner, term) = (OwnerId::new().expect("randomness"), Duration::from_secs(1));
        let subscription = store.subscribe(Resource::exclusive("k"), owner, term);
        let channel = store.dialect.channel("k");
        let _ = store.shared.subscriptions.subscribed(&[channel.as_str().into()]);
        let releases_by_others = |subscribers| {
            let own = store.own_release(&channel);
            let reply = decode::ReleaseReply::Freed { subscribers };
            let _ = store.freed(&reply, ("k", &channel), own);
            store.shared.subscriptions.wake(&channel, true);
            subscription.releases()
        };
        assert_eq!([1, 0].map(releases_by_others), [0, 1]);
    }

    /// Each request allocates its future. It must not contain the futures for a cluster, and must be
    /// so small for the fast path that the allocator needs no lock (1,032 bytes in glibc).
    #[test]
    fn the_future_of_a_request_is_small() {
        let store = store(Layout::TOKEN);
        let (resource, term) = (Resource::exclusive("k"), Duration::from_secs(1));
        let (owner, trace) = (OwnerId::new().expect("randomness"), SendTrace::default());
        let claim = lock_core::store::faulty::claim(owner, term);
        let (keep, leaves_gap) = (Duration::ZERO, false);
        let release = Release { resource, owner, keep, queued: None, leaves_gap };
        let sizes = [
            size_of_val(&store.acquire(claim, RequestTimeout::of(term), &trace)),
            size_of_val(&store.free(release, Lane::Caller)),
        ];
        assert!(sizes.iter().all(|size| *size <= 1032), "{sizes:?} bytes");
        let sizes = [
            size_of_val(&store.renew(&[], Lane::Caller)),
            size_of_val(&store.free_all(&[], Lane::Caller, &store.background_options(&trace))),
            size_of_val(&store.fencing_token("k", owner, 0)),
        ];
        assert!(sizes.iter().all(|size| *size < 1400), "{sizes:?} bytes");
    }
}
