//! A master that sentinels monitor.
//!
//! Before each connection, all known sentinels are asked at once which server is the master, and
//! the server itself has to confirm it (`ROLE`) on the new connection. Once most sentinels agree, the
//! others have as much time again. While connections are open, a [`watch`] notices a change of the
//! master.
//!
//! Each search opens connections of its own to the sentinels, on the runtime that needs the master.
//! A search for the renewals therefore does not depend on any other thread.
//!
//! By hand, because `SentinelClient` of redis-rs (1.8.1) asks one sentinel after the other, with the timeout of a connection
//! for each, and looks for the master only when it connects, so that a planned failover is never noticed.

mod answer;
mod current;
mod known;
mod question;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Value, cmd};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use self::answer::{Candidate, SentinelAnswer, candidates};
use self::current::CurrentMaster;
use self::known::KnownSentinels;
use self::question::SentinelConnection;
use self::watch::Watcher;
use super::announced::AnnouncedAddresses;
use super::opened::{NewSocket, Opened};
use crate::transport::endpoint::{Access, Endpoint, shown};
use crate::transport::error;
use crate::transport::handshake::{LoggedIn, log_in};
use crate::transport::pipelined::OnMessage;
use crate::url::SentinelUrl;
use lock_core::backoff::jittered;
use lock_core::clock::BootInstant;
use lock_core::store::contract::{BackgroundRuntimes, StoreError};
use lock_core::store::hold_reports::HoldReports;
use lock_core::sync::{Mutex, lock};

/// A lease should be at least this many times as long as the silence after which the master counts
/// as down, because a failover takes some time as well.
const LEASE_PER_DOWN_AFTER: u32 = 6;

/// How long a search waits for the other sentinels when one has named a master.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long a search waits at least for the other sentinels when most of them agree. In a failover,
/// one of the others may know more.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(20);

/// How long the result of a search is used, at first and after a few searches in a row, so that an
/// outage costs the sentinels few connections. The [`watch`] ends it when the master changes.
const SEARCH_REUSED_FOR: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(1));

/// The number of searches in a row from which on their results are used for longer.
const MANY_SEARCHES: u32 = 3;

/// The pause after which a search is not one in a row.
const SEARCHES_END_AFTER: Duration = Duration::from_secs(5);

/// How long a search waits for a sentinel that names a master.
const LONGEST_SEARCH: Duration = Duration::from_secs(2);

/// How long a server may take to confirm that it is the master if the sentinels also name others.
const LOGIN_PATIENCE: Duration = Duration::from_secs(2);

/// A master that sentinels monitor.
pub(super) struct MonitoredMaster {
    /// The name by which the sentinels know it.
    name: Arc<str>,
    /// The master for messages.
    shown: String,
    to_master: Access,
    addresses: Arc<AnnouncedAddresses>,
    known: Arc<KnownSentinels>,
    current: Arc<CurrentMaster>,
    /// The longest time that a sentinel waits before the master counts as down, in milliseconds.
    down_after: AtomicU64,
    latest: Mutex<Option<Search>>,
}

/// A completed search.
struct Search {
    ended: BootInstant,
    /// For how long its result is used.
    used_for: Duration,
    /// The number of searches in a row before this one.
    before: u32,
    /// The number of the master in use when the search began.
    since: u64,
    found: Result<Vec<Candidate>, StoreError>,
}

/// A sentinel, and what it has answered.
type SentinelReply = (Arc<Endpoint>, Result<SentinelAnswer, StoreError>);

impl MonitoredMaster {
    pub(super) fn new(url: SentinelUrl) -> Self {
        let SentinelUrl { name, sentinels, to_sentinels, to_master, addresses } = url;
        Self {
            shown: format!("the master `{name}`"),
            name: name.into(),
            to_master,
            addresses: Arc::new(AnnouncedAddresses::new(addresses)),
            known: Arc::new(KnownSentinels::new(sentinels, to_sentinels)),
            current: Arc::new(CurrentMaster::new()),
            down_after: AtomicU64::new(0),
            latest: Mutex::default(),
        }
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) fn has_credentials_source(&self) -> bool {
        self.to_master.has_credentials_source()
    }

    pub(super) fn watch(&self, runtimes: &BackgroundRuntimes, reports: HoldReports) {
        self.current.on_change(reports);
        self.addresses.run_on(&runtimes.wake_ups);
        let (name, known) = (Arc::clone(&self.name), Arc::clone(&self.known));
        let (addresses, current) = (Arc::clone(&self.addresses), Arc::clone(&self.current));
        // No code of the program runs on this runtime.
        runtimes.renewals.spawn(Watcher::new(name, addresses, known, current).run());
    }

