//! From the answers of a round to what is sent.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::body::Bytes;
use lock_runtime::LockError;
use lock_runtime::admin::{ClientAnswers, ClientSnapshot};

use crate::asked::AskedRound;
use crate::clients::{ClientBook, ClientRow, MOST_CLIENTS, milliseconds};
use crate::contention::{ContentionWindow, Increments, TemplateRow};
use crate::history::{RoundHistory, RoundSample};
use crate::locks::{LockRows, MOST_ROWS, UnclaimedKeys};
use crate::losses::LossBook;
use crate::view::{SentProblem, SentState, SentTotals, VERSION, View};

/// What is remembered from one round to the next.
pub(crate) struct Digest {
    namespace: String,
    refresh: Duration,
    allow_actions: bool,
    clients: ClientBook,
    contention: ContentionWindow,
    unclaimed: UnclaimedKeys,
    losses: LossBook,
    history: RoundHistory,
    last: Option<LastRound>,
    /// Why the last round has failed, and since when the rounds fail.
    problem: Option<(String, u64)>,
}

/// The last round with answers.
struct LastRound {
    at: Instant,
    totals: SentTotals,
    locks: Arc<LockRows>,
    clients: Vec<ClientRow>,
    contention: Vec<TemplateRow>,
    sample: RoundSample,
}

impl Digest {
    pub(crate) fn new(namespace: &str, refresh: Duration, allow_actions: bool) -> Self {
        Self {
            namespace: namespace.to_owned(),
            refresh,
            allow_actions,
            clients: ClientBook::default(),
            contention: ContentionWindow::new(refresh),
            unclaimed: UnclaimedKeys::new(),
            losses: LossBook::default(),
            history: RoundHistory::default(),
            last: None,
            problem: None,
        }
    }

    pub(crate) fn needs_snapshots(&self, at: Instant) -> bool {
        self.contention.is_due(at)
    }

    pub(crate) fn needs_losses(&self, snapshots: &ClientAnswers<ClientSnapshot>) -> bool {
        self.losses.needs_answers(snapshots, Instant::now())
    }

    /// Adds the answers of a round, or the error that has ended it.
    pub(crate) fn add(&mut self, asked: Result<AskedRound, LockError>) -> View {
        let now = unix_now();
        match asked {
            Ok(asked) => {
                self.problem = None;
                self.add_answers(asked, now);
                self.view(now)
            }
            Err(error) => {
                let is_last = matches!(error, LockError::ShutDown);
                View { is_last, ..self.fail(&error.to_string()) }
            }
        }
    }

    /// Adds a round that has ended with this problem.
    pub(crate) fn fail(&mut self, problem: &str) -> View {
        let now = unix_now();
        let since = self.problem.as_ref().map_or(now, |(_, since)| *since);
        self.problem = Some((problem.to_owned(), since));
        self.view(now)
    }

    /// Forgets the locks and the clients, because nobody watches.
    ///
    /// The last losses and the sums of the last minutes stay.
    pub(crate) fn forget(&mut self) {
        self.clients.clear();
        self.contention.forget_clients();
        self.unclaimed.clear();
        (self.last, self.problem) = (None, None);
    }

    /// Whether it has no locks and no clients.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_none() && self.clients.is_empty() && self.contention.has_no_clients()
    }

    fn add_answers(&mut self, mut asked: AskedRound, now: u64) {
        let clients = self.clients.add(&mut asked);
        let locks = LockRows::new(&self.clients, asked.waits, &mut self.unclaimed, asked.began);
        let mut added = Increments::default();
        if let Some(snapshots) = &asked.snapshots {
            added = self.contention.add(snapshots, asked.began);
            if let Some(losses) = asked.losses {
                self.losses.add(snapshots, losses, asked.began);
            }
        }
        let answered = || clients.iter().filter(|client| client.silent.is_none());
        let held = answered().map(|client| client.held).fold(0, u64::saturating_add);
        let lost = answered().map(|client| client.measured.lost);
        let totals = SentTotals {
            held,
            waiting: locks.waiting,
            waited_for: locks.waited_for,
            lost: lost.fold(0, u64::saturating_add),
            clients: answered().count(),
            unanswered: asked.holds.unanswered,
            incomplete: answered().filter(|client| !client.complete).count(),
            down: answered().filter(|client| !client.measured.up).count(),
            took: (asked.took.as_secs_f64() * 10_000.0).round() / 10.0,
        };
        let sample = RoundSample::new(now, held, locks.waiting, added);
        self.history.add(sample);
        let contention = self.contention.rows();
        let (at, locks) = (asked.began, Arc::new(locks));
        self.last = Some(LastRound { at, totals, locks, clients, contention, sample });
    }

    fn view(&mut self, now: u64) -> View {
        let losses = self.last.is_some().then(|| self.losses.sent(now));
        let last = self.last.as_ref();
        let rows = last.map_or(&[][..], |last| &last.locks.rows);
        let clients = last.map_or(&[][..], |last| &last.clients);
        let problem = self.problem.as_ref();
        let state = SentState {
            v: VERSION,
            now,
            refresh: milliseconds(self.refresh),
            actions: self.allow_actions,
            namespace: &self.namespace,
            problem: problem.map(|(text, since)| SentProblem { text, since: *since }),
            totals: last.map(|last| last.totals),
            rows: &rows[..rows.len().min(MOST_ROWS)],
            rest: rows.len().saturating_sub(MOST_ROWS),
            contention: last.map_or(&[], |last| &last.contention),
            covered: milliseconds(self.contention.covered()),
            losses,
            clients: &clients[..clients.len().min(MOST_CLIENTS)],
            clients_rest: clients.len().saturating_sub(MOST_CLIENTS),
            sample: last.filter(|_| problem.is_none()).map(|last| last.sample),
        };
        View {
            at: last.map(|last| last.at),
            state: Bytes::from(json(&state)),
            history: Bytes::from(json(self.history.samples())),
            locks: last.map(|last| Arc::clone(&last.locks)).unwrap_or_default(),
            is_last: false,
        }
    }
}

/// The Unix time in ms.
fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, milliseconds)
}

/// A value as JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    // It fails only for maps whose keys are no texts, which no value has.
    serde_json::to_string(value).unwrap_or_else(|_| "{}".to_owned())
}

#[cfg(test)]
mod tests {
    use lock_runtime::LockClient;
    use lock_runtime::admin::LockAdmin;
    use serde_json::Value;

    use super::*;

    fn state(view: &View) -> Value {
        serde_json::from_slice(&view.state).expect("JSON")
    }

    #[tokio::test]
    async fn a_round_that_fails_keeps_the_last_answers() {
        let client = LockClient::memory();
        let guard = client.lock("k").acquire().await.expect("free");
        let admin = LockAdmin::new(&client);
        let mut digest = Digest::new("", Duration::from_secs(1), false);
        let asked = AskedRound::ask(&admin, true, |_| true).await;
        assert_eq!(state(&digest.add(asked))["problem"], Value::Null);
        let first = state(&digest.fail("broken"));
        let second = state(&digest.fail("broken again"));
        assert_eq!(
            (&first["problem"]["text"], &first["rows"][0]["key"]),
            (&"broken".into(), &"k".into())
        );
        assert_eq!(second["problem"]["text"], "broken again");
        assert_eq!(second["problem"]["since"], first["problem"]["since"]);
        drop(guard);
        client.shutdown().await.expect("nothing is held");
        let asked = AskedRound::ask(&admin, true, |_| true).await;
        assert!(digest.add(asked).is_last);
    }
}
