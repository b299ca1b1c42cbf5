//! `lockctl ls`: the locks that the clients hold.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lock_runtime::admin::{ClientAnswers, HoldInfo, WaitInfo};
use lock_runtime::{ClientInfo, LockMode};
use serde::Serialize;

use crate::asking::{AskOptions, AskingClient, complain};
use crate::exit::Failure;
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::records::{ClientRecord, cell, optional_seconds, unknown};
use crate::output::table::Table;
use crate::output::{Listing, OutputOptions};
use crate::pattern::KeyPattern;
use crate::span;

/// Lists the locks that the clients hold, and the keys for which they wait.
///
/// All clients of the namespace are asked. Clients of other libraries, and processes that have died, do not
/// answer; `who` asks the store about one lock.
#[derive(Debug, Args)]
pub(crate) struct LsOptions {
    /// Only keys that match: `*` is any text, and `?` any character
    pattern: Option<KeyPattern>,
    /// Only keys for which calls wait
    #[arg(long)]
    waiting: bool,
    /// The order of the rows
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = RowOrder::Key)]
    sort: RowOrder,
    /// At most so many rows
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    ask: AskOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// An order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RowOrder {
    /// By key
    Key,
    /// The oldest locks first
    Age,
    /// The locks that end soonest first
    Left,
    /// The locks with the most waiting calls first
    Waiting,
}

/// The locks.
#[derive(Debug, Serialize)]
struct KnownLocks {
    locks: Vec<LockRow>,
    unanswered: Option<usize>,
}

/// A lock of one holder, or a key for which calls wait and whose holder has not answered.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LockRow {
    pub(crate) key: String,
    pub(crate) holder: Option<ClientRecord>,
    pub(crate) function: Option<String>,
    template: Option<String>,
    #[serde(rename = "held_seconds", serialize_with = "optional_seconds")]
    pub(crate) held_for: Option<Duration>,
    #[serde(rename = "left_seconds", serialize_with = "optional_seconds")]
    pub(crate) left: Option<Duration>,
    renewed: Option<bool>,
    pub(crate) mode: Option<&'static str>,
    pub(crate) permits: Option<u32>,
    pub(crate) fencing_token: Option<u64>,
    /// The calls of all clients that wait for the key.
    pub(crate) waiting: u64,
}

impl LockRow {
    pub(crate) fn new(key: String, waiting: u64, client: &ClientInfo, hold: HoldInfo) -> Self {
        Self {
            key,
            holder: Some(client.into()),
            function: hold.function,
            template: Some(hold.template),
            held_for: Some(hold.held_for),
            left: Some(hold.lease_left),
            renewed: Some(hold.is_renewed),
            mode: hold.mode.map(|mode| match mode {
                LockMode::Read => "read",
                LockMode::Write => "write",
            }),
            permits: hold.permits,
            fencing_token: hold.fencing_token,
            waiting,
        }
    }

    fn without_holder(key: String, waiting: u64) -> Self {
        Self {
            key,
            holder: None,
            function: None,
            template: None,
            held_for: None,
            left: None,
            renewed: None,
            mode: None,
            permits: None,
            fencing_token: None,
            waiting,
        }
    }
}

impl Listing for KnownLocks {
    type Row = LockRow;

    fn rows(&self) -> &[LockRow] {
        &self.locks
    }

    fn table(&self) -> Table {
        let header = ["KEY", "HELD", "LEFT", "WAITING", "HOLDER", "FUNCTION"];
        let mut table = Table::new(&header, &[5, 4, 0]);
        for lock in &self.locks {
            let holder = lock.holder.as_ref().map_or_else(unknown, |holder| holder.shown.clone());
            let spans = [lock.held_for, lock.left].map(|it| it.map_or_else(unknown, span::show));
            let [held, left] = spans;
            let function = cell(lock.function.as_ref());
            table.row([lock.key.clone(), held, left, lock.waiting.to_string(), holder, function]);
        }
        table
    }
}

/// The number of calls that wait for each key.
pub(crate) fn count_waiting(answers: &ClientAnswers<Vec<WaitInfo>>) -> HashMap<String, u64> {
    let mut counts = HashMap::new();
    for wait in answers.answers.iter().flat_map(|answer| &answer.found) {
        *counts.entry(wait.key.clone()).or_default() += wait.calls;
    }
    counts
}

/// Lists the locks.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: LsOptions,
    messages: Messages,
) -> Result<(), Failure> {
    let asking = AskingClient::connect(global, &options.ask).await?;
    let read = async || {
        let holds = asking.admin.holds().await?;
        let waits = asking.admin.waiting().await?;
        let unanswered = complain(&holds, messages).max(complain(&waits, messages));
        Ok(KnownLocks { locks: options.select(&asking, holds, &waits), unanswered })
    };
    options.output.print(messages, read).await
}

impl LsOptions {
    fn select(
        &self,
        asking: &AskingClient,
        holds: ClientAnswers<Vec<HoldInfo>>,
        waits: &ClientAnswers<Vec<WaitInfo>>,
    ) -> Vec<LockRow> {
        let mut waiting = count_waiting(waits);
        let mut rows = Vec::new();
        for answer in holds.answers {
            for hold in answer.found {
                let calls = waiting.get(&hold.key).copied().unwrap_or_default();
                rows.push(LockRow::new(hold.key.clone(), calls, &answer.client, hold));
            }
        }
        for row in &rows {
            waiting.remove(&row.key);
        }
        rows.extend(waiting.into_iter().map(|(key, calls)| LockRow::without_holder(key, calls)));
        for row in &mut rows {
            row.key = asking.short_key(&row.key);
        }
        rows.retain(|row| {
            let matches = self.pattern.as_ref().is_none_or(|pattern| pattern.matches(&row.key));
            matches && (row.waiting > 0 || !self.waiting)
        });
        rows.sort_by(|one, other| one.key.cmp(&other.key));
        match self.sort {
            RowOrder::Key => {}
            RowOrder::Age => rows.sort_by_key(|row| Reverse(row.held_for)),
            // Those without a known end last.
            RowOrder::Left => rows.sort_by_key(|row| row.left.unwrap_or(Duration::MAX)),
            RowOrder::Waiting => rows.sort_by_key(|row| Reverse(row.waiting)),
        }
        rows.truncate(self.limit.unwrap_or(usize::MAX));
        rows
    }
}
