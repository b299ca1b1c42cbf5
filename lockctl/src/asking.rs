//! Asking the clients of a store.

use std::cell::Cell;
use std::time::Duration;

use clap::Args;
use lock_runtime::admin::LockAdmin;
use lock_runtime::{Identity, LockError};
use tokio::time::{Instant, sleep_until};

use crate::answered::Answered;
use crate::exit::Failure;
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::repeated::RepeatedQuestions;
use crate::{span, wording};

/// The time between two readings with two questions each: a client answers ten questions in a second.
const BETWEEN_READINGS: Duration = Duration::from_millis(200);

/// How many namespaces are shown.
const MOST_NAMESPACES: usize = 10;

/// How long to wait for answers.
#[derive(Debug, Args)]
pub(crate) struct AskOptions {
    /// How long to wait for the answers of the clients, which are asked again at half of this time
    #[arg(
        long,
        value_name = "TIME",
        value_parser = span::between(Duration::from_millis(10), Duration::from_secs(60)),
        default_value = "1s"
    )]
    answer_timeout: Duration,
}

/// A client that asks others, and tells nothing about itself.
#[derive(Debug)]
pub(crate) struct AskingClient {
    pub(crate) admin: LockAdmin,
    /// All questions but those for waiting calls, which are asked beside them.
    pub(crate) questions: RepeatedQuestions,
    waits: RepeatedQuestions,
    /// When both may ask again.
    next: Cell<Instant>,
    /// Whether the namespaces in use were looked for.
    has_looked: Cell<bool>,
}

impl AskingClient {
    pub(crate) async fn connect(
        global: &GlobalOptions,
        options: &AskOptions,
    ) -> Result<Self, Failure> {
        let client = global.client()?.identity(Identity::none()).connect().await?;
        let questions = || RepeatedQuestions::new(&client, options.answer_timeout);
        let (questions, waits) = (questions(), questions());
        let (admin, next) = (questions.first.clone(), Cell::new(Instant::now()));
        Ok(Self { admin, questions, waits, next, has_looked: Cell::new(false) })
    }

    /// Asks for all locks and waiting calls, or for the locks with this key. Both questions are asked at the same time,
    /// so that a client that does not answer costs the time of one.
    pub(crate) async fn ask(&self, key: Option<&str>) -> Result<Answered, LockError> {
        // Each of both keeps the limit of a client by itself, and together they would ask twice as often.
        let begin = self.next.get().max(Instant::now());
        self.next.set(begin + BETWEEN_READINGS);
        sleep_until(begin).await;
        let holds = self.questions.ask(async |admin| match key {
            Some(key) => admin.holds_of(key).await,
            None => admin.holds().await,
        });
        let waits = self.waits.ask(LockAdmin::waiting);
        let (holds, waits) = tokio::join!(holds, waits);
        Ok(Answered::new(holds?, waits?))
    }

    /// Asks, and tells what is missing. `None` without the permission, and if the clients of the store cannot be asked:
    /// what the store knows is better than nothing.
    pub(crate) async fn ask_if_allowed(
        &self,
        key: Option<&str>,
        messages: Messages,
    ) -> Result<Option<Answered>, LockError> {
        if !self.admin.can_ask() {
            return Ok(None);
        }
        match self.ask(key).await {
            Ok(answered) => {
                answered.complain(messages);
                Ok(Some(answered))
            }
            Err(denied @ LockError::Denied { .. }) => {
                let why = wording::of_error(&denied);
                messages.warning(format!("the clients cannot be asked: {why}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Says once which namespaces are in use if no client uses that of the command, which has found nothing. Nothing depends
    /// on it, so its errors are ignored.
    pub(crate) async fn tell_namespaces(&self, messages: Messages) {
        if self.has_looked.replace(true) {
            return;
        }
        let own = self.admin.namespace();
        let Ok(Some(used)) = self.admin.namespaces().await else { return };
        if used.is_empty() || used.iter().any(|used| used == own) {
            return;
        }
        let shown = |namespace: &String| match &**namespace {
            "" => "\"\" (no namespace)".to_owned(),
            namespace => format!("{namespace:?}"),
        };
        let more = used.len().saturating_sub(MOST_NAMESPACES);
        let used: Vec<String> = used.iter().take(MOST_NAMESPACES).map(shown).collect();
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let used = format!("in use: {}{more}", used.join(", "));
        messages.warning(match own {
            "" => format!("all clients that can be asked have a namespace; {used}"),
            own => format!("no client that can be asked has the namespace {own:?}; {used}"),
        });
    }

    /// The key as the commands of `lockctl` expect it.
    pub(crate) fn short_key(&self, key: &str) -> String {
        short_key(&self.admin, key).to_owned()
    }
}

fn short_key<'a>(admin: &LockAdmin, key: &'a str) -> &'a str {
    let namespace = admin.namespace();
    let short = key.strip_prefix(namespace).and_then(|key| key.strip_prefix(':'));
    short.filter(|_| !namespace.is_empty()).unwrap_or(key)
}

/// The key that is meant: errors and the dashboard show keys with their namespace. Such a key is only taken as it is if there is
/// a lock.
pub(crate) async fn key_meant(
    admin: &LockAdmin,
    key: String,
    messages: Messages,
) -> Result<String, LockError> {
    let short = short_key(admin, &key);
    if short == key || admin.inspect(&*key).await?.is_some() {
        return Ok(key);
    }
    messages.warning(format!(
        "{key:?} begins with the namespace, which is not a part of keys here: {short:?} is meant"
    ));
    Ok(short.to_owned())
}
