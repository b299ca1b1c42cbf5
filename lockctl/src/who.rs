//! `lockctl who`: who holds one lock.

use std::cell::Cell;

use clap::Args;
use serde::Serialize;

use crate::asking::{AskOptions, AskingClient, key_meant};
use crate::exit::{Code, Failure};
use crate::listed_lock::{INCOMPLETE, ListedLock};
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::records::unknown;
use crate::output::table::Table;
use crate::output::{Listing, OutputOptions};
use crate::span;

/// Shows who holds a lock, and how many calls wait for it.
///
/// The store is asked, which also knows holders that have died and those of other libraries, and all clients of
/// the namespace, which know more.
#[derive(Debug, Args)]
pub(crate) struct WhoOptions {
    /// The key of the lock
    key: String,
    /// Exit with 1 if nobody has the lock
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    ask: AskOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// A lock, as the store and its clients know it.
#[derive(Debug, Serialize)]
pub(crate) struct ShownLock {
    key: String,
    held: bool,
    /// Several for readers and permits.
    pub(crate) holders: Vec<ListedLock>,
    /// The processes in the queue of the store.
    queued: u64,
    /// The calls of all clients. `None` if the clients could not be asked.
    waiting: Option<u64>,
    /// The number of clients that have not answered, if it is known.
    unanswered: Option<u64>,
}

impl Listing for ShownLock {
    type Row = ListedLock;

    fn rows(&self) -> &[ListedLock] {
        &self.holders
    }

    fn unanswered(&self) -> Option<u64> {
        self.unanswered
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&["", ""], &[1]);
        let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
        row("key", self.key.clone());
        row("state", if self.held { "held" } else { "not held" }.to_owned());
        let was_asked = self.waiting.is_some();
        let calls =
            self.waiting.filter(|calls| *calls > 0).map(|calls| counted(calls, "call", "calls"));
        let processes = (self.queued > 0).then(|| counted(self.queued, "process", "processes"));
        row(
            "waiting",
            match (calls, processes) {
                (Some(calls), Some(processes)) => format!("{calls}; {processes} in the queue"),
                (Some(calls), None) => calls,
                (None, Some(processes)) => format!("{processes} in the queue"),
                (None, None) if was_asked => "nobody".to_owned(),
                (None, None) => unknown(),
            },
        );
        for holder in &self.holders {
            let [.., shown, _] = holder.cells();
            row("holder", shown);
            for (name, value) in details(holder, was_asked) {
                if let Some(value) = value {
                    row(&format!("  {name}"), value);
                }
            }
        }
        table
    }
}

/// A number of things, whose name is given for one and for several.
fn counted(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// What is known about a holder, who may have been asked.
fn details(holder: &ListedLock, was_asked: bool) -> [(&'static str, Option<String>); 10] {
    let is_known = holder.holder.as_ref().is_some_and(|client| client.id.is_some());
    let state = match holder.answers {
        _ if holder.released == Some(true) => "was released, and stays for its min_hold",
        _ if !was_asked => "was not asked",
        Some(true) => "answers",
        Some(false) => "does not answer: it has died, or its connection is interrupted",
        None if is_known => "has not answered about this lock, and may be alive",
        None => "cannot be asked: it is of another library",
    };
    let left = match holder.expires {
        Some(false) => Some("never expires".to_owned()),
        _ => holder.left.map(span::show),
    };
    let since = holder.since.as_ref().zip(holder.held_for);
    let text = |text: Option<&'static str>| text.map(ToOwned::to_owned);
    [
        ("client", Some(state.to_owned())),
        ("function", holder.function.clone()),
        ("since", since.map(|(since, held)| format!("{since} (about {})", span::show(held)))),
        ("left", left),
        ("layout", text(holder.layout)),
        ("mode", text(holder.mode)),
        ("permits", holder.permits.map(|permits| permits.to_string())),
        ("fence", holder.fencing_token.map(|token| token.to_string())),
        ("token", holder.token.clone()),
        ("id", holder.holder.as_ref().and_then(|client| client.id.clone())),
    ]
}

/// Shows the lock.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: WhoOptions,
    messages: Messages,
) -> Result<(), Failure> {
    let asking = AskingClient::connect(global, &options.ask).await?;
    let key = key_meant(&asking.admin, options.key, messages).await?;
    let is_held = Cell::new(false);
    let read = async || {
        let shown = read(&asking, &key, messages).await?;
        if !shown.held && key.contains(['*', '?']) {
            let text = format!(
                "nobody has the lock {key:?}; `lockctl ls {key:?}` lists the locks that match this pattern"
            );
            return Err(Failure::new(Code::Usage, text));
        }
        if !shown.held {
            asking.tell_namespaces(messages).await;
        }
        is_held.set(shown.held);
        Ok(shown)
    };
    options.output.print(messages, read).await?;
    if options.exit_code && !is_held.get() {
        return Err(Failure::new(Code::Unhealthy, format!("nobody has the lock {key:?}")));
    }
    Ok(())
}

/// Reads what is known about a lock.
pub(crate) async fn read(
    asking: &AskingClient,
    key: &str,
    messages: Messages,
) -> Result<ShownLock, Failure> {
    let state = asking.admin.inspect(key).await?;
    if state.as_ref().is_some_and(|state| !state.is_complete) {
        messages.warning(INCOMPLETE);
    }
    let queued = state.as_ref().map_or(0, |state| state.queued);
    let stored = state.map(ListedLock::stored).unwrap_or_default();
    let full = stored.first().map(|row| row.key.clone());
    let answered = asking.ask_if_allowed(Some(key), messages).await?;
    let waiting = answered.as_ref().map(|answered| full.map_or(0, |full| answered.waiting(&full)));
    let unanswered = answered.as_ref().and_then(|answered| answered.unanswered);
    let mut holders = match answered {
        Some(answered) => answered.added_to(stored),
        None => stored,
    };
    for row in &mut holders {
        key.clone_into(&mut row.key);
    }
    let (key, held) = (key.to_owned(), !holders.is_empty());
    Ok(ShownLock { key, held, holders, queued, waiting, unanswered })
}
