//! The requests about locks in one dialect.

use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, cmd};

use super::admission::RequestClass;
use super::connection::RequestOptions;
use super::decode;
use super::dialect::{Dialect, first_permit, milliseconds};
use super::hash_slot;
use super::request::{BatchAnswers, ScriptBatch};
use super::route::Route;
use super::script::Publish;
use super::shared::Shared;
use crate::clock::BootInstant;
use crate::maybe_ready::MaybeReady;
use crate::replicas::RequiredReplicas;
use crate::safeguard::Safeguard;
use crate::store::announcements::{Announced, Announcement};
use crate::store::contract::{
    Acquired, Capabilities, Claim, Fenced, Lane, Left, LockStore, Mode, ModeChange, ModeChanged,
    Place, Release, Released, ReleasedBatch, Renewal, Renewed, Resource, SendTrace, SetAcquired,
    SetClaim, Slot, StoreAnswer, StoreError,
};
use crate::store::owner::OwnerId;
use crate::store::periods::{RunEnd, RunEnded, RunRecord, RunStart, RunStarted};
use crate::store::subscriptions::{OwnRelease, Subscription};
use crate::telemetry::StoreOperation;
use crate::timeout::RequestTimeout;

/// How long the request of a lock's holder may wait until it can be sent. Only a program that
/// releases very many locks at once makes it wait, and nothing is wrong then.
const HOLDER_SEND_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct RedisStore {
    pub(super) shared: Arc<Shared>,
    pub(super) dialect: &'static Dialect,
}

impl RedisStore {
    pub(super) fn new(shared: Arc<Shared>, dialect: &'static Dialect) -> Self {
        Self { shared, dialect }
    }

    /// Whether the server reports changes of the keys that the background connection reads.
    pub(super) fn tracks(&self) -> bool {
        self.shared.tracking.as_ref().is_some_and(|tracking| tracking.holds.is_on())
    }

    /// For a request about a lock that is or was held.
    pub(super) fn holder_options(&self, operation: StoreOperation) -> RequestOptions<'_> {
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

