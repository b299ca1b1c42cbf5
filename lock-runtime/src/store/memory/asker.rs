//! Asks the clients of a memory store, which are all in this process.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::maybe_ready::MaybeReady;
use crate::questions::question::Question;
use crate::questions::{ANSWERS, Answerer};
use crate::store::contract::{Asker, StoreAnswer};
use crate::sync::{Mutex, Notify, lock};

/// Asks the clients of a namespace, by calling them.
pub(super) struct MemoryAsker {
    answerers: Answerers,
    namespace: String,
    pages: Mutex<VecDeque<String>>,
    /// Notified when there is a page.
    changed: Notify,
}

/// The clients of a store.
pub(super) type Answerers = Arc<Mutex<Vec<Weak<dyn Answerer>>>>;

impl MemoryAsker {
    pub(super) fn new(answerers: Answerers, namespace: &str) -> Self {
        let namespace = namespace.to_owned();
        Self { answerers, namespace, pages: Mutex::default(), changed: Notify::new() }
    }

    fn ask_all(&self, question: &Question) -> usize {
        // As it would arrive at another process.
        let Some(question) = Question::of_text(question.to_text().as_bytes()) else { return 0 };
        let answerers = lock(&self.answerers).clone();
        let mut count = 0;
        for (number, answerer) in answerers.into_iter().enumerate() {
            let answerer = answerer.upgrade();
            let Some(answerer) = answerer.filter(|it| it.namespace() == self.namespace) else {
                continue;
            };
            count += 1;
            // The values of these locks name no client.
            let pages = answerer.answer(&question, &number.to_string(), None);
            lock(&self.pages).extend(pages);
        }
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

    fn ask<'a>(&'a self, question: &'a Question) -> StoreAnswer<'a, Option<usize>> {
        MaybeReady::ready(Ok(Some(self.ask_all(question))))
    }

    fn interruptions(&self) -> u64 {
        0
    }

    fn next(&self) -> MaybeReady<'_, Vec<u8>> {
        MaybeReady::pending(self.next_page())
    }
}
