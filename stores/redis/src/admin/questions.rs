//! Answers questions of others about this client.
//!
//! Questions arrive with the messages about locks, and answers are sent over the connection that checks the
//! keys of waiters. An answer is made on a thread of its own, so it delays neither renewals nor wake-ups.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{Cmd, Value, cmd};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tracing::Level;

use crate::client_id::ClientId;
use crate::connections::admission::RequestClass;
use crate::connections::connection::RequestOptions;
use crate::connections::route::Route;
use crate::scripts::decode::Unexpected;
use crate::scripts::script::Publish;
use crate::shared::Shared;
use lock_core::clock::BootInstant;
use lock_core::events;
use lock_core::questions::limit::{AnswerLimit, MOST_ANSWERS};
use lock_core::questions::question::{LONGEST_QUESTION, Question, QuestionKind};
use lock_core::questions::{Answerer, QUESTIONS};
use lock_core::store::contract::StoreError;
use lock_core::store::subscriptions::{Inbox, InboxLimits};
use lock_core::timeout::RequestTimeout;

/// The questions that wait to be read. There is room for those that arrive before the task that reads them is polled.
const QUESTION_LIMITS: InboxLimits =
    InboxLimits { longest: LONGEST_QUESTION, room: 128 * LONGEST_QUESTION };

/// The most questions that wait to be answered. As many may be admitted at once.
const MOST_WAITING: usize = MOST_ANSWERS as usize;

/// Reads the questions about one client. Never waits for an answer, so a flood of questions leaves room for a
/// revocation.
struct QuestionReader {
    inbox: Arc<Inbox>,
    answerer: Weak<dyn Answerer>,
    /// Whoever asks too much must not prevent a revocation.
    questions: AnswerQueue,
    revocations: AnswerQueue,
}

/// Questions that are answered one after the other.
struct AnswerQueue {
    limit: AnswerLimit,
    waiting: mpsc::Sender<Question>,
}

/// Sends the answers of one client.
struct AnswerSender {
    route: Route,
    id: ClientId,
    response_timeout: Duration,
    answerer: Weak<dyn Answerer>,
    /// The log says that answers cannot be published.
    has_warned: AtomicBool,
}

impl Shared {
    /// Answers questions from the first use of a lock on. Before, there is nothing to tell, and a client that
    /// connects lazily does not connect.
    pub(crate) fn answer_with(self: &Arc<Self>, answerer: Weak<dyn Answerer>) {
        let (Ok(own), Ok(())) = (self.own(), self.answerer.set(answerer)) else { return };
        let shared = Arc::clone(self);
        drop(own.home.spawn(async move {
            shared.presence.used().await;
            shared.listen();
        }));
    }

    /// Answers questions from now on, until the runtime of the wake-ups ends. Returns the questions; `None` if the
    /// client tells nothing.
    pub(crate) fn listen(&self) -> Option<&Arc<Inbox>> {
        let (own, answerer) = (self.own().ok()?, self.answerer.get()?);
        let channel = channel(answerer.upgrade()?.namespace());
        Some(self.questions.get_or_init(|| {
            let inbox = Arc::new(self.subscriptions.inbox(&channel, QUESTION_LIMITS));
            let sender = Arc::new(AnswerSender {
                route: own.wake_ups.clone(),
                id: self.id.clone(),
                response_timeout: self.response_timeout,
                answerer: Weak::clone(answerer),
                has_warned: AtomicBool::new(false),
            });
            let reader = QuestionReader {
                inbox: Arc::clone(&inbox),
                answerer: Weak::clone(answerer),
                questions: AnswerQueue::start(&own.home, &sender),
                revocations: AnswerQueue::start(&own.home, &sender),
            };
            drop(own.home.spawn(reader.run()));
            inbox
        }))
    }
}

impl QuestionReader {
    async fn run(mut self) {
        loop {
            let message = self.inbox.next().await;
            if self.answerer.strong_count() == 0 {
                return;
            }
            let Some(question) = Question::of_text(&message) else { continue };
            match question.kind {
                QuestionKind::Revoke(_) => self.revocations.offer(question),
                _ => self.questions.offer(question),
            }
        }
    }
}

impl AnswerQueue {
    /// Its task ends with the queue.
    fn start(home: &Handle, sender: &Arc<AnswerSender>) -> Self {
        let (waiting, mut questions) = mpsc::channel(MOST_WAITING);
        let sender = Arc::clone(sender);
        drop(home.spawn(async move {
            while let Some(question) = questions.recv().await {
                sender.answer(question).await;
            }
        }));
        Self { limit: AnswerLimit::new(), waiting }
    }

    /// Has a question answered, unless there are too many.
    fn offer(&mut self, question: Question) {
        if self.limit.admits(BootInstant::now()) {
            // There is no room if the answers before take too long.
            let _ = self.waiting.try_send(question);
        }
    }
}

