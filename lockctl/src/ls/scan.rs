//! Reading all locks from the store.

use std::collections::HashSet;

use clap::Args;
use lock_runtime::admin::LockAdmin;

use crate::exit::{Code, Failure};
use crate::listed_lock::{INCOMPLETE, ListedLock};
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::pattern::KeyPattern;

/// Whether to read the store, and how.
#[derive(Debug, Args)]
// Each is a flag of its own.
#[allow(clippy::struct_excessive_bools)]
pub(super) struct ScanOptions {
    /// Look at all keys of the server: also finds the locks of processes that have died, and of other libraries
    #[arg(long)]
    scan: bool,
    /// With `--scan`: only locks whose holder is not connected, or that never expire
    #[arg(long, requires = "scan")]
    stale: bool,
    /// With `--scan`: also Redis strings that no client of this library has written, which may be no locks
    #[arg(long, requires = "scan")]
    others: bool,
    /// With `--scan`: also without a namespace, where all keys of the server are candidates
    #[arg(long, requires = "scan")]
    all: bool,
    /// With `--scan`: the pause after each step, as a multiple of the time that the step took
    #[arg(long, value_name = "TIMES", requires = "scan", default_value_t = 10)]
    scan_pause: u32,
}

impl ScanOptions {
    pub(super) fn is_wanted(&self) -> bool {
        self.scan
    }

    pub(super) fn is_for_stale_locks(&self) -> bool {
        self.stale
    }

    pub(super) fn check(&self, global: &GlobalOptions) -> Result<(), Failure> {
        if self.scan && global.namespace.is_empty() && !self.all {
            let text = "without a namespace, a scan inspects all keys of the server: use `--namespace`, or `--all`";
            return Err(Failure::new(Code::Usage, text));
        }
        Ok(())
    }

    pub(super) fn includes(&self, row: &ListedLock) -> bool {
        // A holder of which nothing is known may be alive. A hold that was released needs no holder.
        let is_stale = row.answers == Some(false) || row.expires == Some(false);
        !self.stale || (is_stale && row.released != Some(true))
    }

    /// All locks that the pattern may match.
    pub(super) async fn read(
        &self,
        admin: &LockAdmin,
        pattern: Option<&KeyPattern>,
        messages: Messages,
    ) -> Result<Vec<ListedLock>, Failure> {
        let glob = pattern.map_or_else(|| "*".to_owned(), KeyPattern::to_glob);
        // A store with an index of locks is hardly busy with a scan.
        let pause = if admin.can_ask() { self.scan_pause } else { self.scan_pause.min(1) };
        let mut scan = admin.scan(&glob).pause(pause).others(self.others);
        let (mut rows, mut keys, mut steps) = (Vec::new(), HashSet::new(), 0_u64);
        let mut are_complete = true;
        loop {
            let next = scan.next().await;
            if next.is_err() {
                messages.end_progress();
            }
            let Some(locks) = next? else { break };
            // The server may name a key twice.
            let new = locks.into_iter().filter(|lock| keys.insert(lock.key.clone()));
            for lock in new {
                are_complete &= lock.is_complete;
                rows.extend(ListedLock::stored(lock));
            }
            steps += 1;
            messages.progress(format!("step {steps} of the scan: {} locks", rows.len()));
        }
        messages.end_progress();
        if scan.unreadable() > 0 {
            let count = scan.unreadable();
            messages.warning(format!("keys that this user may not read: {count}"));
        }
        if !are_complete {
            messages.warning(INCOMPLETE);
        }
        Ok(rows)
    }
}
