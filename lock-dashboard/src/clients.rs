//! The clients: those that have answered, and those that have done so before.

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

/// Holds are reported in whole milliseconds, and clocks may run at different rates.
const ROUNDING: Duration = Duration::from_millis(10);

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
    /// When it was asked for its last answer, and how long the question took.
    answered: Instant,
    took: Duration,
    holds: Vec<HoldInfo>,
}

/// A hold that a client does not report any more.
#[derive(Debug, Clone)]
pub(crate) struct EndedHold {
    /// The id of the client.
    pub(crate) client: Arc<str>,
    /// Who that is.
    pub(crate) holder: Arc<str>,
    /// How long ago its client has reported it.
    pub(crate) age: Duration,
    pub(crate) hold: HoldInfo,
}

/// What a round has found out about the clients.
pub(crate) struct ClientRound {
    /// In the order of their names, those that do not answer first.
    pub(crate) rows: Vec<ClientRow>,
    pub(crate) ended: Vec<EndedHold>,
}

impl KnownClient {
    /// For how long it has not answered.
    fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.answered)
    }

    /// These of its holds have ended.
    fn ended(&self, holds: Vec<HoldInfo>, now: Instant) -> impl Iterator<Item = EndedHold> + use<> {
        let (client, holder) = (Arc::clone(&self.row.id), Arc::clone(&self.row.label));
        let age = self.silence(now);
        let ended = move |hold| {
            let (client, holder) = (Arc::clone(&client), Arc::clone(&holder));
            EndedHold { client, holder, age, hold }
        };
        holds.into_iter().map(ended)
    }

    /// Forgets the holds whose leases have ended while it did not answer: the store has given them up as well.
    fn forget_holds(&mut self, now: Instant) -> impl Iterator<Item = EndedHold> + use<> {
        let silence = self.silence(now);
        let holds = std::mem::take(&mut self.holds);
        let (kept, ended) = holds.into_iter().partition(|hold| hold.lease_left >= silence);
        self.holds = kept;
        self.ended(ended, now)
    }

    /// The holds that are not in the next answer.
    fn ended_in(mut self, next: &Self) -> impl Iterator<Item = EndedHold> + use<> {
        let passed = next.answered.saturating_duration_since(self.answered);
        // The client has read its holds at some time while it was asked.
        let (least, most) = (passed.saturating_sub(self.took), passed + next.took);
        let mut reported: HashMap<&str, Vec<&HoldInfo>> = HashMap::new();
        for hold in &next.holds {
            reported.entry(&hold.key).or_default().push(hold);
        }
        self.holds.retain(|hold| {
            let (earliest, latest) = (hold.held_for + least, hold.held_for + most + ROUNDING * 2);
            let is_same = |next: &&HoldInfo| {
                (next.mode, next.permits) == (hold.mode, hold.permits)
                    && (earliest..=latest).contains(&(next.held_for + ROUNDING))
            };
            !reported.get(&*hold.key).is_some_and(|next| next.iter().any(is_same))
        });
        let ended = std::mem::take(&mut self.holds);
        self.ended(ended, next.answered)
    }
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
    /// Adds the answers of a round.
    pub(crate) fn add(&mut self, asked: &mut AskedRound) -> ClientRound {
        let (now, took) = (asked.began, asked.took);
        let mut ended = Vec::new();
        let mut measured = measured(asked);
        let mut waiting = waiting(&asked.waits);
        for answer in &mut asked.holds.answers {
            let id = id_of(&answer.client);
            let known = || self.known.get(&id).map(|known| known.row.measured.clone());
            let measured = measured.remove(&id).or_else(known).unwrap_or_default();
            let waiting = waiting.remove(&id).unwrap_or_default();
            let row = row_of(&id, answer, waiting, measured);
            let holds = std::mem::take(&mut answer.found);
            let client = KnownClient { row, answered: now, took, holds };
            if let Some(earlier) = self.known.remove(&id) {
                // Holds that do not fit into an answer have not ended.
                if client.row.complete {
                    ended.extend(earlier.ended_in(&client));
                }
            }
            self.known.insert(id, client);
        }
        for known in self.known.values_mut() {
            ended.extend(known.forget_holds(now));
        }
        for mut forgotten in self.forget(now, asked.holds.unanswered) {
            let holds = std::mem::take(&mut forgotten.holds);
            ended.extend(forgotten.ended(holds, now));
        }
        let row = |known: &KnownClient| {
            let silent = known.silence(now);
            let silent = (!silent.is_zero()).then(|| milliseconds(silent));
            ClientRow { silent, ..known.row.clone() }
        };
        let mut rows: Vec<_> = self.known.values().map(row).collect();
        rows.sort_by(|one, other| {
            let order = |row: &ClientRow| (row.silent.is_none(), row.measured.up);
            order(one).cmp(&order(other)).then_with(|| one.label.cmp(&other.label))
        });
        ClientRound { rows, ended }
    }

    /// Forgets clients that do not answer, except as many as the store has counted. One that has ended cannot be
    /// distinguished from one that is suspended, so those with locks stay first, and then those that have answered last.
    /// Returns those that it has forgotten.
    fn forget(&mut self, now: Instant, unanswered: Option<u64>) -> Vec<KnownClient> {
        let most = unanswered.and_then(|count| usize::try_from(count).ok());
        let most = most.map_or(MOST_SILENT, |count| count.min(MOST_SILENT));
        let mut silent: Vec<_> = self
            .known
            .iter()
            .filter(|(_, known)| !known.silence(now).is_zero())
            .map(|(id, known)| (known.holds.is_empty(), known.silence(now), id.clone()))
            .collect();
        silent.sort_unstable();
        let is_forgotten = |(at, (_, silence, _)): &(usize, (_, Duration, String))| {
            *at >= most || *silence >= REMEMBERED
        };
        let forgotten = silent.into_iter().enumerate().filter(is_forgotten);
        forgotten.filter_map(|(_, (_, _, id))| self.known.remove(&id)).collect()
    }

    /// Forgets all clients.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The locks of all clients, and for how long their clients have not answered.
    pub(crate) fn holds(
        &self,
        now: Instant,
    ) -> impl Iterator<Item = (&ClientRow, Duration, &HoldInfo)> {
        self.known.values().flat_map(move |known| {
            let silent = known.silence(now);
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
