//! Noticing that the master has changed while all connections still work.
//!
//! A planned failover breaks no connection, and for about ten seconds the earlier master accepts
//! requests whose effects are lost afterwards. A client therefore subscribes to the announcements
//! of *every* sentinel, because a single one may be cut off. It also asks each of them every second,
//! in case an announcement was lost. Each sentinel has a task of its own, so that one that does not
//! answer delays no other. The watch also finds further sentinels.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::Level;

use super::super::announced::{AnnouncedAddresses, ServerAddress};
use super::answer::{SentinelAnswer, candidates};
use super::current::{ANSWER_COUNTS_FOR, CurrentMaster};
use super::known::KnownSentinels;
use super::question::SentinelConnection;
use crate::transport::endpoint::Endpoint;
use lock_core::backoff::jittered;
use lock_core::clock::BootInstant;
use lock_core::events;
use lock_core::store::contract::StoreError;

/// The pause between two questions to a sentinel, before jitter.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a new connection to a sentinel and its first answers may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// How long the answers over an open connection may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// The first questions to a sentinel, and then one of this many, are also about the other sentinels.
const FIRST_SEARCHES: u32 = 5;
const QUESTIONS_PER_SEARCH: u32 = 10;

/// How long the lookup of a host name may take.
const LOOKUP_PATIENCE: Duration = Duration::from_secs(1);

/// After how long without an answer of any sentinel the log says so.
const SILENT_AFTER: Duration = Duration::from_secs(10);

/// The reports that may wait, which is more than there are sentinels.
const REPORTS: usize = 64;

/// Watches all sentinels of one master.
pub(super) struct Watcher {
    name: Arc<str>,
    addresses: Arc<AnnouncedAddresses>,
    known: Arc<KnownSentinels>,
    current: Arc<CurrentMaster>,
    /// The latest answer of each sentinel that answers, by its address, and when it was asked.
    answers: HashMap<String, (BootInstant, SentinelAnswer)>,
    /// When a sentinel last answered.
    answered: BootInstant,
    /// The log has said that no sentinel answers.
    is_silent: bool,
    /// The task that adds sentinels.
    learning: Option<AbortHandle>,
}

/// What a sentinel has just answered; `None` if it has not.
type Report = (Arc<Endpoint>, Option<Heard>);

/// The answers of one sentinel.
struct Heard {
    /// When the question was asked.
    asked: BootInstant,
    answer: SentinelAnswer,
    /// The other sentinels, if the question was about them as well.
    others: Vec<ServerAddress>,
}

impl Watcher {
    pub(super) fn new(
        name: Arc<str>,
        addresses: Arc<AnnouncedAddresses>,
        known: Arc<KnownSentinels>,
        current: Arc<CurrentMaster>,
    ) -> Self {
        Self {
            name,
            addresses,
            known,
            current,
            answers: HashMap::new(),
            answered: BootInstant::now(),
            is_silent: false,
            learning: None,
        }
    }

    /// Runs until the runtime ends.
    pub(super) async fn run(mut self) {
        let (sender, mut reports) = mpsc::channel(REPORTS);
        let mut tasks = JoinSet::new();
        let mut running: Vec<(Arc<Endpoint>, AbortHandle)> = Vec::new();
        loop {
            self.known.forget_silent(BootInstant::now());
            let known = self.known.all();
            running.retain(|(sentinel, task)| {
                let is_known = known.iter().any(|known| Arc::ptr_eq(known, sentinel));
                if !is_known {
                    task.abort();
                    self.answers.remove(sentinel.shown());
                }
                is_known
            });
            for sentinel in known {
                if !running.iter().any(|(running, _)| Arc::ptr_eq(running, &sentinel)) {
                    let (name, sender) = (Arc::clone(&self.name), sender.clone());
                    let task = tasks.spawn(watch(Arc::clone(&sentinel), name, sender));
                    running.push((sentinel, task));
                }
            }
            // Drops the tasks that have ended.
            while tasks.try_join_next().is_some() {}
            // This task has a sender, so there is always a report to come.
            if let Some((sentinel, heard)) = reports.recv().await {
                self.process(&sentinel, heard);
            }
        }
    }

