//! Subscribes to releases: keeps the subscriptions at the server in step with the listeners.
//!
//! Subscriptions have a connection of their own, because a server closes a connection that does not
//! read its messages fast enough, and no other requests may be lost with it. For the same reason,
//! channels are subscribed in chunks, and each chunk is confirmed before the next: the
//! confirmations of very many channels at once would exceed the server's limit. A new connection
//! has no subscriptions, so all channels are subscribed again. Nothing is sent while there are no
//! channels; that of the client stays for half a minute after its last claim. The checks of the
//! listeners' keys detect a connection that has gone silent (see [`poller`](super::poller)).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout};
use tracing::Level;

use crate::client_id::ClientId;
use crate::connections::connect::Established;
use crate::connections::connection::Connection;
use crate::connections::tracking::changed_keys;
use crate::scripts::queue::{decode_message, is_of_client};
use crate::transport::outgoing::Outgoing;
use crate::transport::pipelined::OnMessage;
use lock_core::backoff::jittered;
use lock_core::events;
use lock_core::questions::{ANSWERS, QUESTIONS};
use lock_core::store::contract::StoreError;
use lock_core::store::subscriptions::Subscriptions;

/// How long a channel without listeners stays subscribed: long enough for a loop that acquires the
/// same lock repeatedly. Not longer, because other processes count a subscriber as a waiter,
/// in the layouts without queues.
pub(crate) const LINGER: Duration = Duration::from_millis(10);

/// How often channels without listeners are searched for, while there are any channels.
pub(crate) const IDLE_INTERVAL: Duration = Duration::from_millis(50);

/// The most channels of one request, and the most bytes of their names: far below the smallest
/// output buffer limit that a server would have for subscribers.
const CHUNK: (usize, usize) = (1000, 64 * 1024);

/// The pause after a failed attempt, before jitter.
pub(crate) const RETRY: Duration = Duration::from_millis(100);

/// The same while nobody waits for a lock, so that only questions are missed.
const RETRY_QUIET: Duration = Duration::from_secs(5);

/// The same if the user lacks the permission, which rarely changes soon.
pub(crate) const RETRY_DENIED: Duration = Duration::from_secs(10);

/// The same for questions, so that an idle client sends almost nothing.
const RETRY_DENIED_QUESTIONS: Duration = Duration::from_secs(600);

/// The pause before channels of this kind are tried again, because the user lacks the permission.
pub(crate) fn retry_denied(kind: &str) -> Duration {
    let of_questions = QUESTIONS.strip_prefix(kind) == Some(":");
    if of_questions { RETRY_DENIED_QUESTIONS } else { RETRY_DENIED }
}

/// Passes the server's messages on to the listeners. The message `own` announces a release by this
/// client.
pub(crate) fn on_message(subscriptions: &Arc<Subscriptions>, own: &ClientId) -> OnMessage {
    let (subscriptions, own) = (Arc::clone(subscriptions), own.clone());
    Arc::new(move |push: &PushInfo| {
        if let Some(changed) = changed_keys(push) {
            return subscriptions.changed(changed);
        }
        if !matches!(push.kind, PushKind::Message | PushKind::SMessage) {
            return;
        }
        let [Value::BulkString(channel), Value::BulkString(message)] = &push.data[..] else {
            return;
        };
        let channel = String::from_utf8_lossy(channel);
        if channel.starts_with(QUESTIONS) || channel.starts_with(ANSWERS) {
            subscriptions.deliver(&channel, message);
            return;
        }
        if is_of_client(&channel) {
            if let Some((owner, message)) = decode_message(message) {
                subscriptions.received(&channel, owner, message);
            }
            return;
        }
        let by_another = **message != *own.uuid().as_bytes();
        subscriptions.wake(&channel, by_another);
    })
}

