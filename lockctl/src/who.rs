//! `lockctl who`: who holds one lock.

use std::time::{Duration, SystemTime};

use clap::Args;
use lock_runtime::{Holder, LockError};
use serde::Serialize;

use crate::asking::{AskOptions, AskingClient, complain};
use crate::exit::Failure;
use crate::ls::{LockRow, count_waiting};
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::records::{ClientRecord, optional_seconds, rfc3339, unknown};
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
    #[command(flatten)]
    ask: AskOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// A lock, as its clients and the store know it.
#[derive(Debug, Serialize)]
struct ShownLock {
    key: String,
    format: &'static str,
    held: bool,
    /// Several for readers and permits.
    holders: Vec<HolderRow>,
    /// `None` if the clients could not be asked.
    waiting: Option<u64>,
}

/// One holder.
#[derive(Debug, Serialize)]
struct HolderRow {
    client: Option<ClientRecord>,
    /// Whether the client itself has answered. If it has not, it has died, is suspended, or is of another library.
    answers: bool,
    function: Option<String>,
    since: Option<String>,
    #[serde(rename = "held_seconds", serialize_with = "optional_seconds")]
    held_for: Option<Duration>,
    #[serde(rename = "left_seconds", serialize_with = "optional_seconds")]
    left: Option<Duration>,
    mode: Option<&'static str>,
    permits: Option<u32>,
    fencing_token: Option<u64>,
}

impl From<LockRow> for HolderRow {
    fn from(row: LockRow) -> Self {
        Self {
            client: row.holder,
            answers: true,
            function: row.function,
            since: since(row.held_for),
            held_for: row.held_for,
            left: row.left,
            mode: row.mode,
            permits: row.permits,
            fencing_token: row.fencing_token,
        }
    }
}

impl From<Holder> for HolderRow {
    fn from(holder: Holder) -> Self {
        Self {
            client: holder.client.as_deref().map(ClientRecord::from),
            answers: false,
            function: None,
            since: since(holder.held_for),
            held_for: holder.held_for,
            left: holder.lease_left,
            mode: None,
            permits: None,
            fencing_token: None,
        }
    }
}

fn since(held_for: Option<Duration>) -> Option<String> {
    SystemTime::now().checked_sub(held_for?).map(rfc3339)
}

impl Listing for ShownLock {
    type Row = HolderRow;

    fn rows(&self) -> &[HolderRow] {
        &self.holders
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&["", ""], &[1]);
        let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
        row("key", self.key.clone());
        row("format", self.format.to_owned());
        row("state", if self.held { "held" } else { "free" }.to_owned());
        if let Some(waiting) = self.waiting {
            row("waiting", waiting.to_string());
        }
        for holder in &self.holders {
            let shown = |client: &ClientRecord| client.shown.clone();
            row("holder", holder.client.as_ref().map_or_else(unknown, shown));
            let state = if holder.answers { "answers" } else { NO_ANSWER };
            row("  client", state.to_owned());
            let held_for = holder.held_for.map(span::show);
            let since = holder.since.as_ref().zip(held_for);
            for (name, value) in [
                ("  function", holder.function.clone()),
                ("  since", since.map(|(since, held_for)| format!("{since} ({held_for})"))),
                ("  left", holder.left.map(span::show)),
                ("  mode", holder.mode.map(ToOwned::to_owned)),
                ("  permits", holder.permits.map(|permits| permits.to_string())),
                ("  fence", holder.fencing_token.map(|token| token.to_string())),
            ] {
                if let Some(value) = value {
                    row(name, value);
                }
            }
        }
        table
    }
}

/// What people read about a holder that only the store knows.
const NO_ANSWER: &str = "does not answer: it has died, is suspended, or is of another library";

/// Shows the lock.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: WhoOptions,
    messages: Messages,
) -> Result<(), Failure> {
    let asking = AskingClient::connect(global, &options.ask).await?;
    let read = async || {
        let stored = asking.admin.holder(&*options.key).await?;
        let (mut holders, waiting) = match answers(&asking, &options.key, messages).await {
            Ok((holders, waiting)) => (holders, Some(waiting)),
            // What the store knows is better than nothing.
            Err(denied @ LockError::Denied { .. }) => {
                messages.warning(format!("the clients cannot be asked: {denied}"));
                (Vec::new(), None)
            }
            Err(error) => return Err(error.into()),
        };
        let id = |client: Option<&ClientRecord>| client.and_then(|client| client.id.clone());
        // A client that has released the lock in the meantime is not in the answers either.
        if let Some(stored) = stored.map(HolderRow::from)
            && !holders.iter().any(|known| {
                let (known, stored) = (id(known.client.as_ref()), id(stored.client.as_ref()));
                known.is_some() && known == stored
            })
        {
            holders.push(stored);
        }
        Ok(ShownLock {
            key: options.key.clone(),
            format: global.format.name(),
            held: !holders.is_empty(),
            holders,
            waiting,
        })
    };
    options.output.print(messages, read).await
}

/// The holders that have answered, and the number of calls that wait.
async fn answers(
    asking: &AskingClient,
    key: &str,
    messages: Messages,
) -> Result<(Vec<HolderRow>, u64), LockError> {
    let holds = asking.admin.holds_of(key).await?;
    let waits = asking.admin.waiting().await?;
    complain(&holds, messages);
    complain(&waits, messages);
    let waiting = count_waiting(&waits);
    let waiting = waiting.iter().filter(|(full, _)| asking.short_key(full) == key);
    let waiting = waiting.map(|(_, calls)| calls).sum();
    let mut holders = Vec::new();
    for answer in holds.answers {
        let rows = answer.found.into_iter();
        let rows = rows.map(|hold| LockRow::new(key.to_owned(), waiting, &answer.client, hold));
        holders.extend(rows.map(HolderRow::from));
    }
    Ok((holders, waiting))
}
