//! The layouts of the locks in the memory store, which exclude each other on a key.

#[cfg(feature = "testing")]
use super::counted::CountedLocks;
use super::counted::Waits;
use super::{Keys, MemoryStore, Message};
use crate::clock::BootInstant;
use crate::store::contract::{Layout, Release, Released, StoreError};
use crate::store::key_holder::KeyHolder;

impl Keys {
    /// The error of a claim in the layout `expected` for a key that is held in another one.
    pub(super) fn other_layout(
        &mut self,
        key: &str,
        expected: Layout,
        now: BootInstant,
    ) -> Option<StoreError> {
        let found = if self.read_write.holder(key, now).is_some() {
            Layout::ReadWrite
        } else if self.semaphores.holder(key, now).is_some() {
            Layout::Semaphore
        } else if self.live(key, now).is_some() {
            Layout::TOKEN
        } else {
            return None;
        };
        // The formats of exclusive locks do not differ here.
        let is_same = found == Layout::TOKEN && matches!(expected, Layout::Wire(_) | Layout::Vote);
        (!is_same && found != expected).then(|| StoreError::WrongFormat {
            key: key.to_owned(),
            expected: expected.value(),
            found: found.value().to_owned(),
        })
    }
}

impl Keys {
    /// The holder of a key, or one of its holders.
    pub(super) fn holder(&mut self, key: &str, now: BootInstant) -> Option<KeyHolder> {
        let exclusive = self.live(key, now).map(|entry| KeyHolder::of(entry.owner));
        exclusive
            .or_else(|| self.read_write.holder(key, now))
            .or_else(|| self.semaphores.holder(key, now))
    }
}

#[cfg(feature = "testing")]
impl Keys {
    /// Deletes a plain lock, or all locks.
    pub(super) fn delete(&mut self, key: Option<&str>) {
        match key {
            Some(key) => drop(self.entries.remove(key)),
            None => {
                self.entries.clear();
                self.read_write = CountedLocks::default();
                self.semaphores = CountedLocks::default();
            }
        }
    }
}

impl MemoryStore {
    /// Wakes all who wait for a key in the layout without queues.
    pub(super) fn wake_voters(&self, release: &Release<'_>, released: Released) {
        if self.layout == Layout::Vote && matches!(released, Released::Freed { .. }) {
            self.shared.subscriptions.wake(release.resource.key, true);
        }
    }

    /// Changes the locks, and sends the messages when the keys are unlocked.
    pub(super) fn change<T>(
        &self,
        key: &str,
        change: impl FnOnce(&mut Keys, BootInstant, Waits<'_>) -> (T, Vec<Message>),
    ) -> T {
        let waits = |owner| self.shared.subscriptions.listener(key, owner);
        let (answer, messages) = {
            let mut keys = self.keys();
            // See `renew`: the clock is read while the keys are locked.
            change(&mut keys, BootInstant::now(), &waits)
        };
        for (listener, message) in messages {
            listener.receive(message);
        }
        answer
    }
}
