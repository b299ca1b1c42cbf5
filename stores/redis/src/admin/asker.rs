//! Asks the clients of a namespace.

use std::sync::Arc;

use super::questions::{channel, namespaces, publish};
use crate::shared::Shared;
use lock_core::maybe_ready::MaybeReady;
use lock_core::questions::ANSWERS;
use lock_core::questions::answer::PAGE;
use lock_core::questions::question::Question;
use lock_core::store::asker::{ANSWER_ROOM, SentQuestion};
use lock_core::store::contract::{Asker, Lane, StoreAnswer, StoreError};
use lock_core::store::owner::digits;
use lock_core::store::subscriptions::{Inbox, InboxLimits};
use lock_core::sync::time::timeout;

/// The answers that wait to be read. A page has one record at least, which may be longer than a usual page.
const ANSWER_LIMITS: InboxLimits = InboxLimits { longest: 4 * PAGE, room: ANSWER_ROOM };

/// The digits of the random part of a channel for answers, each of 6 bits.
const NONCE_DIGITS: usize = 21;

/// Asks the clients of a namespace. Its subscription ends when it is dropped.
pub(crate) struct RedisAsker {
    shared: Arc<Shared>,
    /// The channel of the questions, and that of the answers.
    questions: String,
    answers: String,
    inbox: Inbox,
}

impl RedisAsker {
    pub(crate) fn new(shared: &Arc<Shared>, namespace: &str) -> Result<Self, StoreError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| {
            let cause = format!("the operating system returned no random numbers: {error}");
            StoreError::Refused(cause)
        })?;
        // Nobody else should know the channel.
        let nonce: [u8; NONCE_DIGITS] = digits(u128::from_be_bytes(random));
        let nonce = String::from_utf8_lossy(&nonce);
        // In the slot of the questions, where the clients are connected in any case.
        let questions = channel(namespace);
        let answers = format!("{ANSWERS}{{{questions}}}:{}.{nonce}", shared.id.short().as_str());
        let inbox = shared.subscriptions.inbox(&answers, ANSWER_LIMITS);
        Ok(Self { shared: Arc::clone(shared), questions, answers, inbox })
    }

    async fn send(&self, question: &Question) -> Result<SentQuestion, StoreError> {
        let within = self.shared.response_timeout;
        let interruptions = match timeout(within, self.inbox.live()).await {
            Ok(Ok(interruptions)) => interruptions,
            Ok(Err(cause)) => return Err(StoreError::Denied(cause)),
            Err(_) => {
                let cause = "the channel for answers could not be subscribed in time";
                return Err(StoreError::Refused(cause.to_owned()));
            }
        };
        // Late pages of earlier questions, and what others have sent.
        self.inbox.clear();
        let route = self.shared.route(Lane::Caller)?;
        let sent = publish(&route, &self.questions, &question.to_text(), within).await;
        sent.map(|receivers| SentQuestion { receivers, interruptions })
    }
}

impl Asker for RedisAsker {
    fn channel(&self) -> &str {
        &self.answers
    }

    fn ask<'a>(&'a self, question: &'a Question) -> StoreAnswer<'a, SentQuestion> {
        MaybeReady::pending(self.send(question))
    }

    fn namespaces(&self) -> StoreAnswer<'_, Option<Vec<String>>> {
        MaybeReady::pending(async {
            let route = self.shared.route(Lane::Caller)?;
            namespaces(&route, self.shared.response_timeout).await
        })
    }

    fn interruptions(&self) -> u64 {
        self.inbox.interruptions()
    }

    fn next(&self) -> MaybeReady<'_, Vec<u8>> {
        MaybeReady::pending(self.inbox.next())
    }
}
