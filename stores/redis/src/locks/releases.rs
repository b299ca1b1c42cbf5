//! The requests that free locks.

use std::ops::Range;

use redis::{Cmd, cmd};

use super::store::RedisStore;
use crate::connections::admission::RequestClass;
use crate::connections::connection::RequestOptions;
use crate::connections::request::ScriptBatch;
use crate::connections::route::Route;
use crate::scripts::decode;
use crate::scripts::script::Publish;
use lock_core::store::contract::{Lane, Release, Released, SendTrace, StoreError};
use lock_core::store::subscriptions::OwnRelease;
use lock_core::telemetry::requests::StoreOperation;
use lock_core::timeout::RequestTimeout;

impl RedisStore {
    /// For releases whose sender limits how many are in flight. Returning a permit would wake callers, which the background thread
    /// must not do.
    pub(crate) fn background_options<'a>(&'a self, trace: &'a SendTrace) -> RequestOptions<'a> {
        RequestOptions {
            trace: Some(trace),
            class: RequestClass::Unlimited,
            ..self.holder_options(StoreOperation::Release)
        }
    }

    /// Frees one lock.
    pub(crate) fn free(
        &self,
        release: Release<'_>,
        lane: Lane,
    ) -> impl Future<Output = Result<Released, StoreError>> {
        let (dialect, key) = (self.dialect, release.resource.key);
        let channel = self.key_channel(key).into_boxed_str();
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
                self.publish_at_owner(&route, channel.to_string());
            }
            Ok(self.freed(&answer.value, (key, &channel), own))
        }
    }

    /// Frees several with one script. Fails if the script was not run, or its reply is not known.
    pub(crate) async fn free_all(
        &self,
        batch: &[Release<'_>],
        lane: Lane,
        options: &RequestOptions<'_>,
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
        let script = dialect.release_all(self.shared.servers.publish());
        let key = |index: usize| batch[index].resource.key;
        let (locks, wants_carriers) = (batch.len(), false);
        let requests = ScriptBatch { script, locks, key: &key, options: *options, wants_carriers };
        let mut replies = route.run_for_each(&requests, &args, decode::released_all).await;
        if replies.have_one_error
            && let Some(Err(error)) = replies.answers.pop()
        {
            return Err(error);
        }
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
    pub(crate) fn own_release<'a>(&'a self, channel: &'a str) -> Option<OwnRelease<'a>> {
        let is_anonymous = self.dialect.is_anonymous();
        is_anonymous.then(|| self.shared.subscriptions.own_release(channel))
    }

    pub(crate) fn freed(
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