impl AnswerSender {
    async fn answer(&self, question: Question) {
        let Some(answerer) = self.answerer.upgrade() else { return };
        let (channel, id) = (question.channel.clone(), self.id.short());
        // There may be many locks, and this thread wakes waiters.
        let (done, pages) = oneshot::channel();
        let answering = move || {
            // Fails only if this task has ended.
            let _ = done.send(answerer.answer(&question, id.as_str()));
        };
        let thread = std::thread::Builder::new().name("lock-answers".into());
        if let Err(error) = thread.spawn(answering) {
            events::emit(Level::DEBUG, move || {
                tracing::debug!(target: "lock_runtime::store::redis", %error, "a question is not answered: no thread can be started");
            });
        }
        // There are no pages if the thread has panicked.
        for page in pages.await.unwrap_or_default() {
            if !self.publish(&channel, &page).await {
                break;
            }
        }
    }

    /// Sends a page. Returns whether the next one is worthwhile.
    async fn publish(&self, channel: &str, page: &str) -> bool {
        match publish(&self.route, channel, page, self.response_timeout).await {
            Ok(receivers) => receivers != Some(0),
            Err(StoreError::Denied(cause)) => {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    events::emit(Level::INFO, move || {
                        tracing::info!(
                            target: "lock_runtime::store::redis",
                            cause,
                            "no permission to publish answers; others cannot ask this client which \
                             locks it holds"
                        );
                    });
                }
                false
            }
            Err(_) => false,
        }
    }
}

/// The channel on which the clients with this namespace are asked.
pub(crate) fn channel(namespace: &str) -> String {
    format!("{QUESTIONS}{namespace}")
}

/// Publishes a message. Returns the number of clients that have received it, unless other nodes of a cluster
/// may have passed it on.
pub(crate) async fn publish(
    route: &Route,
    channel: &str,
    message: &str,
    within: Duration,
) -> Result<Option<usize>, StoreError> {
    let is_counted = !route.is_cluster() || route.publish() == Publish::ToShard;
    let mut publish: Cmd = match route.publish() {
        Publish::Everywhere => cmd("PUBLISH"),
        Publish::ToShard => cmd("SPUBLISH"),
    };
    publish.arg(channel).arg(message);
    let options = RequestOptions::new(RequestClass::Unlimited, RequestTimeout::of(within));
    let receivers = route.send(channel, &publish, &options, count).await?;
    Ok(is_counted.then_some(receivers))
}

/// The namespaces of the clients that listen. `None` in a cluster, whose nodes know their own subscribers only, and without the
/// permission.
pub(crate) async fn namespaces(
    route: &Route,
    within: Duration,
) -> Result<Option<Vec<String>>, StoreError> {
    if route.is_cluster() {
        return Ok(None);
    }
    let mut channels = cmd("PUBSUB");
    channels.arg("CHANNELS").arg(format!("{QUESTIONS}*"));
    let options = RequestOptions::new(RequestClass::Unlimited, RequestTimeout::of(within));
    match route.send(QUESTIONS, &channels, &options, namespaces_of).await {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::Denied(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decodes the channels of questions. Anybody may subscribe to a channel, with any name.
fn namespaces_of(reply: &Value) -> Result<Vec<String>, Unexpected> {
    let channels: Vec<Vec<u8>> =
        redis::from_redis_value_ref(reply).map_err(|_| Unexpected::new(reply))?;
    let namespace = |channel: Vec<u8>| {
        let channel = String::from_utf8(channel).ok()?;
        Some(channel.strip_prefix(QUESTIONS)?.to_owned())
    };
    Ok(channels.into_iter().filter_map(namespace).collect())
}

/// Decodes a number of clients.
fn count(reply: &Value) -> Result<usize, Unexpected> {
    match reply {
        Value::Int(count) => usize::try_from(*count).map_err(|_| Unexpected::new(reply)),
        other => Err(Unexpected::new(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_clients_is_decoded() {
        assert_eq!(count(&Value::Int(3)).ok(), Some(3));
        assert!(count(&Value::Int(-1)).is_err() && count(&Value::Nil).is_err());
    }
    #[test]
    fn namespaces_are_decoded() {
        let channel = |name: &[u8]| Value::BulkString(name.to_vec());
        let channels = [b"lock_ask:shop".as_slice(), b"lock_ask:", b"news", b"lock_ask:\xff"];
        let found = namespaces_of(&Value::Array(channels.map(channel).to_vec()));
        assert_eq!(found.ok(), Some(vec!["shop".to_owned(), String::new()]));
        assert!(namespaces_of(&Value::Int(1)).is_err());
    }
}