/// Keeps the subscriptions in step until the runtime ends.
pub(crate) async fn run(
    connection: Connection,
    subscriptions: Arc<Subscriptions>,
    response_timeout: Duration,
) {
    let (generation, denied) = (0, BTreeMap::new());
    let mut subscriber =
        Subscriber { connection, subscriptions, response_timeout, generation, denied };
    loop {
        let mut denied = false;
        let next = if subscriber.subscriptions.is_empty() {
            None
        } else if let Err(error) = subscriber.synchronize().await {
            denied = matches!(error, StoreError::Denied(_));
            events::emit(Level::DEBUG, move || {
                tracing::debug!(
                    target: "lock_runtime::store::redis",
                    %error,
                    "cannot subscribe to releases yet; waiting calls poll instead"
                );
            });
            let is_quiet = subscriber.subscriptions.is_quiet();
            Some(jittered(match denied {
                true => RETRY_DENIED,
                false if is_quiet => RETRY_QUIET,
                false => RETRY,
            }))
        } else {
            subscriber.next_look()
        };
        let pause = async {
            match next {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = subscriber.subscriptions.wanted(), if !denied => {}
            () = subscriber.connection.changed() => {}
            () = pause => {}
        }
    }
}

struct Subscriber {
    connection: Connection,
    subscriptions: Arc<Subscriptions>,
    response_timeout: Duration,
    /// The connection that has the subscriptions.
    generation: u64,
    /// The kinds of channels that the user has no permission to subscribe.
    denied: BTreeMap<String, Denied>,
}

/// Channels that are not subscribed for a while.
struct Denied {
    until: Instant,
    channels: Vec<Arc<str>>,
    cause: String,
}

impl Subscriber {
    /// Subscribes the channels with listeners, and unsubscribes idle ones.
    async fn synchronize(&mut self) -> Result<(), StoreError> {
        let connection = self.connection.established(self.response_timeout).await;
        let generation = connection.as_ref().map_or(0, |connection| connection.generation);
        if self.generation != generation {
            self.generation = generation;
            // `disconnected` makes all channels wanted again, including these.
            self.denied.values_mut().for_each(|denied| denied.channels.clear());
            self.subscriptions.disconnected();
        }
        let connection = connection?;

        let now = Instant::now();
        for denied in self.denied.values_mut().filter(|denied| denied.until <= now) {
            self.subscriptions.want_again(std::mem::take(&mut denied.channels));
        }
        loop {
            let wanted = self.subscriptions.take_wanted(chunk());
            let Some(first) = wanted.first() else { break };
            let kind = kind(first).to_owned();
            if let Some(denied) = self.denied.get_mut(&kind).filter(|denied| denied.until > now) {
                self.subscriptions.denied(wanted.iter(), &denied.cause);
                denied.channels.extend(wanted);
                continue;
            }
            match self.subscribe(&connection, &wanted).await {
                Ok(()) => {}
                Err(StoreError::Denied(cause)) => {
                    self.postpone(&kind, wanted, cause);
                    continue;
                }
                Err(error) => {
                    self.subscriptions.want_again(wanted);
                    return Err(error);
                }
            }
            let orphans = self.subscriptions.subscribed(&wanted);
            self.unsubscribe(&connection, &orphans).await?;
        }
        let idle = self.subscriptions.take_idle(LINGER);
        self.unsubscribe(&connection, &idle).await
    }

    /// The time until channels may have to be subscribed or unsubscribed.
    fn next_look(&self) -> Option<Duration> {
        let denied = self.denied.values().filter(|denied| !denied.channels.is_empty());
        let again = denied.map(|denied| denied.until.saturating_duration_since(Instant::now()));
        again.chain(self.subscriptions.next_look(IDLE_INTERVAL)).min()
    }

    async fn subscribe(
        &self,
        connection: &Established,
        channels: &[Arc<str>],
    ) -> Result<(), StoreError> {
        let subscribe = Outgoing::Subscription { change: PushKind::Subscribe, channels };
        let answer =
            timeout(self.response_timeout, connection.socket.commands.send(subscribe)).await;
        self.classify(connection, answer)
    }

    async fn unsubscribe(
        &self,
        connection: &Established,
        mut channels: &[Arc<str>],
    ) -> Result<(), StoreError> {
        while !channels.is_empty() {
            let mut fits = chunk();
            let count = channels.iter().take_while(|name| fits(name)).count();
            let (some, rest) = channels.split_at(count);
            let unsubscribe =
                Outgoing::Subscription { change: PushKind::Unsubscribe, channels: some };
            let answer =
                timeout(self.response_timeout, connection.socket.commands.send(unsubscribe)).await;
            self.classify(connection, answer)?;
            channels = rest;
        }
        Ok(())
    }

    /// Does not subscribe channels of this kind for a while, because the user lacks the permission.
    fn postpone(&mut self, kind: &str, channels: Vec<Arc<str>>, cause: String) {
        let until = Instant::now() + jittered(retry_denied(kind));
        self.subscriptions.denied(channels.iter(), &cause);
        let denied = Denied { until, channels, cause: cause.clone() };
        if self.denied.insert(kind.to_owned(), denied).is_none() {
            warn_denied(kind, cause);
        }
    }

    /// Classifies the answer to a request, or its timeout.
    fn classify(
        &self,
        connection: &Established,
        answer: Result<redis::RedisResult<Value>, Elapsed>,
    ) -> Result<(), StoreError> {
        match answer {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.connection.classify(connection.generation, &error)),
            Err(_) => {
                // If messages have arrived instead, the connection stays and the request is
                // repeated.
                self.connection.unanswered_on(connection);
                Err(StoreError::Unknown("no answer".into()))
            }
        }
    }
}

