//! Hearing of releases: keeps the server's subscriptions in step with what is listened to.
//!
//! Has a connection of its own, because a server closes one that does not take its messages fast
//! enough, and nothing else may be lost with it. For the same reason channels are subscribed a few
//! at a time, each of these steps answered before the next: the server's confirmations of very many
//! at once would be too much for it. A new connection has no subscriptions, so all are made again.
//! While none are wanted, nothing is sent; while some are, the looks at their keys notice a connection
//! that has gone silent (`look.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout};
use tracing::Level;

use super::link::{Connection, Link, OnMessage};
use crate::events;
use crate::protection::Protection;
use crate::store::{StoreError, WakeUps};

/// How long a key stays subscribed that nobody listens to any more: long enough for a loop that takes
/// the same lock again and again. Not longer, because others take a subscriber for one who waits.
const LINGER: Duration = Duration::from_millis(10);

/// How often such keys are looked for, while there are any subscriptions.
const LOOK: Duration = Duration::from_millis(50);

/// How many channels one request subscribes, and how many bytes their names may have: far below
/// the least that a server would be configured to hold back for a client of this kind.
const CHUNK: (usize, usize) = (1000, 64 * 1024);

/// How long to wait before the next attempt after one failed.
const RETRY: Duration = Duration::from_millis(100);

/// The same after the user was not allowed to, who can hardly do so a moment later.
const RETRY_DENIED: Duration = Duration::from_secs(10);

/// Passes the server's messages on to the listeners. Those that say `own` are of this client's own
/// releases.
pub(super) fn on_message(wake_ups: &Arc<WakeUps>, own: &Arc<str>) -> OnMessage {
    let (wake_ups, own) = (Arc::clone(wake_ups), Arc::clone(own));
    Arc::new(move |push: &PushInfo| {
        if push.kind != PushKind::Message {
            return;
        }
        if let [Value::BulkString(name), Value::BulkString(by)] = &push.data[..] {
            wake_ups.wake(&String::from_utf8_lossy(name), **by != *own.as_bytes());
        }
    })
}

