//! One question after the other, and the wait for its answers.

use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout_at};

use super::answers::ClientAnswers;
use super::collected::CollectedPages;
use crate::clock::BootInstant;
use crate::error::LockError;
use crate::questions::answer::AnswerPage;
use crate::questions::limit::AnswerLimit;
use crate::questions::question::{Question, QuestionKind};
use crate::store::contract::Asker;

/// The channel for answers, and the questions so far.
pub(super) struct AskSession {
    asker: Box<dyn Asker>,
    /// The number of the last question.
    number: u64,
    /// The number of questions that clients answer.
    limit: AnswerLimit,
}

impl AskSession {
    pub(super) fn new(asker: Box<dyn Asker>) -> Self {
        Self { asker, number: 0, limit: AnswerLimit::new() }
    }

    /// Asks all clients. Returns the pages of each answer that has arrived within this time.
    ///
    /// Cancel safe: pages that come later do not count for the next question.
    pub(super) async fn ask(
        &mut self,
        kind: QuestionKind,
        within: Duration,
    ) -> Result<ClientAnswers<Vec<AnswerPage>>, LockError> {
        // A client would not answer more questions.
        sleep(self.limit.pause(BootInstant::now())).await;
        self.limit.add(BootInstant::now());
        self.number += 1;
        let (number, channel) = (self.number, self.asker.channel().to_owned());
        let question = Question { kind, channel, number };
        let (started, before) = (BootInstant::now(), self.asker.interruptions());
        let received = self.asker.ask(&question).await;
        let waited = || BootInstant::now().since(started);
        let received = received.map_err(|error| error.without_key(waited()))?;
        let end = Instant::now() + within;
        let mut pages = CollectedPages::of(number);
        let is_complete = |pages: &CollectedPages| received.is_some_and(|it| pages.answers() >= it);
        while !is_complete(&pages) && pages.has_room() && Instant::now() < end {
            // The pages that come later have the number of this question, and are not read.
            let Ok(page) = timeout_at(end, self.asker.next()).await else { break };
            pages.add(&page);
            // There may be many pages, and other tasks of this runtime.
            yield_now().await;
        }
        if !is_complete(&pages) && self.asker.interruptions() != before {
            let cause = "the connection was lost while answers were awaited".to_owned();
            return Err(LockError::Unavailable { key: None, waited: waited(), cause });
        }
        Ok(pages.into_answers(received))
    }
}
