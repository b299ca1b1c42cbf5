//! The clients: those that have answered, and those that have done so before.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use lock_runtime::admin::{ClientAnswer, HoldInfo};
use lock_runtime::{ClientInfo, admin};
use serde::Serialize;

use crate::asked::AskedRound;

/// The most clients that are sent.
pub(crate) const MOST_CLIENTS: usize = 200;

/// For how long a client that does not answer is shown.
const REMEMBERED: Duration = Duration::from_secs(300);

/// The most clients that are remembered.
const MOST_REMEMBERED: usize = 10_000;

/// A client, as the page shows it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ClientRow {
    pub(crate) id: String,
    /// Such as `web-3 (pid 4711, shop 1.4.2)`.
    pub(crate) label: String,
    library: Option<String>,
    /// Unix time in ms.
    started: Option<u64>,
    pub(crate) revocable: bool,
    /// Whether its answer had all of its locks.
    pub(crate) complete: bool,
    /// Whether it reaches the store.
    pub(crate) up: bool,
    pub(crate) held: u64,
    waiting: u64,
    pub(crate) lost: u64,
    /// For how long it has not answered, in ms.
    pub(crate) silent: Option<u64>,
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

/// The name by which the page tells clients apart. Those of a memory store have no id.
pub(crate) fn id_of(client: &ClientInfo) -> String {
    let started = || client.started.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    let other = || format!("{client} {}", started().map_or(0, milliseconds));
    client.id.clone().unwrap_or_else(other)
}

impl ClientBook {
    /// Adds the answers of a round. Returns the clients in the order of their names, those that do not answer first.
    pub(crate) fn add(&mut self, asked: &mut AskedRound) -> Vec<ClientRow> {
        let now = asked.began;
        for answer in &mut asked.holds.answers {
            let (id, row) = row_of(answer, asked.snapshots.answers.iter(), &asked.waits);
            let holds = std::mem::take(&mut answer.found);
            self.known.insert(id, KnownClient { row, answered: now, holds });
        }
        // A client that has ended is not counted as one that does not answer.
        let is_any_silent = asked.holds.unanswered != Some(0);
        self.known.retain(|_, known| {
            let age = now.saturating_duration_since(known.answered);
            age.is_zero() || (is_any_silent && age < REMEMBERED)
        });
        while self.known.len() > MOST_REMEMBERED.max(asked.holds.answers.len()) {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.answered);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
            self.known.remove(&oldest);
        }
        let row = |known: &KnownClient| {
            let silent = now.saturating_duration_since(known.answered);
            let silent = (!silent.is_zero()).then(|| milliseconds(silent));
            ClientRow { silent, ..known.row.clone() }
        };
        let mut rows: Vec<_> = self.known.values().map(row).collect();
        rows.sort_by(|one, other| {
            let order = |row: &ClientRow| (row.silent.is_none(), row.up);
            order(one).cmp(&order(other)).then_with(|| one.label.cmp(&other.label))
        });
        rows
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

fn row_of<'a>(
    answer: &ClientAnswer<Vec<HoldInfo>>,
    mut snapshots: impl Iterator<Item = &'a ClientAnswer<admin::ClientSnapshot>>,
    waits: &admin::ClientAnswers<Vec<admin::WaitInfo>>,
) -> (String, ClientRow) {
    let client = &answer.client;
    let snapshot = snapshots.find(|it| it.client == *client).map(|it| &it.found);
    let waiting = waits.answers.iter().find(|it| it.client == *client);
    let calls = waiting.into_iter().flat_map(|it| &it.found).map(|wait| wait.calls);
    let started = client.started.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    let id = id_of(client);
    let row = ClientRow {
        id: id.clone(),
        label: client.to_string(),
        library: client.library.clone(),
        started: started.map(milliseconds),
        revocable: answer.is_revocable,
        complete: answer.is_complete,
        up: snapshot.is_none_or(|it| it.store_up),
        held: snapshot.map_or(0, |it| it.held).max(answer.found.len() as u64),
        waiting: calls.fold(0, u64::saturating_add),
        lost: snapshot.map_or(0, |it| it.lost),
        silent: None,
    };
    (id, row)
}

/// A duration in whole milliseconds.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
