//! The requests about locks in one dialect.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, cmd};

use super::connection::{RequestClass, RequestOptions};
use super::decode::{self, AcquireReply};
use super::dialect::{Dialect, milliseconds};
use super::hash_slot;
use super::shared::Shared;
use crate::clock::BootInstant;
use crate::key;
use crate::maybe_ready::MaybeReady;
use crate::store::contract::{
    Acquired, Claim, Fenced, Grant, Lane, Left, LockStore, Release, Released, ReleasedBatch,
    Renewal, Renewed, Resource, SendTrace, StoreError,
};
use crate::store::owner::OwnerId;
use crate::store::subscriptions::{OwnRelease, Subscription};
use crate::timeout::RequestTimeout;

/// How long the request of a lock's holder may wait until it can be sent. Only a program that
/// releases very many locks at once makes it wait, and nothing is wrong then.
const HOLDER_SEND_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct RedisStore {
    shared: Arc<Shared>,
    dialect: &'static Dialect,
}

impl RedisStore {
    pub(super) fn new(shared: Arc<Shared>, dialect: &'static Dialect) -> Self {
        Self { shared, dialect }
    }

    /// For a request about a lock that is or was held.
    fn holder_options(&self) -> RequestOptions<'static> {
        let answer = self.shared.response_timeout;
        let timeout = RequestTimeout { answer, total: answer + HOLDER_SEND_TIMEOUT };
        RequestOptions { class: RequestClass::Holders, timeout, trace: None }
    }

    async fn acquire(
        &self,
        claim: Claim<'_>,
        timeout: RequestTimeout,
        trace: &SendTrace,
    ) -> Result<Acquired, StoreError> {
        let connection = self.shared.connection(Lane::Caller)?;
        let dialect = self.dialect;
        let options = RequestOptions { class: RequestClass::Acquires, timeout, trace: Some(trace) };
        let reply = if let (true, Some(take)) = (claim.fresh, dialect.take) {
            // Cheaper for the server than a script, and enough for most locks.
            connection.send(&take(&claim), options, decode::taken).await?
        } else {
            let args = |call: &mut Cmd| {
                call.arg(dialect.keys());
                dialect.add_keys(call, claim.resource.key);
                call.arg(dialect.owner(claim.owner, &self.shared.id)).arg(milliseconds(claim.term));
            };
            connection.run(&dialect.acquire, args, options, decode::acquired).await?
        };
        match reply {
            AcquireReply::Granted => Ok(Acquired::Granted(Grant::of(claim.term))),
            AcquireReply::Busy(left) => Ok(Acquired::Busy(left)),
            AcquireReply::WrongFormat(found) => Err(StoreError::WrongFormat {
                key: claim.resource.key.to_owned(),
                expected: dialect.layout,
                found,
            }),
        }
    }

    async fn renew(
        &self,
        batch: &[Renewal<'_>],
        lane: Lane,
    ) -> Result<Vec<Result<Renewed, StoreError>>, StoreError> {
        let dialect = self.dialect;
        let args = |call: &mut Cmd| {
            call.arg(batch.len() * dialect.keys());
            for renewal in batch {
                dialect.add_keys(call, renewal.resource.key);
            }
            for renewal in batch {
                let owner = dialect.owner(renewal.owner, &self.shared.id);
                call.arg(owner).arg(milliseconds(renewal.term));
            }
        };
        let timeout = RequestTimeout::of(self.shared.response_timeout);
        let options = RequestOptions { class: RequestClass::Unlimited, timeout, trace: None };
        let decode = |reply: &_| decode::renewed(reply, batch.len());
        self.shared.connection(lane)?.run(&dialect.renew, args, options, decode).await
    }

    async fn free(&self, release: Release<'_>, lane: Lane) -> Result<Released, StoreError> {
        let dialect = self.dialect;
        let channel = dialect.channel(release.resource.key);
        let args = |call: &mut Cmd| {
            call.arg(dialect.keys());
            dialect.add_keys(call, release.resource.key);
            self.add_release(call, &release, &channel);
            call.arg(dialect.message(&self.shared.id));
        };
        let own = self.own_release(&channel);
        let (connection, options) = (self.shared.connection(lane)?, self.holder_options());
        let reply = connection.run(&dialect.release, args, options, decode::released).await?;
        Ok(self.freed(&reply, &channel, own))
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
            batch.iter().map(|release| dialect.channel(release.resource.key)).collect();
        let args = |call: &mut Cmd| {
            call.arg(batch.len() * dialect.keys());
            for release in batch {
                dialect.add_keys(call, release.resource.key);
            }
            for (release, channel) in batch.iter().zip(&channels) {
                self.add_release(call, release, channel);
            }
            call.arg(dialect.message(&self.shared.id));
        };
        let own: Vec<_> = channels.iter().map(|channel| self.own_release(channel)).collect();
        let connection = self.shared.connection(lane)?;
        // The sender limits how many of these are in flight. Returning a permit would wake callers,
        // which the background thread must not do.
        let options = RequestOptions {
            trace: Some(trace),
            class: RequestClass::Unlimited,
            ..self.holder_options()
        };
        let decode = |reply: &_| decode::released_all(reply, batch.len());
        let replies = connection.run(&dialect.release_all, args, options, decode).await?;
        let answers = replies.into_iter().zip(&channels).zip(own);
        let freed = |((reply, channel), own): ((Result<_, _>, &String), _)| {
            reply.map(|reply| self.freed(&reply, channel, own))
        };
        Ok(answers.map(freed).collect())
    }

    /// Adds the arguments of one release.
    fn add_release(&self, call: &mut Cmd, release: &Release<'_>, channel: &str) {
        call.arg(self.dialect.owner(release.owner, &self.shared.id)).arg(channel);
        call.arg(milliseconds(release.keep));
    }

    /// Expects the message of a release by this process, if messages do not name the sender.
    fn own_release<'a>(&'a self, channel: &'a str) -> Option<OwnRelease<'a>> {
        let is_anonymous = self.dialect.is_anonymous();
        is_anonymous.then(|| self.shared.subscriptions.own_release(channel))
    }

    fn freed(
        &self,
        reply: &decode::ReleaseReply,
        channel: &str,
        own: Option<OwnRelease<'_>>,
    ) -> Released {
        let (subscribers, woken) = match reply {
            decode::ReleaseReply::Gone => return Released::Gone,
            decode::ReleaseReply::Taken => return Released::Taken,
            decode::ReleaseReply::Freed { subscribers } => {
                (*subscribers, self.shared.others_of(channel, *subscribers))
            }
            // The key stays taken, so the woken waiters cannot acquire it yet.
            decode::ReleaseReply::Kept { subscribers } => (*subscribers, 0),
            decode::ReleaseReply::Unpublished(cause) => {
                self.shared.could_not_publish(channel, cause);
                (0, 0)
            }
        };
        if let Some(own) = own.filter(|_| subscribers > 0) {
            own.published();
        }
        Released::Freed { woken }
    }

    async fn subscribers(&self, key: &str) -> Result<usize, StoreError> {
        let channel = self.dialect.channel(key);
        let mut count = cmd("PUBSUB");
        count.arg("NUMSUB").arg(&channel);
        let connection = self.shared.connection(Lane::Caller)?;
        let all = connection.send(&count, self.holder_options(), decode::subscribers).await?;
        Ok(self.shared.others_of(&channel, all))
    }

    async fn fencing_token(&self, key: &str, owner: OwnerId) -> Result<Fenced, StoreError> {
        let dialect = self.dialect;
        let last = format!("{}{{{}}}", key::FENCES, hash_slot::tag(key));
        let args = |call: &mut Cmd| {
            call.arg(dialect.keys() + 1);
            dialect.add_keys(call, key);
            call.arg(&last).arg(dialect.owner(owner, &self.shared.id));
        };
        let connection = self.shared.connection(Lane::Caller)?;
        let options = self.holder_options();
        match connection.run(&dialect.fence, args, options, decode::fenced).await? {
            decode::FenceReply::With(fence) => Ok(Fenced::With(fence)),
            decode::FenceReply::Gone => Ok(Fenced::Gone),
            decode::FenceReply::Taken => Ok(Fenced::Taken),
            decode::FenceReply::NoLastToken => Err(StoreError::WrongFormat {
                key: last,
                expected: "fencing token",
                found: "different value".into(),
            }),
        }
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
        MaybeReady::pending(self.free(release, lane))
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
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
    ) -> MaybeReady<'a, Result<Fenced, StoreError>> {
        MaybeReady::pending(self.fencing_token(resource.key, owner))
    }

    fn count_waiters<'a>(
        &'a self,
        resource: Resource<'a>,
    ) -> MaybeReady<'a, Result<usize, StoreError>> {
        MaybeReady::pending(self.subscribers(resource.key))
    }

    fn subscribe(&self, resource: Resource<'_>) -> Subscription {
        let channel = self.dialect.channel(resource.key);
        self.shared.subscriptions.listen(&channel, resource.key, self.dialect.format)
    }

    fn last_check(&self, resource: Resource<'_>) -> Option<(Left, BootInstant)> {
        let channel = self.dialect.channel(resource.key);
        self.shared.subscriptions.last_check(&channel, resource.key)
    }

    fn layout(&self) -> &'static str {
        self.dialect.layout
    }
}
