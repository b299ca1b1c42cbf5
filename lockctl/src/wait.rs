//! `lockctl wait`: waits until a lock is free.

use std::time::Duration;

use clap::Args;
use lock_runtime::admin::{LockAdmin, LockState};
use lock_runtime::{Identity, LockError};
use tokio::time::Instant;

use crate::asking::key_meant;
use crate::exit::Failure;
use crate::listed_lock::has_ended;
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::text::harmless;
use crate::span;

/// The first and the longest pause between two looks at the key.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Waits until a lock is free, without acquiring it.
///
/// By the time the next command runs, somebody else may have the lock: use `run` for work that needs it. The
/// exit code is 75 if the lock is still held.
#[derive(Debug, Args)]
pub(crate) struct WaitOptions {
    /// The key of the lock
    key: String,
    /// Wait for at most this long [default: as long as it takes]
    #[arg(short, long, value_name = "TIME", value_parser = span::parse)]
    wait: Option<Duration>,
}

/// Waits.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: WaitOptions,
    messages: Messages,
) -> Result<(), Failure> {
    let client = global.client()?.identity(Identity::none()).connect().await?;
    let admin = LockAdmin::new(&client);
    let key = key_meant(&admin, options.key, messages).await?;
    let end = options.wait.and_then(|wait| Instant::now().checked_add(wait));
    let (mut pause, longest) = PAUSES;
    let (mut has_said, mut is_down) = (false, false);
    loop {
        let read = admin.inspect(&*key).await;
        let now = Instant::now();
        let is_over = end.is_some_and(|end| now >= end);
        match read {
            Ok(state) if state.as_ref().is_none_or(is_free) => return Ok(()),
            Ok(state) => {
                let holder = state.as_ref().map(holder).unwrap_or_default();
                if is_over {
                    let text = format!("lock {key:?} is still held: {holder}");
                    return Err(Failure::busy(text));
                }
                if !has_said {
                    messages.detail(format!("waiting for {key:?}: {holder}"));
                }
                (has_said, is_down) = (true, false);
            }
            Err(error @ LockError::Unavailable { .. }) if !is_over => {
                // Once for each outage.
                if !is_down {
                    messages.warning(format!("{error}; it is asked again"));
                }
                is_down = true;
            }
            Err(error) => return Err(error.into()),
        }
        let until = end.map_or(now + pause, |end| end.min(now + pause));
        tokio::time::sleep_until(until).await;
        pause = (pause * 2).min(longest);
    }
}

/// Whether the key exists although nobody has the lock any more.
fn is_free(state: &LockState) -> bool {
    let has_ended = |holder| has_ended(state.layout, holder);
    !state.holders.is_empty() && state.holders.iter().all(has_ended)
}

/// Who has the lock, for people.
fn holder(state: &LockState) -> String {
    let Some(holder) = state.holders.first() else { return "its holders change".to_owned() };
    let until = match holder.lease_left {
        Some(left) => format!("its lease ends in {} unless it is renewed", span::show(left)),
        None => "the key never expires".to_owned(),
    };
    format!("held by {}, and {until}", harmless(&holder.client.to_string()))
}