    pub(super) async fn send_renewals(
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
                match mode {
                    Mode::Exclusive => call.arg(owner).arg(lease),
                    Mode::Read | Mode::Write => call.arg(owner).arg(format!("{mode}{lease}")),
                    Mode::Permits(permits) => call
                        .arg(first_permit((renewal.owner, &self.shared.id), permits))
                        .arg(format!("{mode}{lease}")),
                };
            }
        };
        let timeout = RequestTimeout::of(self.shared.response_timeout);
        let class =
            if LockStore::watches(self) { RequestClass::Tracked } else { RequestClass::Unlimited };
        let measured = Some(self.shared.measured(StoreOperation::Renew));
        let options = RequestOptions { measured, ..RequestOptions::new(class, timeout) };
        let key = |index: usize| batch[index].resource.key;
        let (script, locks) = (&dialect.renew, batch.len());
        let requests = ScriptBatch { script, locks, key: &key, options, wants_carriers };
        route.run_for_each(&requests, &args, decode::renewed).await
    }

    fn free(
        &self,
        release: Release<'_>,
        lane: Lane,
    ) -> impl Future<Output = Result<Released, StoreError>> {
        let (dialect, key) = (self.dialect, release.resource.key);
        let channel = self.key_channel(key);
        // A block, because the future of an async function has room for its arguments twice.
        async move {
            let args = |call: &mut Cmd| {
                self.add_keys(call, [key].into_iter());
                self.add_single_release(call, &release, &channel);
            };
            let own = self.own_release(&channel);
            let route = self.shared.route(lane)?;
            let options = self.holder_options(StoreOperation::Release);
            let script = dialect.release(self.shared.servers.publish());
            let answer = route.run((key, script), &args, &options, decode::released).await?;
            if answer.was_asked && !dialect.queues {
                self.publish_at_owner(&route, channel.clone());
            }
            Ok(self.freed(&answer.value, (key, &channel), own))
        }
    }

    /// Frees several with one script.
    async fn free_all(
        &self,
        batch: &[Release<'_>],
        lane: Lane,
        trace: &SendTrace,
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        let dialect = self.dialect;
        let channels: Vec<String> =
            batch.iter().map(|release| self.key_channel(release.resource.key)).collect();
        let args = |call: &mut Cmd, some: Range<usize>| {
            let (batch, channels) = (&batch[some.clone()], &channels[some]);
            self.add_keys(call, batch.iter().map(|release| release.resource.key));
            // In a cluster, there is one call for each lock.
            self.add_before_releases(call, batch.first().map_or("", |it| it.resource.key));
            for (release, channel) in batch.iter().zip(channels) {
                self.add_release(call, release, channel);
            }
            self.add_after_releases(call);
        };
        let own: Vec<_> = channels.iter().map(|channel| self.own_release(channel)).collect();
        let route = self.shared.route(lane)?;
        // The sender limits how many of these are in flight. Returning a permit would wake callers,
        // which the background thread must not do.
        let options = RequestOptions {
            trace: Some(trace),
            class: RequestClass::Unlimited,
            ..self.holder_options(StoreOperation::Release)
        };
        let script = dialect.release_all(self.shared.servers.publish());
        let key = |index: usize| batch[index].resource.key;
        let (locks, wants_carriers) = (batch.len(), false);
        let requests = ScriptBatch { script, locks, key: &key, options, wants_carriers };
        let replies = route.run_for_each(&requests, &args, decode::released_all).await;
        for index in replies.asked.into_iter().filter(|_| !dialect.queues) {
            self.publish_at_owner(&route, channels[index].clone());
        }
        let keys = batch.iter().map(|release| release.resource.key);
        let answers = replies.answers.into_iter().zip(keys.zip(&channels)).zip(own);
        let freed = |((reply, (key, channel)), own): ((Result<_, _>, (&str, &String)), _)| {
            reply.map(|reply| self.freed(&reply, (key, channel), own))
        };
        Ok(answers.map(freed).collect())
    }

    /// Publishes the message of a release once more, at the node that has the slot of the channel.
    /// The release ran at another node, to which the slot is being moved, and the waiters have
    /// subscribed at its owner. Without this message, they would find the key free a second later.
    ///
    /// Runs in a task of its own: the release is complete, and the owner may not answer.
    fn publish_at_owner(&self, route: &Route, channel: String) {
        if self.shared.servers.publish() != Publish::ToShard {
            return;
        }
        let mut publish = cmd("SPUBLISH");
        publish.arg(&channel).arg(self.dialect.message(self.shared.id.uuid()));
        let (route, timeout) = (route.clone(), RequestTimeout::of(self.shared.response_timeout));
        let options = RequestOptions::new(RequestClass::Unlimited, timeout);
        drop(tokio::spawn(async move {
            let _ = route.send(&channel, &publish, &options, |_| Ok(())).await;
        }));
    }

    /// Expects the message of a release by this process, if messages do not name the sender.
    fn own_release<'a>(&'a self, channel: &'a str) -> Option<OwnRelease<'a>> {
        let is_anonymous = self.dialect.is_anonymous();
        is_anonymous.then(|| self.shared.subscriptions.own_release(channel))
    }

    fn freed(
        &self,
        reply: &decode::ReleaseReply,
        (key, channel): (&str, &str),
        own: Option<OwnRelease<'_>>,
    ) -> Released {
        let (subscribers, woken) = match reply {
            // The next claim has the lock already (1), or nobody waits (0).
            decode::ReleaseReply::Freed { subscribers } if self.dialect.queues => {
                (0, usize::try_from(*subscribers).unwrap_or_default())
            }
            decode::ReleaseReply::Gone => return Released::Gone,
            decode::ReleaseReply::Taken => return Released::Taken,
            decode::ReleaseReply::Freed { subscribers } => {
                (*subscribers, self.shared.others_of(channel, *subscribers))
            }
            // The key stays taken, so the woken waiters cannot acquire it yet.
            decode::ReleaseReply::Kept { subscribers } => (*subscribers, 0),
            decode::ReleaseReply::Unpublished(cause) => {
                self.shared.could_not_publish(key, cause);
                (0, usize::from(self.dialect.queues))
            }
        };
        if let Some(own) = own.filter(|_| subscribers > 0) {
            own.published();
        }
        Released::Freed { woken }
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

    fn slot(&self, key: &str) -> Option<Slot> {
        self.dialect.acquire_all.as_ref()?;
        let in_cluster = self.shared.servers.is_cluster();
        Some(if in_cluster { Slot(hash_slot::slot(key)) } else { Slot::ONLY })
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
            let answers = self.free_all(batch, lane, &trace).await;
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
        Capabilities { queues: self.dialect.queues, verifies_transfers, ..Capabilities::ALL }
    }

    fn watches(&self) -> bool {
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
    use crate::store::contract::Layout;
    use crate::store::redis::dialects;
    use crate::store::redis::servers::Servers;
    use crate::store::redis::url;
    use crate::store::settings::Settings;
    use crate::wire_format::WireFormat;

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
        let claim = crate::engine::testing::claim(owner, term);
        let (keep, leaves_gap) = (Duration::ZERO, false);
        let release = Release { resource, owner, keep, queued: None, leaves_gap };
        let sizes = [
            size_of_val(&store.acquire(claim, RequestTimeout::of(term), &trace)),
            size_of_val(&store.free(release, Lane::Caller)),
        ];
        assert!(sizes.iter().all(|size| *size <= 1032), "{sizes:?} bytes");
        let sizes = [
            size_of_val(&store.renew(&[], Lane::Caller)),
            size_of_val(&store.free_all(&[], Lane::Caller, &trace)),
            size_of_val(&store.fencing_token("k", owner, 0)),
        ];
        assert!(sizes.iter().all(|size| *size < 1400), "{sizes:?} bytes");
    }
}
