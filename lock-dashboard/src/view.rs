//! What is sent to all viewers after a round.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use serde::Serialize;

use crate::clients::{ClientRow, milliseconds};
use crate::contention::TemplateRow;
use crate::history::RoundSample;
use crate::locks::{LockRow, LockRows};
use crate::losses::SentLosses;

/// The version of the format.
pub(crate) const VERSION: u32 = 1;

/// The result of a round, the same for all viewers.
pub(crate) struct View {
    /// When the answers were asked for; `None` before the first ones.
    pub(crate) at: Option<Instant>,
    /// A [`SentState`] as JSON, which all viewers share.
    pub(crate) state: Bytes,
    /// The samples of the last five minutes as JSON, with the one in the state.
    pub(crate) history: Bytes,
    /// All locks.
    pub(crate) locks: Arc<LockRows>,
    /// The client that asks is shut down, so no round follows.
    pub(crate) is_last: bool,
}

impl View {
    /// The age of the answers now, in ms. A viewer may receive a view long after it was made.
    pub(crate) fn age(&self) -> u64 {
        self.at.map_or(0, |at| milliseconds(at.elapsed()))
    }
}

/// The state of all locks. Times are in Unix ms, durations in ms.
#[derive(Debug, Serialize)]
pub(crate) struct SentState<'a> {
    pub(crate) v: u32,
    pub(crate) now: u64,
    pub(crate) refresh: u64,
    pub(crate) actions: bool,
    pub(crate) namespace: &'a str,
    /// Why the processes could not be asked; then all the rest is that of an earlier round.
    pub(crate) problem: Option<SentProblem<'a>>,
    /// `None` before the first answers.
    pub(crate) totals: Option<SentTotals>,
    pub(crate) rows: &'a [LockRow],
    /// The number of rows that are not sent.
    pub(crate) rest: usize,
    pub(crate) contention: &'a [TemplateRow],
    /// The time for which there are measurements.
    pub(crate) covered: u64,
    pub(crate) losses: Option<SentLosses>,
    pub(crate) clients: &'a [ClientRow],
    pub(crate) clients_rest: usize,
    pub(crate) sample: Option<RoundSample>,
}

/// Why the processes could not be asked.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SentProblem<'a> {
    pub(crate) text: &'a str,
    /// Since when.
    pub(crate) since: u64,
}

/// The numbers at the top of the page.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct SentTotals {
    pub(crate) held: u64,
    pub(crate) waiting: u64,
    /// The number of keys that are waited for.
    pub(crate) waited_for: usize,
    /// The losses of the clients since they were created.
    pub(crate) lost: u64,
    /// The number of clients that have answered.
    pub(crate) clients: usize,
    /// The number of clients that have received the question and did not answer; `None` if it is not known.
    pub(crate) unanswered: Option<u64>,
    /// The number of clients whose answers had only a part of their locks.
    pub(crate) incomplete: usize,
    /// The number of clients that do not reach the store.
    pub(crate) down: usize,
    /// How long all clients together took to answer.
    pub(crate) took: f64,
}
