//! A question that is asked again while clients have not answered.
//!
//! A client that has just answered ten questions in a second does not answer the next one, and may answer the one after a
//! pause. The first question is awaited all the time, for clients that are slow; the second one is asked at half of
//! it. Answers to both are not merged: a client of the first may have ended since, and would be counted twice.

use std::pin::pin;
use std::time::Duration;

use lock_runtime::admin::{ClientAnswers, LockAdmin};
use lock_runtime::{LockClient, LockError};
use tokio::time::timeout;

/// The shortest time between both. Two questions that are asked twice in twice this time are no more than a client
/// answers.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);

/// Two clients that ask beside each other, because each of them asks one question after the other.
#[derive(Debug)]
pub(crate) struct RepeatedQuestions {
    pub(crate) first: LockAdmin,
    second: LockAdmin,
    /// The time between both; `None` if it is too short.
    pause: Option<Duration>,
}

impl RepeatedQuestions {
    /// For answers within this time.
    pub(crate) fn new(client: &LockClient, within: Duration) -> Self {
        let pause = within / 2;
        let admin = |within| LockAdmin::new(client).answer_timeout(within);
        let (first, second) = (admin(within), admin(pause));
        Self { first, second, pause: Some(pause).filter(|pause| *pause >= SHORTEST_PAUSE) }
    }

    /// Asks once or twice. Returns the answers with the fewest missing ones.
    pub(crate) async fn ask<T>(
        &self,
        ask: impl AsyncFn(&LockAdmin) -> Result<ClientAnswers<T>, LockError>,
    ) -> Result<ClientAnswers<T>, LockError> {
        let mut first = pin!(ask(&self.first));
        let Some(pause) = self.pause else { return first.await };
        if let Ok(answers) = timeout(pause, &mut first).await {
            return answers;
        }
        let mut second = pin!(ask(&self.second));
        tokio::select! {
            answers = &mut first => match answers? {
                complete if complete.unanswered == Some(0) => Ok(complete),
                some => Ok(better(some, second.await?)),
            },
            answers = &mut second => match answers? {
                complete if complete.unanswered == Some(0) => Ok(complete),
                some => Ok(better(first.await?, some)),
            },
        }
    }
}

fn better<T>(one: ClientAnswers<T>, other: ClientAnswers<T>) -> ClientAnswers<T> {
    let missing = |answers: &ClientAnswers<T>| answers.unanswered.unwrap_or(u64::MAX);
    if missing(&other) < missing(&one) { other } else { one }
}
