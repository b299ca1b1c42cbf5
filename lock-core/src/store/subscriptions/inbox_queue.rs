//! The messages of a channel that are read one by one.
//!
//! The messages that wait to be read have a limited length, because anybody may send any number.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::sync::{Mutex, Notify, lock};
use crate::user_code::contained;

/// The messages of one channel. The call that waits for them may be one of the program, so its waker is called without
/// any lock.
#[derive(Debug)]
pub(super) struct InboxQueue {
    limits: InboxLimits,
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
    /// How often the connection was lost.
    interruptions: u64,
}

/// What an inbox receives.
#[derive(Debug, Clone, Copy)]
pub struct InboxLimits {
    /// The longest message, in bytes. Longer ones are dropped.
    pub longest: usize,
    /// The room for messages that wait to be read, in bytes. Others are dropped.
    pub room: usize,
}

/// Whether messages arrive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum InboxState {
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
    pub(super) fn new(limits: InboxLimits) -> Arc<Self> {
        let (contents, arrived, changed) = (Mutex::default(), Notify::new(), Notify::new());
        Arc::new(Self { limits, contents, arrived, changed })
    }

    /// Changes the state. The caller then calls [`announce`](Self::announce), without the channels locked.
    pub(super) fn set_state(&self, state: InboxState) {
        let mut contents = lock(&self.contents);
        contents.interruptions += u64::from(state == InboxState::Connecting);
        contents.state = state;
    }

    /// Wakes the call that waits for another state.
    pub(super) fn announce(&self) {
        contained(|| self.changed.notify_one());
    }

    /// How often the connection was lost so far.
    pub(super) fn interruptions(&self) -> u64 {
        lock(&self.contents).interruptions
    }

    /// Takes the first message.
    fn take(&self) -> Option<Vec<u8>> {
        let mut contents = lock(&self.contents);
        let message = contents.messages.pop_front()?;
        contents.taken -= room_of(&message);
        Some(message)
    }

    /// Adds a message, unless it is too long, or there is no room.
    pub(super) fn receive(&self, message: &[u8]) {
        let mut contents = lock(&self.contents);
        let taken = contents.taken + room_of(message);
        if message.len() > self.limits.longest || taken > self.limits.room {
            return;
        }
        contents.taken = taken;
        contents.messages.push_back(message.to_vec());
        drop(contents);
        contained(|| self.arrived.notify_one());
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

    /// Drops the messages that wait to be read.
    pub(super) fn clear(&self) {
        let mut contents = lock(&self.contents);
        contents.messages.clear();
        contents.taken = 0;
    }

    /// Waits until messages arrive. Returns how often the connection was lost before. Fails with the server's words if
    /// the user lacks the permission. Only one call may wait at a time.
    pub(super) async fn live(&self) -> Result<u64, String> {
        loop {
            let changed = self.changed.notified();
            let (state, interruptions) = {
                let contents = lock(&self.contents);
                (contents.state.clone(), contents.interruptions)
            };
            match state {
                InboxState::Connecting => changed.await,
                InboxState::Live => return Ok(interruptions),
                InboxState::Denied(cause) => return Err(cause),
            }
        }
    }
}