    fn process(&mut self, sentinel: &Arc<Endpoint>, heard: Option<Heard>) {
        let now = BootInstant::now();
        let Some(Heard { asked, answer, others }) = heard else {
            self.answers.remove(sentinel.shown());
            self.report_silence(now);
            return;
        };
        self.answered = now;
        self.report_silence(now);
        self.known.answered(sentinel, now);
        let (current, named) = (&self.current, answer.master.clone());
        self.answers.insert(sentinel.shown().to_owned(), (asked, answer));
        // An answer from before the last change is no vote for a return to the earlier master.
        let since = current.since();
        self.answers.retain(|_, (asked, _)| {
            since.is_none_or(|since| *asked >= since) && now.since(*asked) < ANSWER_COUNTS_FOR
        });
        let answers = self.answers.values().map(|(_, answer)| answer);
        if let [candidate] = &candidates(answers)[..] {
            current.noticed(candidate, self.known.voters(), now);
        }
        // A sentinel that names another master may belong to another group.
        let is_own = named.is_some() && named == current.address();
        let is_learning = self.learning.as_ref().is_some_and(|task| !task.is_finished());
        if is_own && !others.is_empty() && !is_learning {
            let (addresses, known) = (Arc::clone(&self.addresses), Arc::clone(&self.known));
            let task = tokio::spawn(learn(addresses, known, others));
            self.learning = Some(task.abort_handle());
        }
    }

    /// Logs that no sentinel answers, or that one answers again.
    fn report_silence(&mut self, now: BootInstant) {
        let is_silent = now.since(self.answered) >= SILENT_AFTER;
        if is_silent == self.is_silent {
            return;
        }
        self.is_silent = is_silent;
        let name = Arc::clone(&self.name);
        if is_silent {
            events::emit(Level::WARN, move || {
                tracing::warn!(
                    target: "lock_runtime::store::redis",
                    master = &*name,
                    "no sentinel answers; a failover of a master that still works is not noticed"
                );
            });
        } else {
            events::emit(Level::INFO, move || {
                tracing::info!(target: "lock_runtime::store::redis", master = &*name, "a sentinel answers again");
            });
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(task) = &self.learning {
            task.abort();
        }
    }
}

/// Adds the sentinels that another one has named.
async fn learn(
    addresses: Arc<AnnouncedAddresses>,
    known: Arc<KnownSentinels>,
    mut others: Vec<ServerAddress>,
) {
    if addresses.map(others.iter_mut().map(|(host, port)| (host, port))).await.is_err() {
        return;
    }
    // Sentinels are named by their IP addresses. Those that the URL names by a host name are left
    // out, unless the host name stands for several sentinels.
    for (host, port) in known.seed_names() {
        let found = timeout(LOOKUP_PATIENCE, lookup_host((host, port))).await;
        let found: Vec<SocketAddr> = match found {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(_)) | Err(_) => continue,
        };
        let is_one = [SocketAddr::is_ipv4, SocketAddr::is_ipv6]
            .iter()
            .all(|is_of_version| found.iter().filter(|seed| is_of_version(seed)).count() <= 1);
        if is_one {
            let is_seed = |(ip, port): &ServerAddress| {
                found.iter().any(|seed| seed.ip().to_string() == *ip && seed.port() == *port)
            };
            others.retain(|other| !is_seed(other));
        }
    }
    known.learn(others, BootInstant::now());
}

/// Watches one sentinel, and reports each of its answers.
async fn watch(sentinel: Arc<Endpoint>, name: Arc<str>, reports: mpsc::Sender<Report>) {
    let changed = Arc::new(Notify::new());
    let mut open = None;
    let mut answered = 0_u32;
    loop {
        let search = answered < FIRST_SEARCHES || answered.is_multiple_of(QUESTIONS_PER_SEARCH);
        let patience = if open.is_some() { PATIENCE } else { CONNECT_PATIENCE };
        let asking = ask(open.take(), &sentinel, (&name, &changed), search);
        let heard = match timeout(patience, asking).await {
            Ok(Ok((connection, heard))) => {
                open = Some(connection);
                answered = answered.wrapping_add(1);
                Some(heard)
            }
            // The next question makes a new connection.
            Ok(Err(_)) | Err(_) => None,
        };
        if reports.send((Arc::clone(&sentinel), heard)).await.is_err() {
            return;
        }
        tokio::select! {
            () = changed.notified() => {}
            () = sleep(jittered(INTERVAL)) => {}
        }
    }
}

/// Asks a sentinel for the master `name`, and for the other sentinels if `search` is set. Makes a
/// connection that announces changes, unless there is one.
async fn ask(
    open: Option<SentinelConnection>,
    sentinel: &Arc<Endpoint>,
    (name, changed): (&Arc<str>, &Arc<Notify>),
    search: bool,
) -> Result<(SentinelConnection, Heard), StoreError> {
    let mut connection = match open {
        Some(connection) => connection,
        None => {
            let (sentinel, name) = (Arc::clone(sentinel), Arc::clone(name));
            SentinelConnection::open_subscribed(sentinel, name, Arc::clone(changed)).await?
        }
    };
    let asked = BootInstant::now();
    let answer = connection.master(name).await?;
    // A user may lack this permission.
    let others = if search { connection.others(name).await.ok() } else { None };
    Ok((connection, Heard { asked, answer, others: others.unwrap_or_default() }))
}
