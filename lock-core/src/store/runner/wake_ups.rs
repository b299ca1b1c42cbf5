//! The wake-ups of a store.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::store::hold_reports::{ChangedKeys, HoldReport, HoldReports};
use crate::store::owner::ClientTag;
use crate::store::queueing::QueueTicket;
use crate::store::subscriptions::{QueueMessage, Subscriptions};

/// Tells a client which keys may be free. Cheap to clone. Its methods never block, and may be called on any thread.
///
/// A wake-up that is lost costs time, but nothing else, and so does one that was not necessary. After the end of the client,
/// nothing happens.
#[derive(Clone)]
pub struct WakeUps {
    subscriptions: Weak<Subscriptions>,
    /// What the holders of locks are told. `None` if there are none.
    reports: Option<HoldReports>,
    /// The client of the calls.
    tag: ClientTag,
}

impl WakeUps {
    pub(super) fn new(
        subscriptions: &Arc<Subscriptions>,
        reports: Option<HoldReports>,
        tag: ClientTag,
    ) -> Self {
        Self { subscriptions: Arc::downgrade(subscriptions), reports, tag }
    }

    /// The key may be free: its owner has released it, or its lease has ended. The calls of this client that wait for it make
    /// an attempt; the others are not affected.
    pub fn released(&self, key: &str) {
        if let Some(subscriptions) = self.subscriptions.upgrade() {
            subscriptions.wake(key, true);
        }
    }

    /// The store has given the key to the claim with this token, which has waited in its queue with this ticket, for a lease of
    /// `term`. Nothing happens if the claim is that of another client.
    pub fn granted(&self, key: &str, owner: &str, ticket: QueueTicket, term: Duration) {
        let of_client = ClientTag::of_owner(owner).filter(|(tag, _)| *tag == self.tag);
        if let (Some((_, owner)), Some(subscriptions)) = (of_client, self.subscriptions.upgrade()) {
            subscriptions.received(key, owner, QueueMessage::Transfer { ticket, term });
        }
    }

    /// An owner of this client may have lost the key: somebody else has deleted or changed it. If a lock with this key is
    /// held, the client renews it at once, and learns from the answer whether it is lost. Only for
    /// stores that [say so](super::AsyncClient::reports_changes).
    pub fn lost(&self, key: &str) {
        if let Some(reports) = &self.reports {
            reports.send(HoldReport::Changed(ChangedKeys::These(vec![Arc::from(key)])));
        }
    }

    /// Wake-ups may have been lost, and no more come until the keys are [watched](super::AsyncClient::watch) again: for example,
    /// because a connection was lost. All waiting calls make an attempt now, and another one as soon as their keys are
    /// watched.
    pub fn interrupted(&self) {
        if let Some(subscriptions) = self.subscriptions.upgrade() {
            subscriptions.disconnected();
        }
    }
}

impl fmt::Debug for WakeUps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WakeUps").finish()
    }
}