    pub(super) fn warning(&self, lease: Duration) -> Option<String> {
        let down_after = Duration::from_millis(self.down_after.load(Ordering::Relaxed));
        let longest = lease / LEASE_PER_DOWN_AFTER;
        (down_after > longest).then(|| {
            format!(
                "the server counts as down only after a silence of {down_after:?}, which is too \
                 long for a lease of {lease:?}: when it fails, locks may end before another server \
                 takes over; set `down-after-milliseconds` of the sentinels to at most {}, or use \
                 a longer lease",
                longest.as_millis()
            )
        })
    }

    pub(super) fn is_current(&self, number: u64) -> bool {
        self.current.number() == number
    }

    pub(super) async fn replaced(&self, number: u64) {
        self.current.replaced(number).await;
    }

    pub(super) async fn open(
        &self,
        new_socket: &(dyn Fn() -> NewSocket + Sync),
    ) -> Result<Opened, StoreError> {
        loop {
            let since = self.current.number();
            tokio::select! {
                // A connection that is open goes first: its master may be the replacement.
                biased;
                opened = self.open_found(new_socket, since) => return opened,
                // The search may wait for a master that does not answer any more.
                () = self.current.replaced(since) => {}
            }
        }
    }

    /// Searches for the master and opens a connection to it. The master `since` is in use.
    async fn open_found(
        &self,
        new_socket: &(dyn Fn() -> NewSocket + Sync),
        since: u64,
    ) -> Result<Opened, StoreError> {
        let mut failure = None;
        let candidates = self.found(since).await?;
        let patience = if candidates.len() > 1 { LOGIN_PATIENCE } else { Duration::MAX };
        for candidate in candidates {
            let (mut host, mut port) = candidate.address.clone();
            if let Err(error) = self.addresses.map([(&mut host, &mut port)]).await {
                failure = Some(error);
                continue;
            }
            let server = Arc::new(Endpoint::tcp(&host, port, self.to_master.clone()));
            let NewSocket { generation, on_message } = new_socket();
            let login = timeout(patience, log_in_to_master(&server, on_message)).await;
            match login.unwrap_or_else(|_| Err(no_answer(patience))) {
                Ok(login) => {
                    let (voters, now) = (self.known.voters(), BootInstant::now());
                    if let Some(number) = self.current.found(&candidate, voters, now) {
                        return Ok(Opened { server, number, generation, login });
                    }
                    let in_use = self.current.address().unwrap_or_default();
                    let cause = format!(
                        "the sentinels do not agree that it has replaced {}",
                        shown(&in_use.0, in_use.1)
                    );
                    let error = StoreError::Refused(cause);
                    failure = Some(self.with_sentinels(&server, error));
                }
                Err(error) => failure = Some(self.with_sentinels(&server, error)),
            }
        }
        // A search finds at least one candidate.
        Err(failure.unwrap_or_else(|| StoreError::Refused("no sentinel names a master".into())))
    }

    /// The servers that may be the master: those of a search that has just ended, or of a new one.
    async fn found(&self, since: u64) -> Result<Vec<Candidate>, StoreError> {
        let age = |search: &Search| BootInstant::now().since(search.ended);
        let is_recent = |search: &&Search| search.since == since && age(search) < search.used_for;
        if let Some(search) = lock(&self.latest).as_ref().filter(is_recent) {
            return search.found.clone();
        }
        let found = self.search().await;
        let mut latest = lock(&self.latest);
        let is_repeated =
            |search: &&Search| search.since == since && age(search) < SEARCHES_END_AFTER;
        let before = latest.as_ref().filter(is_repeated).map_or(0, |search| search.before + 1);
        let (first, later) = SEARCH_REUSED_FOR;
        let used_for = if before < MANY_SEARCHES { first } else { jittered(later) };
        let ended = BootInstant::now();
        *latest = Some(Search { ended, used_for, before, since, found: found.clone() });
        found
    }

    /// Asks all sentinels for the master.
    async fn search(&self) -> Result<Vec<Candidate>, StoreError> {
        let mut asked = JoinSet::new();
        let most = self.known.voters() / 2;
        for sentinel in self.known.all() {
            let name = Arc::clone(&self.name);
            asked.spawn(async move {
                let answer = timeout(LONGEST_SEARCH, ask(&sentinel, &name)).await;
                (sentinel, answer.unwrap_or_else(|_| Err(no_answer(LONGEST_SEARCH))))
            });
        }
        let mut replies: Vec<SentinelReply> = Vec::new();
        let began = Instant::now();
        // When a sentinel first named a master, and the end of the search that follows from it.
        let (mut named, mut end) = (None, None);
        loop {
            let joined = match end {
                None => asked.join_next().await,
                // The answers that are there come first.
                Some(end) => tokio::select! {
                    biased;
                    joined = asked.join_next() => joined,
                    () = sleep_until(end) => break,
                },
            };
            // A sentinel that has panicked has not answered.
            let Some(reply) = joined else { break };
            replies.extend(reply.ok());
            let answers = replies.iter().filter_map(|(_, answer)| answer.as_ref().ok());
            if let [first, others @ ..] = &candidates(answers)[..] {
                let now = Instant::now();
                let is_agreed = others.is_empty() && first.votes > most;
                end = Some(if is_agreed {
                    now + (now - began).clamp(SHORTEST_PATIENCE, PATIENCE)
                } else {
                    *named.get_or_insert(now) + PATIENCE
                });
            }
        }
        let answers = replies.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        if let Some(longest) = answers.clone().filter_map(|answer| answer.down_after).max() {
            let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
            self.down_after.store(longest, Ordering::Relaxed);
        }
        let found = candidates(answers);
        if found.is_empty() { Err(self.explain(replies)) } else { Ok(found) }
    }