/// Does it, until the runtime ends.
pub(super) async fn run(link: Link, wake_ups: Arc<WakeUps>, response_timeout: Duration) {
    let (generation, denied) = (0, BTreeMap::new());
    let mut subscriber = Subscriber { link, wake_ups, response_timeout, generation, denied };
    loop {
        let mut denied = false;
        let next = if subscriber.wake_ups.is_empty() {
            None
        } else if let Err(error) = subscriber.keep_up().await {
            denied = matches!(error, StoreError::Denied(_));
            events::emit(Level::DEBUG, move || {
                tracing::debug!(%error, "cannot hear of releases for now, contenders poll");
            });
            Some(jittered(if denied { RETRY_DENIED } else { RETRY }))
        } else {
            Some(LOOK)
        };
        let pause = async {
            match next {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = subscriber.wake_ups.added(), if !denied => {}
            () = subscriber.link.changed() => {}
            () = pause => {}
        }
    }
}

struct Subscriber {
    link: Link,
    wake_ups: Arc<WakeUps>,
    response_timeout: Duration,
    /// The connection that the subscriptions were made on.
    generation: u64,
    /// The kinds of channels that the user may not subscribe.
    denied: BTreeMap<String, Denied>,
}

/// Channels that are let be for a while.
struct Denied {
    until: Instant,
    channels: Vec<Arc<str>>,
}

impl Subscriber {
    /// Brings the server's subscriptions to what is listened to.
    async fn keep_up(&mut self) -> Result<(), StoreError> {
        let connection = self.link.connection(self.response_timeout).await;
        let generation = connection.as_ref().map_or(0, |connection| connection.generation);
        if self.generation != generation {
            self.generation = generation;
            // After this all are wanted again.
            self.denied.values_mut().for_each(|denied| denied.channels.clear());
            self.wake_ups.disconnected();
        }
        let mut connection = connection?;

        let now = Instant::now();
        for denied in self.denied.values_mut().filter(|denied| denied.until <= now) {
            self.wake_ups.want_again(std::mem::take(&mut denied.channels));
        }
        loop {
            let wanted = self.wake_ups.take_wanted(chunk());
            let Some(first) = wanted.first() else { break };
            let kind = kind(first).to_owned();
            if let Some(denied) = self.denied.get_mut(&kind).filter(|denied| denied.until > now) {
                denied.channels.extend(wanted);
                continue;
            }
            match self.subscribe(&mut connection, &wanted).await {
                Ok(()) => {}
                Err(StoreError::Denied(cause)) => {
                    self.may_not(kind, wanted, &cause);
                    continue;
                }
                Err(error) => {
                    self.wake_ups.want_again(wanted);
                    return Err(error);
                }
            }
            let orphans = self.wake_ups.subscribed(&wanted);
            self.unsubscribe(&mut connection, &orphans).await?;
        }
        let idle = self.wake_ups.take_idle(LINGER);
        self.unsubscribe(&mut connection, &idle).await
    }

    async fn subscribe(
        &self,
        connection: &mut Connection,
        channels: &[Arc<str>],
    ) -> Result<(), StoreError> {
        let answer = timeout(self.response_timeout, connection.socket.subscribe(names(channels)));
        let answer = answer.await;
        self.judge(connection, answer)
    }

    async fn unsubscribe(
        &self,
        connection: &mut Connection,
        mut channels: &[Arc<str>],
    ) -> Result<(), StoreError> {
        while !channels.is_empty() {
            let mut fits = chunk();
            let count = channels.iter().take_while(|name| fits(name)).count();
            let (some, rest) = channels.split_at(count);
            let answer = timeout(self.response_timeout, connection.socket.unsubscribe(names(some)));
            let answer = answer.await;
            self.judge(connection, answer)?;
            channels = rest;
        }
        Ok(())
    }

    fn may_not(&mut self, kind: String, channels: Vec<Arc<str>>, cause: &str) {
        let until = Instant::now() + jittered(RETRY_DENIED);
        let pattern = format!("{kind}:*");
        if self.denied.insert(kind, Denied { until, channels }).is_none() {
            let cause = cause.to_owned();
            events::emit(Level::WARN, move || {
                tracing::warn!(
                    channels = pattern,
                    cause,
                    "may not hear of releases, so waiting is by polling only"
                );
            });
        }
    }

    /// What an answer means, or that there was none.
    fn judge(
        &self,
        connection: &Connection,
        answer: Result<redis::RedisResult<()>, Elapsed>,
    ) -> Result<(), StoreError> {
        match answer {
            Ok(answer) => answer.map_err(|error| self.link.judge(connection.generation, &error)),
            Err(_) => {
                // Messages may have come instead. Then this is tried again.
                self.link.unanswered_on(connection);
                Err(StoreError::Unknown("no answer".into()))
            }
        }
    }
}

/// Whether the next channel fits into one request with those before. Of one kind, because a user may
/// be denied one kind only.
fn chunk() -> impl FnMut(&str) -> bool {
    let (mut count, mut bytes, mut of_kind) = (0, 0, None);
    move |name| {
        count += 1;
        bytes += name.len();
        let is_first = count == 1;
        let of_kind = of_kind.get_or_insert_with(|| kind(name).to_owned());
        let fits = count <= CHUNK.0 && bytes <= CHUNK.1;
        let fits = fits || !Protection::LimitedSubscriptions.is_on();
        is_first || fits && *of_kind == kind(name)
    }
}

/// What the channels of one format have in common. A user may have been allowed those of another only.
fn kind(channel: &str) -> &str {
    channel.split(':').next().unwrap_or(channel)
}

fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64())
}

fn names(channels: &[Arc<str>]) -> Vec<&str> {
    channels.iter().map(|channel| &**channel).collect()
}
