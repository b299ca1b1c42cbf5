//! Asking the clients of a store.

use std::time::Duration;

use clap::Args;
use lock_runtime::Identity;
use lock_runtime::admin::{ClientAnswers, LockAdmin};

use crate::exit::Failure;
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::span;

/// How long to wait for answers.
#[derive(Debug, Args)]
pub(crate) struct AskOptions {
    /// How long to wait for the answers of the clients
    #[arg(long, value_name = "TIME", value_parser = span::parse, default_value = "1s")]
    answer_timeout: Duration,
}

/// A client that asks others, and tells nothing about itself.
#[derive(Debug)]
pub(crate) struct AskingClient {
    pub(crate) admin: LockAdmin,
    namespace: String,
}

impl AskingClient {
    pub(crate) async fn connect(
        global: &GlobalOptions,
        options: &AskOptions,
    ) -> Result<Self, Failure> {
        let client = global.client()?.identity(Identity::none()).connect().await?;
        let admin = LockAdmin::new(&client).answer_timeout(options.answer_timeout);
        Ok(Self { admin, namespace: global.namespace.clone() })
    }

    /// The key as the commands of `lockctl` expect it.
    pub(crate) fn short_key(&self, key: &str) -> String {
        let short = key.strip_prefix(&self.namespace).and_then(|key| key.strip_prefix(':'));
        short.filter(|_| !self.namespace.is_empty()).unwrap_or(key).to_owned()
    }
}

/// Tells what is missing in the answers. Returns how many are missing, if that is known.
pub(crate) fn complain<T>(answers: &ClientAnswers<T>, messages: Messages) -> Option<usize> {
    match answers.unanswered {
        Some(0) => {}
        Some(1) => messages.warning("one client has not answered"),
        Some(count) => messages.warning(format!("{count} clients have not answered")),
        None => messages.warning("the store does not tell how many clients have not answered"),
    }
    for answer in answers.answers.iter().filter(|answer| !answer.is_complete) {
        messages.warning(format!("the answer of {} was too long, and is cut off", answer.client));
    }
    answers.unanswered
}
