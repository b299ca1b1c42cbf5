//! `lockctl revoke`: asks the holder of a lock to give it up.

use clap::Args;
use lock_runtime::admin::Revocation;

use crate::asking::{AskOptions, AskingClient, key_meant};
use crate::exit::Failure;
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::write;

/// Asks the holders of a lock to give it up.
///
/// A holder that agrees stops its work, and releases the lock then, so the next holder never runs beside it.
/// `lockctl run` agrees. Programs agree if their clients are built with `revocable(true)`.
///
/// The exit code is 75 if a holder keeps the lock.
#[derive(Debug, Args)]
pub(crate) struct RevokeOptions {
    /// The key of the lock
    key: String,
    #[command(flatten)]
    ask: AskOptions,
}

/// Asks the holders.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: RevokeOptions,
    messages: Messages,
) -> Result<(), Failure> {
    let asking = AskingClient::connect(global, &options.ask).await?;
    let key = key_meant(&asking.admin, options.key, messages).await?;
    let key = &*key;
    let Revocation { revoked, refused, unanswered, .. } = asking.admin.revoke(key).await?;
    if refused > 0 {
        let text = format!(
            "lock {key:?}: {revoked} of its holders {} up, and {refused} {}: their clients do not allow revocations (for example, because of `--on-lost ignore`)",
            if revoked == 1 { "gives it" } else { "give it" },
            if refused == 1 { "keeps it" } else { "keep it" },
        );
        return Err(Failure::busy(text));
    }
    if revoked > 0 {
        match unanswered {
            Some(0) => {}
            Some(count) => messages.warning(format!(
                "clients without an answer: {count}; if they have the lock as well, they keep it"
            )),
            None => messages.warning("the store does not tell whether other holders keep the lock"),
        }
        return match revoked {
            1 => write("The holder gives the lock up.\n"),
            _ => write(&format!("{revoked} holders give the lock up.\n")),
        };
    }
    match asking.admin.holder(key).await? {
        None => write("Nobody holds the lock.\n"),
        Some(holder) => {
            let silent = unanswered.filter(|count| *count > 0);
            let silent = silent.map(|count| format!(" (clients without an answer: {count})"));
            messages
                .detail("clients of other libraries and processes that have died do not answer");
            let text = format!(
                "lock {key:?}: its holder has not answered{}: {holder}",
                silent.unwrap_or_default()
            );
            Err(Failure::busy(text))
        }
    }
}