    /// Explains why no sentinel has named the master.
    fn explain(&self, replies: Vec<SentinelReply>) -> StoreError {
        let is_permanent = |answer: &Result<SentinelAnswer, StoreError>| {
            matches!(answer, Ok(_) | Err(StoreError::Denied(_) | StoreError::Config { .. }))
        };
        // A sentinel that cannot be reached could know more than the others. If the master was in
        // use, the sentinels are being changed.
        let is_first = self.current.number() == 0;
        let all_permanent = is_first
            && !replies.is_empty()
            && replies.iter().all(|(_, answer)| is_permanent(answer));
        let mut causes = Vec::new();
        for (sentinel, answer) in replies {
            let sentinel = sentinel.shown();
            match answer {
                Err(StoreError::Denied(cause)) if all_permanent => {
                    let login = if cause.contains("NOPERM") {
                        "the user needs `+sentinel|get-master-addr-by-name`"
                    } else {
                        "the sentinels have a login of their own: `sentinel_user` and \
                         `sentinel_pass`"
                    };
                    return StoreError::Denied(format!(
                        "the sentinel {sentinel}: {cause} ({login})"
                    ));
                }
                Err(StoreError::Config { option, problem }) if all_permanent => {
                    return StoreError::Config { option, problem };
                }
                Ok(_) => causes.push(format!("{sentinel}: it knows no such master")),
                Err(error) => causes.push(format!("{sentinel}: {error}")),
            }
        }
        let (name, causes) = (&self.name, causes.join("; "));
        if all_permanent {
            let problem = format!("no sentinel knows a master `{name}` ({causes})");
            StoreError::Config { option: "url", problem }
        } else {
            StoreError::Refused(format!("no sentinel names the master `{name}` ({causes})"))
        }
    }

    /// Adds the sentinels to the error of a server that they have named.
    fn with_sentinels(&self, server: &Endpoint, error: StoreError) -> StoreError {
        match error {
            StoreError::Refused(cause) | StoreError::Unknown(cause) => {
                let (server, sentinels) = (server.shown(), self.known.all());
                let sentinels: Vec<_> = sentinels.iter().map(|one| one.shown()).collect();
                let sentinels = sentinels.join(", ");
                let cause = format!("{server}: {cause} (the sentinels are {sentinels})");
                StoreError::Refused(cause)
            }
            // Users are not replicated, so a promoted server may have others.
            StoreError::Denied(cause) => StoreError::Denied(format!("{}: {cause}", server.shown())),
            permanent => permanent,
        }
    }
}

/// Asks one sentinel for the master, over a connection of its own.
async fn ask(sentinel: &Arc<Endpoint>, name: &str) -> Result<SentinelAnswer, StoreError> {
    SentinelConnection::open(Arc::clone(sentinel)).await?.master(name).await
}

fn no_answer(within: Duration) -> StoreError {
    StoreError::Refused(format!("no answer within {within:?}"))
}

/// Connects to a server, which has to confirm that it is a master.
async fn log_in_to_master(
    server: &Endpoint,
    on_message: Option<OnMessage>,
) -> Result<LoggedIn, StoreError> {
    let login = log_in(server, on_message).await?;
    let role = login.commands.query::<Value>(&cmd("ROLE")).await;
    let role = role.map_err(|error| match error::classify(&error).error {
        StoreError::Denied(cause) if error::is_unknown_command(&cause) => {
            let server = server.shown();
            let problem = format!(
                "{server} does not have the command `ROLE`, which tells a master from a replica; \
                 enable it, or use `redis://` with the address of the master"
            );
            StoreError::Config { option: "url", problem }
        }
        error => error,
    })?;
    if is_master(&role) { Ok(login) } else { Err(StoreError::Refused("it is not a master".into())) }
}

/// Whether a reply to `ROLE` is that of a master.
fn is_master(role: &Value) -> bool {
    let Value::Array(fields) = role else { return false };
    match fields.first() {
        Some(Value::BulkString(role)) => role == b"master",
        Some(Value::SimpleString(role)) => role == "master",
        _ => false,
    }
}
