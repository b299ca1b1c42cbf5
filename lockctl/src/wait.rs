//! `lockctl wait`: waits until a lock is free.

use std::time::Duration;

use clap::Args;
use lock_runtime::admin::LockAdmin;
use lock_runtime::{Holder, Identity};
use tokio::time::Instant;

use crate::exit::{Code, Failure};
use crate::messages::Messages;
use crate::options::GlobalOptions;
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
    let end = options.wait.and_then(|wait| Instant::now().checked_add(wait));
    let (mut pause, longest) = PAUSES;
    let mut is_told = false;
    while let Some(holder) = admin.holder(&*options.key).await? {
        let now = Instant::now();
        if end.is_some_and(|end| now >= end) {
            return Err(still_held(&options.key, &holder));
        }
        if !is_told {
            messages.detail(format!("waiting for {:?}: {holder}", options.key));
            is_told = true;
        }
        let until = end.map_or(now + pause, |end| end.min(now + pause));
        tokio::time::sleep_until(until).await;
        pause = (pause * 2).min(longest);
    }
    Ok(())
}

fn still_held(key: &str, holder: &Holder) -> Failure {
    Failure::new(Code::Busy, format!("lock {key:?} is still held: {holder}"))
}
