//! Reports of the server that keys have changed (`CLIENT TRACKING`).
//!
//! A connection on which tracking is on receives a message when another connection changes a key
//! that it has read, or when the key expires. The key then has to be read again. The client asks for
//! it with each renewal, whose script reads the key after it has extended the lease, with the checks of
//! first claims, and with the first look for processes that wait for a lock that lingers. Other
//! commands are not tracked, because they also read queues, which change with each claim.
//!
//! Tracking costs the server memory for each key that is read until it changes, up to
//! `tracking-table-max-keys`; then it forgets keys, and usually reports them as changed. Before Redis
//! 7.0.5, `NOLOOP` has no effect on scripts. Some servers and proxies refuse tracking, and old servers
//! do not have it. Everything works without it: changes are then noticed later.
//! <https://redis.io/docs/latest/develop/reference/client-side-caching/>

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, PushInfo, PushKind, Value, cmd};
use tokio::time::timeout;

use crate::scripts::queue::key_of_queue;
use crate::transport::pipelined::{OnMessage, PipelinedSocket};
use lock_core::safeguard::Safeguard;
use lock_core::store::hold_reports::{ChangedKeys, HoldReport, HoldReports};
use lock_core::sync::atomic::{AtomicBool, Ordering};

/// How long a server may take to turn tracking on. Without an answer, the connection is used without.
const TRACKING_TIMEOUT: Duration = Duration::from_secs(1);

/// The tracking of the connections of one lane. A server tracks the keys of the commands that follow
/// `CLIENT CACHING YES`.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    /// Whether a server has turned tracking on for the latest connection.
    is_on: Arc<AtomicBool>,
}

/// What a connection does with messages that the server sends without a request.
#[derive(Clone)]
pub(crate) struct Listening {
    pub(crate) on_message: OnMessage,
    /// `None` if keys are not tracked.
    pub(crate) tracking: Option<Arc<Tracking>>,
}

impl Tracking {
    /// Whether a server has turned tracking on for the latest connection.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// A copy of the state of [`is_on`](Self::is_on).
    pub(crate) fn state(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_on)
    }

    /// Turns tracking on for a new connection, if the server allows it. Own changes are not reported.
    pub(crate) async fn begin(&self, commands: &PipelinedSocket) {
        if !Safeguard::Tracking.is_on() {
            return;
        }
        let mut command = cmd("CLIENT");
        command.arg("TRACKING").arg("ON").arg("OPTIN").arg("NOLOOP");
        let reply = commands.query::<Value>(&command).await;
        // A connection that is lost says nothing about the other nodes of a cluster.
        if !reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::Io) {
            self.is_on.store(matches!(reply, Ok(Value::Okay)), Ordering::Relaxed);
        }
    }
}

impl Listening {
    /// Begins with a new connection.
    pub(crate) async fn begin(&self, commands: &PipelinedSocket) {
        if let Some(tracking) = &self.tracking {
            let _ = timeout(TRACKING_TIMEOUT, tracking.begin(commands)).await;
        }
    }

    /// The connection is lost, so the server reports nothing more, and any key may change. The
    /// requests that follow make a new connection.
    pub(crate) fn ended(&self) {
        (self.on_message)(&PushInfo { kind: PushKind::Invalidate, data: vec![Value::Nil] });
    }
}

/// Reports changes of the keys of held locks, and of their queues.
pub(crate) fn on_change_of_held(reports: HoldReports) -> OnMessage {
    Arc::new(move |push: &PushInfo| match changed_keys(push) {
        Some(ChangedKeys::These(keys)) => {
            let wanted: Vec<_> = keys.iter().filter_map(|key| key_of_queue(key)).collect();
            if !wanted.is_empty() {
                reports.send(HoldReport::Wanted(wanted));
            }
            reports.send(HoldReport::Changed(ChangedKeys::These(keys)));
        }
        Some(any) => reports.send(HoldReport::Changed(any)),
        None => {}
    })
}

/// The keys that have changed, according to a message; `None` if the message is another one.
pub(crate) fn changed_keys(push: &PushInfo) -> Option<ChangedKeys> {
    if push.kind != PushKind::Invalidate {
        return None;
    }
    let text = |key: &Value| match key {
        Value::BulkString(key) => std::str::from_utf8(key).ok().map(Arc::from),
        _ => None,
    };
    match push.data.first() {
        // Keys that are no text are not those of locks.
        Some(Value::Array(keys)) => {
            Some(ChangedKeys::These(keys.iter().filter_map(text).collect()))
        }
        _ => Some(ChangedKeys::Any),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(kind: PushKind, data: Vec<Value>) -> Option<ChangedKeys> {
        changed_keys(&PushInfo { kind, data })
    }

    #[test]
    fn a_message_names_the_keys_that_have_changed_or_means_all() {
        let key = |key: &[u8]| Value::BulkString(key.into());
        let keys = Value::Array(vec![key(b"a"), key(&[255]), key(b"b")]);
        let expected = ChangedKeys::These(vec![Arc::from("a"), Arc::from("b")]);
        assert_eq!(changed(PushKind::Invalidate, vec![keys.clone()]), Some(expected));
        assert_eq!(changed(PushKind::Invalidate, vec![Value::Nil]), Some(ChangedKeys::Any));
        assert_eq!(changed(PushKind::Message, vec![keys]), None);
    }
}
