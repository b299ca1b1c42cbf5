//! Asks the clients of a namespace.

use std::sync::Arc;

use super::questions::{channel, publish};
use super::shared::Shared;
use crate::maybe_ready::MaybeReady;
use crate::questions::ANSWERS;
use crate::questions::answer::PAGE;
use crate::questions::question::Question;
use crate::store::contract::{Asker, Lane, StoreAnswer, StoreError};
use crate::store::owner::OwnerId;
use crate::store::subscriptions::{Inbox, InboxLimits};
use crate::sync::time::timeout;

/// The answers that wait to be read. A page has one record at least, which may be longer than a usual page.
const ANSWER_LIMITS: InboxLimits = InboxLimits { longest: 4 * PAGE, room: 64 * 1024 * 1024 };

/// Asks the clients of a namespace. Its subscription ends when it is dropped.
pub(super) struct RedisAsker {
    shared: Arc<Shared>,
    /// The channel of the questions, and that of the answers.
    questions: String,
    answers: String,
    inbox: Inbox,
}

impl RedisAsker {
    pub(super) fn new(shared: &Arc<Shared>, namespace: &str) -> Result<Self, StoreError> {
        // Nobody else should know the channel.
        let random = OwnerId::new().map_err(|error| {
            let cause = format!("the operating system returned no random numbers: {error}");
            StoreError::Refused(cause)
        })?;
        let name = shared.id.owner_name(random);
        // In the slot of the questions, where the clients are connected in any case.
        let questions = channel(namespace);
        let answers = format!("{ANSWERS}{{{questions}}}:{}", String::from_utf8_lossy(&name));
        let inbox = shared.subscriptions.inbox(&answers, ANSWER_LIMITS);
        Ok(Self { shared: Arc::clone(shared), questions, answers, inbox })
    }

    async fn send(&self, question: &Question) -> Result<Option<usize>, StoreError> {
        let within = self.shared.response_timeout;
        match timeout(within, self.inbox.live()).await {
            Ok(Ok(())) => {}
            Ok(Err(cause)) => return Err(StoreError::Denied(cause)),
            Err(_) => {
                let cause = "the channel for answers could not be subscribed in time";
                return Err(StoreError::Refused(cause.to_owned()));
            }
        }
        let route = self.shared.route(Lane::Caller)?;
        publish(&route, &self.questions, &question.to_text(), within).await
    }
}

impl Asker for RedisAsker {
    fn channel(&self) -> &str {
        &self.answers
    }

    fn ask<'a>(&'a self, question: &'a Question) -> StoreAnswer<'a, Option<usize>> {
        MaybeReady::pending(self.send(question))
    }

    fn interruptions(&self) -> u64 {
        self.inbox.interruptions()
    }

    fn next(&self) -> MaybeReady<'_, Vec<u8>> {
        MaybeReady::pending(self.inbox.next())
    }
}
