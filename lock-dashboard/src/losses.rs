//! The locks that were lost, as the clients report them.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant, SystemTime};

use lock_runtime::admin::{ClientAnswer, ClientAnswers, ClientSnapshot, LossInfo};
use serde::Serialize;

use crate::clients::{id_of, milliseconds};

/// The most losses that are remembered with their keys.
const MOST_REMEMBERED: usize = 1000;

/// The most losses that are sent.
const MOST_LOSSES: usize = 100;

/// The number of minutes of the time line.
const MINUTES: u64 = 60;

/// The losses that a client remembers.
const MOST_OF_A_CLIENT: usize = 1000;

/// The shortest time between two questions for losses. Each answer has all that the client remembers.
const INTERVAL: Duration = Duration::from_secs(10);

/// A loss, as the page shows it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LossRow {
    /// Unix time in ms, by the clock of the client.
    at: u64,
    key: String,
    reason: &'static str,
    template: Option<String>,
    function: Option<String>,
    held: Option<u64>,
    holder: String,
}

/// The losses that are sent.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SentLosses {
    /// The last ones first.
    recent: Vec<LossRow>,
    /// The number of the earlier ones that are known.
    rest: usize,
    /// Those of the last hour, for each minute; the last one is the current minute.
    minutes: Vec<u64>,
    /// Whether a client has lost more in the last hour than it remembers.
    more: bool,
}

/// The losses of all clients, also of those that have ended since.
#[derive(Default)]
pub(crate) struct LossBook {
    /// By time, client and key.
    losses: BTreeMap<(u64, String, String), LossRow>,
    /// Counted for each client, because more are lost than are remembered.
    minutes: HashMap<String, ClientMinutes>,
    /// How many locks each client had lost when it last answered the question for its losses.
    counters: HashMap<String, u64>,
    asked: Option<Instant>,
}

/// The losses of one client in each minute since 1970.
#[derive(Default)]
struct ClientMinutes {
    counts: BTreeMap<u64, u64>,
    /// The minute of the first loss that a client has reported which may have forgotten earlier ones.
    forgotten_before: Option<u64>,
}

impl LossBook {
    /// Whether there are losses that are not known, and the last question is long enough ago.
    pub(crate) fn needs_answers(
        &self,
        snapshots: &ClientAnswers<ClientSnapshot>,
        at: Instant,
    ) -> bool {
        let has_new = |answer: &ClientAnswer<ClientSnapshot>| {
            let known = self.counters.get(&id_of(&answer.client));
            answer.found.lost != known.copied().unwrap_or_default()
        };
        let is_due = |asked| at.saturating_duration_since(asked) >= INTERVAL;
        self.asked.is_none_or(is_due) && snapshots.answers.iter().any(has_new)
    }

    /// Adds the answers to a question for losses, which followed the one for `snapshots`.
    pub(crate) fn add(
        &mut self,
        snapshots: &ClientAnswers<ClientSnapshot>,
        losses: ClientAnswers<Vec<LossInfo>>,
        at: Instant,
    ) {
        self.asked = Some(at);
        let counter =
            |answer: &ClientAnswer<ClientSnapshot>| (id_of(&answer.client), answer.found.lost);
        let mut counters: HashMap<_, _> = snapshots.answers.iter().map(counter).collect();
        self.counters.retain(|id, _| counters.contains_key(id));
        for answer in losses.answers {
            let id = id_of(&answer.client);
            if let Some(counter) = counters.remove(&id) {
                self.counters.insert(id.clone(), counter);
            }
            self.add_answer(&id, answer);
        }
        while self.losses.len() > MOST_REMEMBERED {
            self.losses.pop_first();
        }
    }

    fn add_answer(&mut self, id: &str, answer: ClientAnswer<Vec<LossInfo>>) {
        let is_all = answer.is_complete && answer.found.len() < MOST_OF_A_CLIENT;
        let mut counts = BTreeMap::<u64, u64>::new();
        for loss in answer.found {
            let at = loss.at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, milliseconds);
            *counts.entry(minute(at)).or_default() += 1;
            let row = LossRow {
                at,
                key: loss.key.clone(),
                reason: loss.reason.as_str(),
                template: loss.template,
                function: loss.function,
                held: loss.held_for.map(milliseconds),
                holder: answer.client.to_string(),
            };
            self.losses.insert((at, id.to_owned(), loss.key), row);
        }
        let known = self.minutes.entry(id.to_owned()).or_default();
        known.forgotten_before = match counts.first_key_value() {
            Some((first, _)) if !is_all => Some(*first),
            _ => None,
        };
        for (minute, count) in counts {
            // The client may have forgotten a part of this minute since.
            let known = known.counts.entry(minute).or_default();
            *known = count.max(*known);
        }
    }

    /// What is sent at this time, and forgets what is older than the time line.
    pub(crate) fn sent(&mut self, now: u64) -> SentLosses {
        let first = (minute(now) + 1).saturating_sub(MINUTES);
        let mut more = false;
        let mut minutes: Vec<u64> = (0..MINUTES).map(|_| 0).collect();
        self.minutes.retain(|_, client| {
            client.counts = client.counts.split_off(&first);
            more |= client.forgotten_before.is_some_and(|before| before >= first);
            !client.counts.is_empty()
        });
        for (minute, count) in self.minutes.values().flat_map(|client| &client.counts) {
            // The clock of a client may be ahead.
            let at = usize::try_from(minute - first).unwrap_or(usize::MAX).min(minutes.len() - 1);
            minutes[at] = minutes[at].saturating_add(*count);
        }
        SentLosses {
            recent: self.losses.values().rev().take(MOST_LOSSES).cloned().collect(),
            rest: self.losses.len().saturating_sub(MOST_LOSSES),
            minutes,
            more,
        }
    }
}

fn minute(at: u64) -> u64 {
    at / 60_000
}
