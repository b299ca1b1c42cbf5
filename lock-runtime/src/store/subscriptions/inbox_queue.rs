//! The messages of a channel that are read one by one.
//!
//! The messages that wait to be read have a limited length, because anybody may send any number.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::sync::{Mutex, Notify, lock};

#[derive(Debug)]
pub(super) struct InboxQueue {
    /// The room for messages that wait to be read, in bytes.
    limit: usize,
    contents: Mutex<InboxContents>,
    /// Notified when there is a message.
    arrived: Notify,
    /// Notified when the state has changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct InboxContents {
    messages: VecDeque<Vec<u8>>,
    /// The room that they take.
    taken: usize,
    state: InboxState,
}

/// Whether messages arrive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum InboxState {
    /// The channel is not subscribed yet, or the connection was lost.
    #[default]
    Connecting,
    Live,
    /// The user lacks the permission to subscribe. The store tries again later.
    Denied(String),
}

/// The room that a message takes, in bytes.
pub(super) fn room_of(message: &[u8]) -> usize {
    size_of::<Vec<u8>>() + message.len()
}

impl InboxQueue {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let (contents, arrived, changed) = (Mutex::default(), Notify::new(), Notify::new());
        Arc::new(Self { limit, contents, arrived, changed })
    }

    pub(super) fn set_state(&self, state: InboxState) {
        lock(&self.contents).state = state;
        self.changed.notify_one();
    }

    /// Takes the first message.
    fn take(&self) -> Option<Vec<u8>> {
        let mut contents = lock(&self.contents);
        let message = contents.messages.pop_front()?;
        contents.taken -= room_of(&message);
        Some(message)
    }

    /// Adds a message, unless there is no room.
    pub(super) fn receive(&self, message: &[u8]) {
        let mut contents = lock(&self.contents);
        if contents.taken + room_of(message) > self.limit {
            return;
        }
        contents.taken += room_of(message);
        contents.messages.push_back(message.to_vec());
        drop(contents);
        self.arrived.notify_one();
    }

    /// The next message. Only one call may wait at a time.
    ///
    /// Cancel safe: no message is lost.
    pub(super) async fn next(&self) -> Vec<u8> {
        loop {
            let arrived = self.arrived.notified();
            if let Some(message) = self.take() {
                return message;
            }
            arrived.await;
        }
    }

    /// Waits until messages arrive. Fails with the server's words if the user lacks the permission. Only one call
    /// may wait at a time.
    ///
    /// Cancel safe: no message is lost.
    pub(super) async fn live(&self) -> Result<(), String> {
        loop {
            let changed = self.changed.notified();
            let state = lock(&self.contents).state.clone();
            match state {
                InboxState::Connecting => changed.await,
                InboxState::Live => return Ok(()),
                InboxState::Denied(cause) => return Err(cause),
            }
        }
    }
}
