//! The ends of subscriptions that a node of a cluster has reported: those that were requested, and
//! those that were not, because the slot of the channel has left the node.

use std::collections::HashSet;
use std::sync::Arc;

use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;

use crate::transport::pipelined::OnMessage;
use lock_core::sync::{Mutex, lock};

/// The ends of subscriptions of one connection.
#[derive(Default)]
pub(crate) struct SubscriptionEnds {
    state: Mutex<EndsState>,
    /// Notified of an end that was not requested.
    unasked: Notify,
}

#[derive(Default)]
struct EndsState {
    /// The channels whose end was requested and has not been reported.
    requested: HashSet<Arc<str>>,
    /// The channels whose end was not requested.
    unasked: Vec<String>,
}

impl SubscriptionEnds {
    /// Passes messages on, and notices the ends of subscriptions.
    pub(crate) fn on_message(self: &Arc<Self>, inner: &OnMessage) -> OnMessage {
        let (inner, ends) = (Arc::clone(inner), Arc::clone(self));
        Arc::new(move |push: &PushInfo| {
            if !matches!(push.kind, PushKind::SUnsubscribe | PushKind::Unsubscribe) {
                return inner(push);
            }
            if let Some(Value::BulkString(name)) = push.data.first() {
                ends.ended(&String::from_utf8_lossy(name));
            }
        })
    }

    /// The end of this subscription is about to be requested.
    pub(crate) fn request(&self, name: &Arc<str>) {
        lock(&self.state).requested.insert(Arc::clone(name));
    }

    fn ended(&self, name: &str) {
        let mut state = lock(&self.state);
        if !state.requested.remove(name) {
            state.unasked.push(name.to_owned());
            drop(state);
            self.unasked.notify_one();
        }
    }

    /// Resolves when a subscription has ended that was not requested to end.
    pub(crate) async fn noticed(&self) {
        self.unasked.notified().await;
    }

    /// Whether such an end was reported and not taken.
    pub(crate) fn has_unasked(&self) -> bool {
        !lock(&self.state).unasked.is_empty()
    }

    /// Takes the channels with such an end.
    pub(crate) fn take_unasked(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.state).unasked)
    }

    /// Forgets everything, because the connection was lost.
    pub(crate) fn forget(&self) {
        *lock(&self.state) = EndsState::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_was_not_requested_is_noticed() {
        let ends = Arc::<SubscriptionEnds>::default();
        let on_message = ends.on_message(&(Arc::new(|_: &PushInfo| {}) as OnMessage));
        let end = |name: &str| {
            let data = vec![Value::BulkString(name.into()), Value::Int(0)];
            on_message(&PushInfo { kind: PushKind::SUnsubscribe, data });
        };
        ends.request(&Arc::from("a"));
        end("a");
        assert!(!ends.has_unasked(), "it was requested");
        end("a");
        end("b");
        assert_eq!(ends.take_unasked(), ["a", "b"]);
        assert!(!ends.has_unasked());
        ends.request(&Arc::from("c"));
        ends.forget();
        end("c");
        assert!(ends.has_unasked(), "the request was sent over an earlier connection");
    }
}
