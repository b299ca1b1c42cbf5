//! Waiting for answers on runtimes that may be blocked.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

/// A task that is polled so much later than its timer has asked for is on a runtime that was blocked.
const LATE: Duration = Duration::from_millis(5);

/// Waits for an answer for this long. `None` if there is none.
///
/// If the runtime was blocked meanwhile, waits for another tenth of that: the answer may have arrived, and the task that reads
/// it has not been polled since.
pub async fn answer_within<T>(limit: Duration, answer: impl Future<Output = T>) -> Option<T> {
    let mut answer = pin!(answer);
    // Far enough if it cannot be represented.
    let end = Instant::now().checked_add(limit);
    let end = end.unwrap_or_else(|| Instant::now() + Duration::from_secs(60 * 60));
    match timeout_at(end, answer.as_mut()).await {
        Ok(answer) => Some(answer),
        Err(_) if end.elapsed() >= LATE => timeout(limit / 10, answer).await.ok(),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(500);

    /// The answer of another task, which needs to be polled some times more.
    async fn answer(arrived: oneshot::Receiver<()>) {
        let reader = tokio::spawn(async move {
            arrived.await.expect("it is sent");
            for _ in 0..20 {
                yield_now().await;
            }
        });
        reader.await.expect("no panic");
    }

    #[tokio::test]
    async fn an_answer_that_has_arrived_while_the_runtime_was_blocked_counts() {
        let (arrive, arrived) = oneshot::channel();
        let waiting = tokio::spawn(answer_within(LIMIT, answer(arrived)));
        for _ in 0..20 {
            yield_now().await;
        }
        arrive.send(()).expect("it is awaited");
        std::thread::sleep(LIMIT + LIMIT / 10);
        let answered = waiting.await.expect("no panic");
        assert_eq!(answered, Some(()), "the answer has arrived in time");
    }

    #[tokio::test]
    async fn no_answer_is_waited_for_longer_than_that() {
        let (_arrive, arrived) = oneshot::channel();
        let began = Instant::now();
        assert_eq!(answer_within(LIMIT, answer(arrived)).await, None);
        assert!(began.elapsed() >= LIMIT);
        assert_eq!(answer_within(Duration::MAX, async { 1 }).await, Some(1));
    }
}
