//! Asks the clients of a namespace.

use std::sync::Arc;

use super::questions::{channel, publish};
use super::shared::Shared;
use crate::maybe_ready::MaybeReady;
use crate::questions::ANSWERS;
use crate::questions::question::Question;
use crate::store::contract::{Asker, Lane, StoreAnswer, StoreError};
use crate::store::owner::OwnerId;
use crate::store::subscriptions::Inbox;
use crate::sync::time::timeout;

/// The room for answers that were not read yet, in bytes.
const ROOM: usize = 64 * 1024 * 1024;

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
        let answers = format!("{ANSWERS}{}", String::from_utf8_lossy(&name));
        let inbox = shared.subscriptions.inbox(&answers, ROOM);
        Ok(Self { shared: Arc::clone(shared), questions: channel(namespace), answers, inbox })
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

    fn next(&self) -> MaybeReady<'_, Vec<u8>> {
        MaybeReady::pending(self.inbox.next())
    }
}
