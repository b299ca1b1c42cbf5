//! `lockctl delete`: deletes exactly the hold that was shown.

use std::io::{self, BufRead, IsTerminal};

use clap::Args;
use lock_runtime::admin::Deletion;

use crate::asking::{AskOptions, AskingClient, key_meant};
use crate::exit::{Code, Failure};
use crate::listed_lock::ListedLock;
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::text::harmless;
use crate::output::{records, write};
use crate::{span, who};

/// Deletes the hold that `who` has shown, unless the lock has another holder by now.
///
/// A holder that still runs does not notice at once, so two holders may run beside each other: use `revoke` where
/// the holder is revocable, and `delete` for holders that do not run any more.
///
/// The exit code is 75 if the lock has another holder or none, or if the deletion is not confirmed.
#[derive(Debug, Args)]
pub(crate) struct DeleteOptions {
    /// The key of the lock
    key: String,
    /// The token of the hold, which `who` shows
    // Tokens may begin with a hyphen.
    #[arg(long, value_name = "TOKEN", allow_hyphen_values = true)]
    token: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    ask: AskOptions,
}

/// Deletes the hold.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: DeleteOptions,
    messages: Messages,
) -> Result<(), Failure> {
    let DeleteOptions { key, token, yes, ask } = options;
    let may_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !yes && !may_ask {
        let text = "nobody can confirm the deletion here: use `--yes`";
        return Err(Failure::new(Code::Usage, text));
    }
    let asking = AskingClient::connect(global, &ask).await?;
    let key = key_meant(&asking.admin, key, messages).await?;
    let shown = who::read(&asking, &key, messages).await?;
    if shown.holders.is_empty() {
        return Err(no_holder(&key));
    }
    let hold = shown.holders.iter().find(|holder| holder.token.as_ref() == Some(&token));
    if hold.is_none() && shown.holders.iter().all(|holder| holder.token.is_none()) {
        let text = format!(
            "lock {key:?} was released, and stays for its min_hold: it has no holder; nothing was deleted"
        );
        return Err(Failure::new(Code::Busy, text));
    }
    let hold = hold.ok_or_else(|| other_holder(&key))?;
    let consequence = consequence(hold);
    if yes {
        messages.warning(consequence);
    } else if !is_confirmed(&key, &consequence)? {
        return Err(Failure::new(Code::Busy, "nothing was deleted"));
    }
    match asking.admin.delete(&*key, &token).await? {
        Deletion::Deleted => write("The hold was deleted.\n"),
        Deletion::Gone => Err(no_holder(&key)),
        _ => Err(other_holder(&key)),
    }
}

/// What a deletion breaks.
fn consequence(hold: &ListedLock) -> String {
    let holder = hold.holder.as_ref().map_or_else(records::unknown, |client| client.shown.clone());
    let holder = harmless(&holder);
    let until = hold.left.map(|left| format!(", at most {}", span::show(left))).unwrap_or_default();
    match hold.answers {
        Some(true) => format!(
            "{holder} is alive, and goes on until it notices the deletion{until}: `revoke` would be safe"
        ),
        _ => format!("if {holder} still runs, it goes on until it notices the deletion{until}"),
    }
}

/// Asks. Whoever answers sees what the deletion breaks, also with `--quiet`.
fn is_confirmed(key: &str, consequence: &str) -> Result<bool, Failure> {
    Messages::question(format!(
        "{consequence}; delete the hold of {key:?}? Only \"yes\" is accepted: "
    ));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::internal("read the answer", error))?;
    Ok(answer.trim() == "yes")
}

fn no_holder(key: &str) -> Failure {
    Failure::new(Code::Busy, format!("nobody holds the lock {key:?}; nothing was deleted"))
}

fn other_holder(key: &str) -> Failure {
    Failure::new(
        Code::Busy,
        format!("lock {key:?} has another holder by now, or another token; nothing was deleted"),
    )
}
