//! The locks that are held or waited for, with the interesting ones first.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use lock_runtime::LockMode;
use lock_runtime::admin::{ClientAnswers, HoldInfo, WaitInfo};
use serde::Serialize;

use crate::clients::{ClientBook, ClientRow, milliseconds};

/// The most rows that are sent.
pub(crate) const MOST_ROWS: usize = 500;

/// A lock and one of its holders, or a key that is waited for and that nobody holds who answers.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LockRow {
    /// With the namespace.
    pub(crate) key: String,
    pub(crate) template: Option<String>,
    pub(crate) function: Option<String>,
    /// The id of the client that has it.
    pub(crate) client: Option<Arc<str>>,
    /// Who that is.
    pub(crate) holder: Option<Arc<str>>,
    /// In ms.
    pub(crate) held: Option<u64>,
    /// What is left of its lease, in ms.
    pub(crate) left: Option<u64>,
    /// The length of its lease, in ms; `None` if the client does not report it.
    lease: Option<u64>,
    renewed: bool,
    /// The calls of all clients that wait for the key, and the number of these clients.
    pub(crate) calls: u64,
    pub(crate) processes: u64,
    mode: Option<&'static str>,
    /// The permits of the holder, and their limit.
    permits: Option<(u32, u32)>,
    fence: Option<u64>,
    revocable: bool,
    /// For how long the holder has not answered, in ms.
    pub(crate) silent: Option<u64>,
}

impl LockRow {
    /// Those whose holder does not answer, then waited for by most, then held the longest.
    fn order(&self) -> impl Ord + use<> {
        (
            Reverse(self.silent.is_some()),
            Reverse(self.calls),
            Reverse(self.held.unwrap_or(u64::MAX)),
        )
    }

    /// The texts that are searched, in lower case.
    fn searched(&self) -> String {
        let texts = [self.template.as_deref(), self.function.as_deref(), self.holder.as_deref()];
        let texts = texts.into_iter().flatten();
        texts.fold(self.key.to_lowercase(), |all, text| all + "\n" + &text.to_lowercase())
    }
}

/// The number of rounds after which a key that is waited for counts as held by nobody who answers. A lock that is
/// passed on between two questions has no holder for a moment.
const UNCLAIMED_ROUNDS: u32 = 3;

/// For how many rounds keys have been waited for, without a holder who answers.
pub(crate) type UnclaimedKeys = HashMap<String, u32>;

/// All locks of a round.
#[derive(Debug, Default)]
pub(crate) struct LockRows {
    /// In the order of interest.
    pub(crate) rows: Vec<LockRow>,
    /// The number of calls that wait.
    pub(crate) waiting: u64,
    /// The number of keys that they wait for.
    pub(crate) waited_for: usize,
    /// The texts of each row, made by the first search.
    searched: OnceLock<Vec<String>>,
}

impl LockRows {
    pub(crate) fn new(
        clients: &ClientBook,
        waits: ClientAnswers<Vec<WaitInfo>>,
        unclaimed: &mut UnclaimedKeys,
        now: Instant,
    ) -> Self {
        let mut queues: HashMap<String, (u64, u64)> = HashMap::new();
        for wait in waits.answers.into_iter().flat_map(|answer| answer.found) {
            let (calls, processes) = queues.entry(wait.key).or_default();
            (*calls, *processes) = (calls.saturating_add(wait.calls), *processes + 1);
        }
        let waiting = queues.values().fold(0, |sum, (calls, _)| u64::saturating_add(sum, *calls));
        let waited_for = queues.len();
        let mut rows = Vec::new();
        let mut found = Vec::new();
        for (client, silent, hold) in clients.holds(now) {
            // The store has given up this hold as well.
            if silent > hold.lease_left {
                continue;
            }
            let (calls, processes) = match queues.get(&hold.key) {
                Some(queue) => {
                    found.push(rows.len());
                    *queue
                }
                None => (hold.waiting, u64::from(hold.waiting > 0)),
            };
            rows.push(LockRow { calls, processes, ..row_of(client, milliseconds(silent), hold) });
        }
        for at in found {
            queues.remove(&rows[at].key);
        }
        let earlier = std::mem::take(unclaimed);
        for (key, (calls, processes)) in queues {
            let rounds = earlier.get(&key).map_or(1, |rounds| rounds.saturating_add(1));
            unclaimed.insert(key.clone(), rounds);
            if rounds >= UNCLAIMED_ROUNDS {
                rows.push(LockRow { key, calls, processes, ..LockRow::without_holder() });
            }
        }
        rows.sort_unstable_by(|one, other| {
            let by_name = || (&one.key, &one.client).cmp(&(&other.key, &other.client));
            one.order().cmp(&other.order()).then_with(by_name)
        });
        Self { rows, waiting, waited_for, searched: OnceLock::new() }
    }

    /// The first rows that contain a text, and how many there are.
    pub(crate) fn search(&self, text: &str) -> (Vec<&LockRow>, usize) {
        let text = text.to_lowercase();
        let searched =
            self.searched.get_or_init(|| self.rows.iter().map(LockRow::searched).collect());
        let (mut first, mut count) = (Vec::new(), 0);
        for (row, searched) in self.rows.iter().zip(searched) {
            if searched.contains(&text) {
                count += 1;
                if first.len() < MOST_ROWS {
                    first.push(row);
                }
            }
        }
        (first, count)
    }

    /// The holders of a key, and the key alone if nobody holds it who answers.
    pub(crate) fn of(&self, key: &str) -> Vec<&LockRow> {
        self.rows.iter().filter(|row| row.key == key).take(MOST_ROWS).collect()
    }
}

impl LockRow {
    fn without_holder() -> Self {
        Self {
            key: String::new(),
            template: None,
            function: None,
            client: None,
            holder: None,
            held: None,
            left: None,
            lease: None,
            renewed: false,
            calls: 0,
            processes: 0,
            mode: None,
            permits: None,
            fence: None,
            revocable: false,
            silent: None,
        }
    }
}

fn row_of(client: &ClientRow, silent: u64, hold: &HoldInfo) -> LockRow {
    LockRow {
        key: hold.key.clone(),
        template: Some(hold.template.clone()),
        function: hold.function.clone(),
        client: Some(Arc::clone(&client.id)),
        holder: Some(Arc::clone(&client.label)),
        held: Some(milliseconds(hold.held_for).saturating_add(silent)),
        left: Some(milliseconds(hold.lease_left).saturating_sub(silent)),
        lease: hold.lease.map(milliseconds),
        renewed: hold.is_renewed,
        mode: hold.mode.map(LockMode::as_str),
        permits: hold.permits.map(|permits| (permits.count(), permits.limit())),
        fence: hold.fencing_token,
        revocable: client.revocable,
        silent: (silent > 0).then_some(silent),
        ..LockRow::without_holder()
    }
}
