//! The locks that were lost, as the clients tell them.

use std::collections::BTreeMap;
use std::time::SystemTime;

use lock_runtime::admin::{ClientAnswers, ClientSnapshot, LossInfo};
use serde::Serialize;

use crate::clients::{id_of, milliseconds};

/// The most losses that are remembered.
const MOST_REMEMBERED: usize = 1000;

/// The most losses that are sent.
const MOST_LOSSES: usize = 100;

/// The number of minutes of the time line.
const MINUTES: usize = 60;

/// The rounds after which the losses are asked for although their number has not changed.
const ROUNDS: u32 = 30;

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
    minutes: Vec<u32>,
}

/// The losses of all clients, also of those that have ended since.
#[derive(Default)]
pub(crate) struct LossBook {
    /// By time, client and key.
    losses: BTreeMap<(u64, String, String), LossRow>,
    /// How many locks all clients had lost when they were asked.
    asked: Option<u64>,
    rounds: u32,
}

impl LossBook {
    /// Whether there may be losses that are not known.
    pub(crate) fn needs_answers(&self, snapshots: &ClientAnswers<ClientSnapshot>) -> bool {
        self.asked != Some(total(snapshots)) || self.rounds >= ROUNDS
    }

    /// Adds the answers of a round, if the losses were asked for.
    pub(crate) fn add(&mut self, total: u64, losses: Option<ClientAnswers<Vec<LossInfo>>>) {
        self.rounds += 1;
        let Some(losses) = losses else { return };
        (self.asked, self.rounds) = (Some(total), 0);
        for answer in losses.answers {
            let id = id_of(&answer.client);
            for loss in answer.found {
                let at = loss.at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, milliseconds);
                let row = LossRow {
                    at,
                    key: loss.key.clone(),
                    reason: loss.reason.as_str(),
                    template: loss.template,
                    function: loss.function,
                    held: loss.held_for.map(milliseconds),
                    holder: answer.client.to_string(),
                };
                self.losses.insert((at, id.clone(), loss.key), row);
            }
        }
        while self.losses.len() > MOST_REMEMBERED {
            self.losses.pop_first();
        }
    }

    /// What is sent at this time.
    pub(crate) fn sent(&self, now: u64) -> SentLosses {
        let mut minutes = vec![0_u32; MINUTES];
        for loss in self.losses.values() {
            // The clock of a client may be ahead.
            let minute = usize::try_from(now.saturating_sub(loss.at) / 60_000).unwrap_or(MINUTES);
            if let Some(count) = MINUTES.checked_sub(minute + 1).and_then(|at| minutes.get_mut(at))
            {
                *count += 1;
            }
        }
        SentLosses {
            recent: self.losses.values().rev().take(MOST_LOSSES).cloned().collect(),
            rest: self.losses.len().saturating_sub(MOST_LOSSES),
            minutes,
        }
    }
}

/// The number of all losses of the clients.
pub(crate) fn total(snapshots: &ClientAnswers<ClientSnapshot>) -> u64 {
    let lost = snapshots.answers.iter().map(|answer| answer.found.lost);
    lost.fold(0, u64::saturating_add)
}
