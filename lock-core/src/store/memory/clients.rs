//! The clients of a memory store.

use std::sync::Weak;

use crate::questions::Answerer;

/// The clients of a store that can be asked.
#[derive(Default)]
pub(super) struct KnownClients {
    /// Each with its id.
    pub(super) clients: Vec<(u64, Weak<dyn Answerer>)>,
    /// How many were added so far.
    added: u64,
}

impl KnownClients {
    pub(super) fn add(&mut self, client: Weak<dyn Answerer>) {
        self.clients.retain(|(_, known)| known.strong_count() > 0);
        self.added += 1;
        self.clients.push((self.added, client));
    }
}
