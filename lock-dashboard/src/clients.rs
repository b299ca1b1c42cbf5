//! The clients: those that have answered, and those that have done so before.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use lock_runtime::ClientInfo;
use lock_runtime::admin::{ClientAnswer, ClientAnswers, ClientSnapshot, HoldInfo, WaitInfo};
use serde::Serialize;

use crate::asked::AskedRound;

/// The most clients that are sent.
pub(crate) const MOST_CLIENTS: usize = 200;

/// For how long a client that does not answer is shown.
const REMEMBERED: Duration = Duration::from_secs(300);

/// The most clients that are remembered although they do not answer.
const MOST_SILENT: usize = 10_000;

/// A client, as the page shows it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ClientRow {
    pub(crate) id: Arc<str>,
    /// Such as `web-3 (pid 4711, shop 1.4.2)`.
    pub(crate) label: Arc<str>,
    library: Option<String>,
    /// Unix time in ms.
    started: Option<u64>,
    pub(crate) revocable: bool,
    /// Whether its answer had all of its locks.
    pub(crate) complete: bool,
    pub(crate) held: u64,
    waiting: u64,
    #[serde(flatten)]
    pub(crate) measured: ClientTotals,
    /// For how long it has not answered, in ms.
    pub(crate) silent: Option<u64>,
}

/// What a client has measured, by its last snapshot.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ClientTotals {
    /// Whether it reaches the store.
    pub(crate) up: bool,
    #[serde(skip)]
    all_held: u64,
    pub(crate) lost: u64,
}

impl Default for ClientTotals {
    fn default() -> Self {
        Self { up: true, all_held: 0, lost: 0 }
    }
}

struct KnownClient {
    row: ClientRow,
    answered: Instant,
    holds: Vec<HoldInfo>,
}

/// All clients that have answered lately.
#[derive(Default)]
pub(crate) struct ClientBook {
    known: HashMap<String, KnownClient>,
}

/// What the page identifies a client by. All clients that answer have an id.
pub(crate) fn id_of(client: &ClientInfo) -> String {
    client.id.clone().unwrap_or_else(|| client.to_string())
}

impl ClientBook {
    /// Adds the answers of a round. Returns the clients in the order of their names, those that do not answer first.
    pub(crate) fn add(&mut self, asked: &mut AskedRound) -> Vec<ClientRow> {
        let now = asked.began;
        let mut measured = measured(asked);
        let mut waiting = waiting(&asked.waits);
        for answer in &mut asked.holds.answers {
            let id = id_of(&answer.client);
            let known = || self.known.get(&id).map(|known| known.row.measured.clone());
            let measured = measured.remove(&id).or_else(known).unwrap_or_default();
            let waiting = waiting.remove(&id).unwrap_or_default();
            let row = row_of(&id, answer, waiting, measured);
            let holds = std::mem::take(&mut answer.found);
            self.known.insert(id, KnownClient { row, answered: now, holds });
        }
        self.forget(now, asked.holds.unanswered);
        let row = |known: &KnownClient| {
            let silent = now.saturating_duration_since(known.answered);
            let silent = (!silent.is_zero()).then(|| milliseconds(silent));
            ClientRow { silent, ..known.row.clone() }
        };
        let mut rows: Vec<_> = self.known.values().map(row).collect();
        rows.sort_by(|one, other| {
            let order = |row: &ClientRow| (row.silent.is_none(), row.measured.up);
            order(one).cmp(&order(other)).then_with(|| one.label.cmp(&other.label))
        });
        rows
    }

    /// Forgets clients that do not answer, except as many as the store has counted. One that has ended cannot be
    /// distinguished from one that is suspended, so those with locks stay first, and then those that have answered last.
    fn forget(&mut self, now: Instant, unanswered: Option<u64>) {
        let most = unanswered.and_then(|count| usize::try_from(count).ok());
        let most = most.map_or(MOST_SILENT, |count| count.min(MOST_SILENT));
        let silence = |known: &KnownClient| now.saturating_duration_since(known.answered);
        let mut silent: Vec<_> = self
            .known
            .iter()
            .filter(|(_, known)| !silence(known).is_zero())
            .map(|(id, known)| {
                let has_locks = known.holds.iter().any(|hold| hold.lease_left > silence(known));
                (Reverse(has_locks), silence(known), id.clone())
            })
            .collect();
        silent.sort_unstable();
        for (at, (_, silence, id)) in silent.into_iter().enumerate() {
            if at >= most || silence >= REMEMBERED {
                self.known.remove(&id);
            }
        }
    }

    /// Forgets all clients.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The locks of all clients, and for how long their clients have not answered. The rest of a lease that has ended
    /// since is zero.
    pub(crate) fn holds(
        &self,
        now: Instant,
    ) -> impl Iterator<Item = (&ClientRow, Duration, &HoldInfo)> {
        self.known.values().flat_map(move |known| {
            let silent = now.saturating_duration_since(known.answered);
            known.holds.iter().map(move |hold| (&known.row, silent, hold))
        })
    }
}

/// What the snapshots of this round report about each client.
fn measured(asked: &AskedRound) -> HashMap<String, ClientTotals> {
    let snapshots = asked.snapshots.iter().flat_map(|snapshots| &snapshots.answers);
    let measured = snapshots.map(|answer| {
        let ClientSnapshot { store_up, held, lost, .. } = answer.found;
        (id_of(&answer.client), ClientTotals { up: store_up, all_held: held, lost })
    });
    measured.collect()
}

/// The number of calls of each client that wait.
fn waiting(waits: &ClientAnswers<Vec<WaitInfo>>) -> HashMap<String, u64> {
    let waiting = waits.answers.iter().map(|answer| {
        let calls = answer.found.iter().map(|wait| wait.calls);
        (id_of(&answer.client), calls.fold(0, u64::saturating_add))
    });
    waiting.collect()
}

fn row_of(
    id: &str,
    answer: &ClientAnswer<Vec<HoldInfo>>,
    waiting: u64,
    measured: ClientTotals,
) -> ClientRow {
    let client = &answer.client;
    let started = client.started.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    let found = answer.found.len() as u64;
    ClientRow {
        id: id.into(),
        label: client.to_string().into(),
        library: client.library.clone(),
        started: started.map(milliseconds),
        revocable: answer.is_revocable,
        complete: answer.is_complete,
        // An answer has only a part of very many locks, but a client measures their number.
        held: if answer.is_complete { found } else { found.max(measured.all_held) },
        waiting,
        measured,
        silent: None,
    }
}

/// A duration in whole milliseconds.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
