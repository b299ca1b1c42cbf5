//! `lockctl ls`: the locks that the clients hold, or that are in the store.

mod scan;

use clap::Args;
use serde::Serialize;

use self::scan::ScanOptions;
use crate::asking::{AskOptions, AskingClient};
use crate::exit::{Code, Failure};
use crate::listed_lock::{HEADER, ListedLock, RowOrder};
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::table::Table;
use crate::output::{Listing, OutputOptions};
use crate::pattern::KeyPattern;

/// Lists the locks that the clients hold, and the keys for which they wait.
///
/// All clients of the namespace are asked. Clients of other libraries, and processes that have died, do not
/// answer: `--scan` also lists their locks. The clients of etcd and PostgreSQL cannot be asked: their locks are read
/// from the store, also without `--scan`.
#[derive(Debug, Args)]
pub(crate) struct LsOptions {
    /// Only keys that match: `*` is any text, `?` any character, and a backslash takes the next character as it is
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
    scan: ScanOptions,
    #[command(flatten)]
    ask: AskOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// The locks.
#[derive(Debug, Serialize)]
struct KnownLocks {
    locks: Vec<ListedLock>,
    unanswered: Option<u64>,
    #[serde(skip)]
    nothing: String,
}

impl Listing for KnownLocks {
    type Row = ListedLock;

    fn rows(&self) -> &[ListedLock] {
        &self.locks
    }

    fn unanswered(&self) -> Option<u64> {
        self.unanswered
    }

    fn nothing(&self) -> Option<String> {
        Some(self.nothing.clone())
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&HEADER, &[5, 4, 0]);
        for lock in &self.locks {
            table.row(lock.cells());
        }
        table
    }
}

/// Lists the locks.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: LsOptions,
    messages: Messages,
) -> Result<(), Failure> {
    options.scan.check(global)?;
    let asking = AskingClient::connect(global, &options.ask).await?;
    if !asking.admin.can_ask() {
        options.check_without_answers()?;
    }
    let read = async || {
        let (mut rows, unanswered) = if options.scan.is_wanted() || !asking.admin.can_ask() {
            let stored = options.scan.read(&asking.admin, options.pattern.as_ref(), messages);
            let stored = stored.await?;
            match asking.ask_if_allowed(None, messages).await? {
                Some(answered) => (answered.added_to(stored), answered.unanswered),
                None => (stored, None),
            }
        } else {
            let answered = asking.ask(None).await?;
            answered.complain(messages);
            let unanswered = answered.unanswered;
            (answered.into_locks(), unanswered)
        };
        if rows.is_empty() {
            asking.tell_namespaces(messages).await;
        }
        for row in &mut rows {
            row.key = asking.short_key(&row.key);
        }
        let is_filtered = options.pattern.is_some() || options.waiting;
        let nothing = match asking.admin.namespace() {
            _ if unanswered.is_some_and(|clients| clients > 0) => {
                "No locks of the clients that have answered.".to_owned()
            }
            _ if is_filtered => "No locks match.".to_owned(),
            "" => "No locks without a namespace. `--namespace` shows those of one.".to_owned(),
            namespace => format!("No locks in the namespace {namespace:?}."),
        };
        Ok(KnownLocks { locks: options.select(rows), unanswered, nothing })
    };
    options.output.print(messages, read).await
}

impl LsOptions {
    /// Refuses what only the answers of clients tell.
    fn check_without_answers(&self) -> Result<(), Failure> {
        let unknown = if self.waiting {
            "for which keys calls wait"
        } else if self.scan.is_for_stale_locks() {
            "which holders are connected"
        } else {
            return Ok(());
        };
        let text =
            format!("the clients of this store cannot be asked, so it is not known {unknown}");
        Err(Failure::new(Code::Config, text))
    }

    fn select(&self, mut rows: Vec<ListedLock>) -> Vec<ListedLock> {
        rows.retain(|row| {
            let matches = self.pattern.as_ref().is_none_or(|pattern| pattern.matches(&row.key));
            matches && (row.waiting > Some(0) || !self.waiting) && self.scan.includes(row)
        });
        self.sort.sort(&mut rows);
        rows.truncate(self.limit.unwrap_or(usize::MAX));
        rows
    }
}
