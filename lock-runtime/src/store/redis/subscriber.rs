//! Hearing of releases: keeps the server's subscriptions in step with what is listened to.
//!
//! Runs on the keeper's runtime and uses the keeper's connection, which the server sends its
//! messages on. A new connection has no subscriptions, so all are made again; while any are
//! wanted, a connection that has gone silent is noticed by a ping. While none are, nothing is sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, Value, cmd};
use tokio::time::{Instant, sleep, timeout};

use super::link::{Connection, Link, OnMessage};
use crate::store::{StoreError, WakeUps};

/// How long a key stays subscribed that nobody listens to any more: long enough for a loop that takes
/// the same lock again and again. Not longer, because others take a subscriber for one who waits.
const LINGER: Duration = Duration::from_millis(10);

/// How often such keys are looked for, while there are any subscriptions.
const LOOK: Duration = Duration::from_millis(50);

/// How often the connection is asked whether it is still there.
const PING: Duration = Duration::from_secs(3);

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
    let (generation, asked, denied) = (0, Instant::now(), HashMap::new());
    let mut subscriber = Subscriber { link, wake_ups, response_timeout, generation, asked, denied };
    loop {
        let mut denied = false;
        let next = if subscriber.wake_ups.is_empty() {
            None
        } else if let Err(error) = subscriber.keep_up().await {
            tracing::debug!(%error, "cannot hear of releases for now, contenders poll");
            denied = matches!(error, StoreError::Denied(_));
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
    /// When the connection last answered.
    asked: Instant,
    /// The kinds of channels that the user may not subscribe, until when they are let be.
    denied: HashMap<String, Instant>,
}

impl Subscriber {
    /// Brings the server's subscriptions to what is listened to.
    async fn keep_up(&mut self) -> Result<(), StoreError> {
        let connection = self.link.connection(self.response_timeout).await;
        let generation = connection.as_ref().map_or(0, |connection| connection.generation);
        if self.generation != generation {
            self.generation = generation;
            self.wake_ups.disconnected();
        }
        let Connection { mut socket, .. } = connection?;

        let (mut wanted, now) = (self.wake_ups.wanted(), Instant::now());
        wanted.retain(|channel| self.denied.get(kind(channel)).is_none_or(|until| *until <= now));
        wanted.sort_unstable();
        for of_one_kind in wanted.chunk_by(|one, next| kind(one) == kind(next)) {
            let answer = self.answered(generation, socket.subscribe(names(of_one_kind))).await;
            if let Err(StoreError::Denied(cause)) = answer {
                self.may_not(kind(&of_one_kind[0]), &cause);
                continue;
            }
            answer?;
            let mut orphans = of_one_kind.to_vec();
            orphans.retain(|channel| !self.wake_ups.subscribed(channel));
            if !orphans.is_empty() {
                self.answered(generation, socket.unsubscribe(names(&orphans))).await?;
            }
        }
        let idle = self.wake_ups.take_idle(LINGER);
        if !idle.is_empty() {
            self.answered(generation, socket.unsubscribe(names(&idle))).await?;
        }
        if self.asked.elapsed() >= PING {
            let ping = cmd("PING");
            self.answered(generation, ping.query_async::<()>(&mut socket)).await?;
        }
        Ok(())
    }

    fn may_not(&mut self, kind: &str, cause: &str) {
        if self.denied.insert(kind.to_owned(), Instant::now() + jittered(RETRY_DENIED)).is_none() {
            let channels = format!("{kind}:*");
            tracing::warn!(
                channels,
                cause,
                "may not hear of releases, so waiting is by polling only"
            );
        }
    }

    /// The answer to a request; without one, the connection is given up.
    async fn answered(
        &mut self,
        generation: u64,
        request: impl Future<Output = redis::RedisResult<()>>,
    ) -> Result<(), StoreError> {
        match timeout(self.response_timeout, request).await {
            Ok(answer) => {
                answer.map_err(|error| self.link.judge(generation, &error))?;
                self.asked = Instant::now();
                Ok(())
            }
            Err(_) => {
                self.link.discard(generation);
                Err(StoreError::Unknown("no answer".into()))
            }
        }
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
