//! What the clients have answered about their locks, and what follows for the locks that the store knows.

use std::collections::{BTreeSet, HashMap, HashSet};

use lock_runtime::ClientInfo;
use lock_runtime::admin::{ClientAnswers, HoldInfo, WaitInfo};

use crate::listed_lock::ListedLock;
use crate::messages::Messages;

/// The answers of all clients.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    holds: Vec<(ClientInfo, HoldInfo)>,
    /// The calls that wait, by key.
    waiting: HashMap<String, u64>,
    /// The ids of the clients that have answered.
    clients: BTreeSet<String>,
    /// The names of the clients whose answers were cut off.
    cut_off: BTreeSet<String>,
    /// The number of clients that have not answered, if it is known.
    pub(crate) unanswered: Option<u64>,
}

impl Answered {
    pub(crate) fn new(
        holds: ClientAnswers<Vec<HoldInfo>>,
        waits: ClientAnswers<Vec<WaitInfo>>,
    ) -> Self {
        // If one of both is not known, neither is whether somebody is missing.
        let unanswered = holds.unanswered.zip(waits.unanswered).map(|(one, other)| one.max(other));
        let mut answered = Self { unanswered, ..Self::default() };
        for answer in holds.answers {
            answered.clients.extend(answer.client.id.clone());
            answered.cut_off.extend((!answer.is_complete).then(|| answer.client.to_string()));
            let holds = answer.found.into_iter().map(|hold| (answer.client.clone(), hold));
            answered.holds.extend(holds);
        }
        for answer in waits.answers {
            answered.cut_off.extend((!answer.is_complete).then(|| answer.client.to_string()));
            for wait in answer.found {
                let calls = answered.waiting.entry(wait.key).or_default();
                *calls = calls.saturating_add(wait.calls);
            }
        }
        answered
    }

    /// Tells what is missing.
    pub(crate) fn complain(&self, messages: Messages) {
        complain(self.unanswered, self.cut_off.iter(), messages);
    }

    /// The number of calls that wait for a key.
    pub(crate) fn waiting(&self, key: &str) -> u64 {
        self.waiting.get(key).copied().unwrap_or_default()
    }

    /// Adds the answers to locks of the store. Each answer belongs to one of them.
    pub(crate) fn added_to(&self, mut locks: Vec<ListedLock>) -> Vec<ListedLock> {
        let mut holds: HashMap<(String, String), Vec<usize>> = HashMap::new();
        for (at, (client, hold)) in self.holds.iter().enumerate() {
            if let Some(id) = client.id.clone() {
                holds.entry((id, hold.key.clone())).or_default().push(at);
            }
        }
        // Nothing tells which of several permits of a client has which fencing token.
        let ambiguous: HashSet<usize> =
            holds.values().filter(|places| places.len() > 1).flatten().copied().collect();
        for lock in &mut locks {
            lock.waiting = Some(self.waiting(&lock.key));
            // Only clients of this library can be asked.
            let id = lock.holder.as_ref().and_then(|holder| holder.id.clone());
            let Some(id) = id else { continue };
            // A client that has answered is alive, even if its answer does not contain this lock.
            let is_absent = self.unanswered == Some(0) && !self.clients.contains(&id);
            let answer = holds.get_mut(&(id, lock.key.clone())).and_then(Vec::pop);
            match answer {
                Some(at) => {
                    let (client, mut hold) = self.holds[at].clone();
                    if ambiguous.contains(&at) {
                        hold.fencing_token = None;
                    }
                    *lock = std::mem::take(lock).with_answer(&client, hold);
                }
                None => lock.answers = is_absent.then_some(false),
            }
        }
        locks
    }

    /// The locks without the store.
    pub(crate) fn into_locks(mut self) -> Vec<ListedLock> {
        let mut locks = Vec::new();
        for (client, hold) in std::mem::take(&mut self.holds) {
            let lock = ListedLock::without_holder(hold.key.clone(), self.waiting(&hold.key));
            locks.push(lock.with_answer(&client, hold));
        }
        for lock in &locks {
            self.waiting.remove(&lock.key);
        }
        let waiting = self.waiting.into_iter();
        locks.extend(waiting.map(|(key, calls)| ListedLock::without_holder(key, calls)));
        locks
    }
}

/// Tells how many clients have not answered, and whose answers were cut off.
pub(crate) fn complain(
    unanswered: Option<u64>,
    cut_off: impl Iterator<Item = impl std::fmt::Display>,
    messages: Messages,
) {
    match unanswered {
        Some(0) => {}
        Some(1) => messages.warning("one client has not answered"),
        Some(count) => messages.warning(format!("{count} clients have not answered")),
        None => messages.warning("the store does not tell how many clients have not answered"),
    }
    for client in cut_off {
        messages.warning(format!("the answer of {client} was too long, and is cut off"));
    }
}
