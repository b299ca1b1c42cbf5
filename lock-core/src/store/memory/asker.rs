//! Asks the clients of a memory store, which are all in this process.

use std::collections::VecDeque;
use std::sync::Arc;

use super::clients::KnownClients;
use crate::maybe_ready::MaybeReady;
use crate::questions::ANSWERS;
use crate::questions::question::Question;
use crate::store::asker::{ANSWER_ROOM, SentQuestion};
use crate::store::contract::{Asker, StoreAnswer};
use crate::sync::{Mutex, Notify, lock};

/// Asks the clients of a namespace, by calling them.
pub(super) struct MemoryAsker {
    clients: Arc<Mutex<KnownClients>>,
    namespace: String,
    /// Those of the last question.
    pages: Mutex<VecDeque<String>>,
    /// Notified when there is a page.
    changed: Notify,
}

impl MemoryAsker {
    pub(super) fn new(clients: Arc<Mutex<KnownClients>>, namespace: &str) -> Self {
        let namespace = namespace.to_owned();
        Self { clients, namespace, pages: Mutex::default(), changed: Notify::new() }
    }

    fn ask_all(&self, question: &Question) -> usize {
        // As it would arrive at another process.
        let Some(question) = Question::of_text(question.to_text().as_bytes()) else { return 0 };
        let clients = lock(&self.clients).clients.clone();
        let (mut count, mut pages, mut length) = (0, VecDeque::new(), 0);
        for (id, client) in clients {
            let client = client.upgrade().filter(|client| client.namespace() == self.namespace);
            let Some(client) = client else { continue };
            count += 1;
            for page in client.answer(&question, &id.to_string()) {
                length += page.len();
                if length <= ANSWER_ROOM {
                    pages.push_back(page);
                }
            }
        }
        *lock(&self.pages) = pages;
        self.changed.notify_one();
        count
    }

    async fn next_page(&self) -> Vec<u8> {
        loop {
            let changed = self.changed.notified();
            let page = lock(&self.pages).pop_front();
            match page {
                Some(page) => return page.into_bytes(),
                None => changed.await,
            }
        }
    }
}

impl Asker for MemoryAsker {
    fn channel(&self) -> &str {
        ANSWERS
    }

    fn ask<'a>(&'a self, question: &'a Question) -> StoreAnswer<'a, SentQuestion> {
        let receivers = Some(self.ask_all(question));
        MaybeReady::ready(Ok(SentQuestion { receivers, interruptions: 0 }))
    }

    fn namespaces(&self) -> StoreAnswer<'_, Option<Vec<String>>> {
        let clients = lock(&self.clients).clients.clone();
        let clients = clients.into_iter().filter_map(|(_, client)| client.upgrade());
        let found = clients.map(|client| client.namespace().to_owned()).collect();
        MaybeReady::ready(Ok(Some(found)))
    }

    fn interruptions(&self) -> u64 {
        0
    }

    fn next(&self) -> MaybeReady<'_, Vec<u8>> {
        MaybeReady::pending(self.next_page())
    }
}
