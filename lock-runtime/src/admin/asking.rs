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
use crate::store::asker::SentQuestion;
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

    /// The namespaces of all clients of the store, sorted; `None` if the store does not tell them.
    pub(super) async fn namespaces(&self) -> Result<Option<Vec<String>>, LockError> {
        let started = BootInstant::now();
        let found = self.asker.namespaces().await;
        let waited = BootInstant::now().since(started);
        let mut found = found.map_err(|error| error.without_key(waited))?;
        if let Some(namespaces) = &mut found {
            namespaces.sort_unstable();
            namespaces.dedup();
        }
        Ok(found)
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
        sleep(self.limit.pause_of_asker(BootInstant::now())).await;
        self.limit.add(BootInstant::now());
        self.number += 1;
        let (number, channel) = (self.number, self.asker.channel().to_owned());
        let question = Question { kind, channel, number };
        let started = BootInstant::now();
        let sent = self.asker.ask(&question).await;
        let waited = || BootInstant::now().since(started);
        let SentQuestion { receivers, interruptions } =
            sent.map_err(|error| error.without_key(waited()))?;
        let end = Instant::now() + within;
        let mut pages = CollectedPages::of(number);
        let is_complete =
            |pages: &CollectedPages| receivers.is_some_and(|it| pages.answers() >= it);
        while !is_complete(&pages) && pages.has_room() && Instant::now() < end {
            // The pages that come later have the number of this question, and are not read.
            let Ok(page) = timeout_at(end, self.asker.next()).await else { break };
            pages.add(&page);
            // There may be many pages, and other tasks of this runtime.
            yield_now().await;
        }
        if is_complete(&pages) || self.asker.interruptions() == interruptions {
            return Ok(pages.into_answers(receivers));
        }
        // It is not known which clients have answered in vain.
        let some = pages.into_answers(None);
        if some.answers.is_empty() {
            let cause = "the connection was lost while answers were awaited";
            return Err(LockError::unavailable(None, waited(), cause));
        }
        Ok(some)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::client_info::ClientInfo;
    use crate::maybe_ready::MaybeReady;
    use crate::questions::ANSWERS;
    use crate::questions::answer::AnswerHead;
    use crate::store::contract::StoreAnswer;
    use crate::sync::{Mutex, lock};

    /// Has two clients, and loses the connection.
    struct InterruptedAsker {
        interruptions: AtomicU64,
        /// Whether the connection is lost after the question was sent, not before.
        is_lost_afterwards: bool,
        pages: Mutex<Vec<String>>,
    }

    impl InterruptedAsker {
        /// Only the first of these clients answer.
        fn session(is_lost_afterwards: bool, answers: usize) -> AskSession {
            let client = ClientInfo::default();
            let of_client = |from| {
                let head = AnswerHead {
                    number: 1,
                    from,
                    client: &client,
                    is_revocable: false,
                    is_known: true,
                };
                head.pages([])
            };
            let pages = ["a", "b"].into_iter().take(answers).flat_map(of_client).collect();
            let (interruptions, pages) = (AtomicU64::new(0), Mutex::new(pages));
            AskSession::new(Box::new(Self { interruptions, is_lost_afterwards, pages }))
        }

        fn interrupt(&self) {
            self.interruptions.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Asker for InterruptedAsker {
        fn channel(&self) -> &str {
            ANSWERS
        }

        fn ask<'a>(&'a self, _: &'a Question) -> StoreAnswer<'a, SentQuestion> {
            if !self.is_lost_afterwards {
                self.interrupt();
            }
            let sent = SentQuestion { receivers: Some(2), interruptions: self.interruptions() };
            if self.is_lost_afterwards {
                self.interrupt();
            }
            MaybeReady::ready(Ok(sent))
        }

        fn interruptions(&self) -> u64 {
            self.interruptions.load(Ordering::Relaxed)
        }

        fn next(&self) -> MaybeReady<'_, Vec<u8>> {
            match lock(&self.pages).pop() {
                Some(page) => MaybeReady::ready(page.into_bytes()),
                None => MaybeReady::pending(std::future::pending()),
            }
        }
    }

    /// The number of answers, and of clients that have not answered.
    async fn answers(mut session: AskSession) -> Result<(usize, Option<u64>), LockError> {
        let answers = session.ask(QuestionKind::Client, Duration::from_secs(1)).await?;
        Ok((answers.answers.len(), answers.unanswered))
    }

    #[tokio::test(start_paused = true)]
    async fn the_answers_before_an_interruption_are_returned() {
        assert_eq!(answers(InterruptedAsker::session(true, 2)).await, Ok((2, Some(0))));
        assert_eq!(answers(InterruptedAsker::session(true, 1)).await, Ok((1, None)));
        let none = answers(InterruptedAsker::session(true, 0)).await;
        assert!(matches!(none, Err(LockError::Unavailable { key: None, .. })), "{none:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_interruption_before_the_question_was_sent_loses_no_answer() {
        assert_eq!(answers(InterruptedAsker::session(false, 1)).await, Ok((1, Some(1))));
        assert_eq!(answers(InterruptedAsker::session(false, 0)).await, Ok((0, Some(2))));
    }
}