/// Returns whether the next channel fits into one request with the previous ones. A request has
/// channels of one kind only, because the user may have the permission for some kinds only.
fn chunk() -> impl FnMut(&str) -> bool {
    let (mut count, mut bytes, mut of_kind) = (0, 0, None);
    move |name| {
        count += 1;
        bytes += name.len();
        let is_first = count == 1;
        let of_kind = of_kind.get_or_insert_with(|| kind(name).to_owned());
        let fits = count <= CHUNK.0 && bytes <= CHUNK.1;
        is_first || fits && *of_kind == kind(name)
    }
}

/// Logs that channels of this kind cannot be subscribed.
pub(crate) fn warn_denied(kind: &str, cause: String) {
    let pattern = format!("{kind}:*");
    if pattern.starts_with(QUESTIONS) {
        events::emit(Level::INFO, move || {
            tracing::info!(
                target: "lock_runtime::store::redis",
                channels = pattern,
                cause,
                "no permission to subscribe to questions; others cannot ask this client which locks it \
                 holds"
            );
        });
        return;
    }
    if pattern.starts_with(ANSWERS) {
        // The call that waits for answers gets an error.
        return;
    }
    events::emit(Level::WARN, move || {
        tracing::warn!(
            target: "lock_runtime::store::redis",
            channels = pattern,
            cause,
            "no permission to subscribe to releases; waiting calls poll instead"
        );
    });
}

/// The kind of a channel: the prefix that the channels of one format share.
pub(crate) fn kind(channel: &str) -> &str {
    channel.split(':').next().unwrap_or(channel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::store::owner::OwnerId;
    use lock_core::wire_format::WireFormat;

    /// How many of these channels one request subscribes.
    fn fitting<'a>(channels: impl IntoIterator<Item = &'a str>) -> usize {
        let mut fits = chunk();
        channels.into_iter().take_while(|channel| fits(channel)).count()
    }

    #[test]
    fn a_request_has_a_limited_number_of_channels_of_one_kind() {
        assert_eq!(fitting(["a:1", "a:2", "b:1", "a:3"]), 2);
        assert_eq!(fitting(std::iter::repeat_n("a:1", CHUNK.0 * 2)), CHUNK.0);
        let long = format!("a:{}", "1".repeat(998));
        assert_eq!(fitting(std::iter::repeat_n(&*long, CHUNK.0)), CHUNK.1 / long.len());
        let longer = format!("a:{}", "1".repeat(CHUNK.1));
        assert_eq!(fitting([&*longer, "a:1"]), 1, "at least one");
    }

    #[test]
    fn questions_without_permission_are_rarely_tried_again() {
        assert_eq!(retry_denied(kind("lock_ask:shop:eu")), RETRY_DENIED_QUESTIONS);
        for channel in ["lock_client:x", "lock_answer:{lock_ask:}:x", "lock_wake:{k}", "lock"] {
            assert_eq!(retry_denied(kind(channel)), RETRY_DENIED, "{channel}");
        }
    }

    const CLIENT: &str = "b983c153-7421-469a-addb-44fb92259a1b";

    #[test]
    fn a_message_that_does_not_come_from_this_client_counts_as_a_release_by_another() {
        let (subscriptions, own) = (Subscriptions::remote(Arc::default()), ClientId::parse(CLIENT));
        let subscription = subscriptions.listen(
            "channel",
            "k",
            WireFormat::Redisson.into(),
            OwnerId::new().expect("randomness"),
        );
        let on_message = on_message(&subscriptions, &own);
        for (kind, message, releases) in [
            (PushKind::Message, CLIENT, 0),
            (PushKind::Message, "other", 1),
            (PushKind::PMessage, "other", 1),
        ] {
            let data = ["channel", message].map(|text| Value::BulkString(text.into())).into();
            on_message(&PushInfo { kind, data });
            assert_eq!(subscription.releases(), releases, "{message}");
        }
    }
}
