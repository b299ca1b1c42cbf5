//! `quarantine`: a server that may have lost locks grants none until they have ended.
//!
//! A server that was restarted, or that was promoted in a failover, may lack locks that clients
//! still hold. All clients therefore share a key on each server, the *marker*: it names the term of
//! the server in which the latest quarantine began, and the time. A term lasts until the process
//! ends, which changes its run id, or until another server is promoted, which changes the
//! replication id. If the marker names another term or is missing, this client begins a quarantine. The marker also
//! names the longest quarantine of any client, in milliseconds.
//!
//! A failover need not break a connection, so an acquisition reads the marker again if this
//! connection has not done so for [`READ_AGAIN_AFTER`]. Earlier acquisitions start the read when half of
//! that time has passed, and do not wait for it. Each read is a task of its own, because a call that is not
//! polled must not delay others.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Pipeline;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tracing::Level;

use crate::scripts::decode::MarkerReply;
use crate::scripts::dialect::milliseconds;
use crate::topology::Redirect;
use crate::transport::server_info::field;
use lock_core::clock::BootInstant;
use lock_core::events;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::{SendTrace, StoreError};
use lock_core::store::quarantine_terms::{QuarantineBegin, QuarantineTerms};
use lock_core::sync::{Mutex, lock};

/// How long a connection may grant locks without reading the marker again.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// When acquisitions start to read it, without waiting for the result.
const READ_EARLY_AFTER: Duration = Duration::from_millis(500);

/// The quarantine of the server at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Quarantine {
    terms: Arc<QuarantineTerms>,
    /// When the marker was last read, as an instant in nanoseconds.
    read: AtomicU64,
    /// When a read was last started before it was needed.
    started_early: AtomicU64,
    /// When the quarantine began, as a [`QuarantineBegin`].
    begun: AtomicU64,
    /// The term of the server when the marker was last read.
    term: Mutex<Option<String>>,
    /// The result to come of the read that is under way.
    reading: Mutex<Option<watch::Receiver<Option<ReadResult>>>>,
}

type ReadResult = Result<(), StoreError>;

/// A connection to a server that has markers.
pub(crate) trait MarkedServer: Clone + Send + Sync + 'static {
    /// The address of the server, or its name, without credentials.
    fn address(&self) -> String;

    /// The keys of the markers. None for a node of a cluster without slots.
    fn quarantine_markers(&self) -> Vec<String>;

    /// Starts a task on the runtime that serves the connection.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);

    /// Sends commands, and records the connection that has carried them.
    fn send_about_marker(
        &self,
        commands: &Pipeline,
        trace: &SendTrace,
    ) -> impl Future<Output = Result<Vec<Result<MarkerReply, StoreError>>, StoreError>> + Send;
}

/// A marker, as it was read.
struct Marker {
    key: String,
    /// The server's time in milliseconds at which the quarantine of its current term began;
    /// `None` if the key has another value or none.
    since: Option<u64>,
    /// The longest quarantine of a client that has used the server, in milliseconds; 0 if the key does not
    /// name it.
    longest: u64,
}

impl Marker {
    /// A marker with this value, on a server with this term and time.
    fn parse(key: String, text: &str, (term, now): (&str, u64)) -> Self {
        let mut fields = text.split(' ');
        let is_current = fields.next() == Some(term);
        let mut number = || fields.next()?.parse::<u64>().ok();
        // The clock may have been set back.
        let since = number().filter(|since| is_current && *since <= now);
        Self { key, since, longest: number().unwrap_or_default() }
    }
}

impl Quarantine {
    pub(crate) fn new(terms: Arc<QuarantineTerms>) -> Self {
        let [read, started_early, begun] = std::array::from_fn(|_| AtomicU64::new(0));
        let (term, reading) = (Mutex::default(), Mutex::default());
        Self { terms, read, started_early, begun, term, reading }
    }

    /// Whether it is over, as far as the latest read tells. Costs a clock reading. Starts to read the marker if that will
    /// soon be needed. The connection has to be of this generation.
    pub(crate) fn is_over(self: &Arc<Self>, server: &impl MarkedServer, generation: u64) -> bool {
        let now = BootInstant::now();
        if self.left(now) != Some(Duration::ZERO) {
            return !Safeguard::Quarantine.is_on();
        }
        let is_due = |at: &AtomicU64| {
            now.since(BootInstant::from_nanos(at.load(Ordering::Acquire))) >= READ_EARLY_AFTER
        };
        if is_due(&self.read) && is_due(&self.started_early) {
            self.started_early.store(now.as_nanos(), Ordering::Release);
            self.start_to_read(server, generation);
        }
        true
    }

    /// The time that is left; `None` if the marker has to be read.
    fn left(&self, now: BootInstant) -> Option<Duration> {
        let read = BootInstant::from_nanos(self.read.load(Ordering::Acquire));
        (now.since(read) < READ_AGAIN_AFTER).then(|| self.left_of_latest(now))
    }

    /// The time that is left, by the latest read.
    fn left_of_latest(&self, now: BootInstant) -> Duration {
        let begun = QuarantineBegin::from_nanos(self.begun.load(Ordering::Acquire));
        begun.left(self.terms.longest(), now)
    }

    /// Fails unless it is over. Reads the marker if that was not done lately. The connection has to
    /// be of this generation.
    ///
    /// Cancel safe: the read continues.
    pub(crate) async fn check(
        self: &Arc<Self>,
        server: &impl MarkedServer,
        generation: u64,
        within: Duration,
    ) -> Result<(), StoreError> {
        let until = Instant::now() + within;
        // A read that was under way already may be too old when it ends.
        for _ in 0..2 {
            if self.left(BootInstant::now()).is_some() {
                break;
            }
            let mut result = self.start_to_read(server, generation);
            match timeout_at(until, result.wait_for(Option::is_some)).await {
                Ok(Ok(result)) => result.clone().unwrap_or(Ok(()))?,
                Ok(Err(_)) | Err(_) => {
                    return Err(not_known(&format!(
                        "no answer from {} within {} ms",
                        server.address(),
                        within.as_millis()
                    )));
                }
            }
        }
        let left = self.left_of_latest(BootInstant::now());
        if left.is_zero() {
            return Ok(());
        }
        // The form of a server's error: the server answers, so this is no sign of a failover.
        Err(StoreError::Refused(format!(
            "QUARANTINE {} may have lost locks, because it was restarted, promoted, or not used \
             before; it grants none for another {} ms",
            server.address(),
            milliseconds(left).max(1)
        )))
    }

    /// Joins the read that is under way, or starts one.
    fn start_to_read(
        self: &Arc<Self>,
        server: &impl MarkedServer,
        generation: u64,
    ) -> watch::Receiver<Option<ReadResult>> {
        let mut reading = lock(&self.reading);
        // The sender is dropped with its task.
        if let Some(result) = reading.as_ref().filter(|result| result.has_changed().is_ok()) {
            return result.clone();
        }
        let (sender, result) = watch::channel(None);
        *reading = Some(result.clone());
        let (this, reader) = (Arc::clone(self), server.clone());
        server.spawn(async move {
            let read = this.read(&reader, generation).await;
            *lock(&this.reading) = None;
            sender.send_replace(Some(read));
        });
        result
    }

    /// Reads the markers, and begins a quarantine if none of them names the current term.
    async fn read(&self, server: &impl MarkedServer, generation: u64) -> ReadResult {
        let keys = server.quarantine_markers();
        if keys.is_empty() {
            let cause = "it is not known which slots the server has";
            return Err(not_known(cause));
        }
        let asked = BootInstant::now();
        let mut question = Pipeline::with_capacity(3 + keys.len());
        question.cmd("INFO").arg("server").cmd("INFO").arg("replication").cmd("TIME");
        for key in &keys {
            question.cmd("GET").arg(key);
        }
        let mut answers = send(server, generation, &question).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(MarkerReply::None));
        let (process, replication, time) =
            (next().map_err(explain)?, next().map_err(explain)?, next().map_err(explain)?);
        let term = term(&process, &replication)?;
        let MarkerReply::Time(now) = time else {
            return Err(not_known("the server does not tell its time"));
        };
        let mut markers = Vec::new();
        for key in keys {
            match next() {
                Ok(MarkerReply::Text(text)) => {
                    markers.push(Marker::parse(key, &text, (&term, now)));
                }
                Ok(_) => markers.push(Marker { key, since: None, longest: 0 }),
                // The slot is being moved to another node.
                Err(error) if Redirect::of(&error).is_some() => {}
                Err(error) => return Err(explain(error)),
            }
        }
        let named = markers.iter().map(|marker| marker.longest).max().unwrap_or_default();
        self.terms.has_been_used_with(Duration::from_millis(named));
        let longest = named.max(milliseconds(self.terms.longest()));
        let since = markers.iter().filter_map(|marker| marker.since).max().unwrap_or(now);
        let text = format!("{term} {since} {longest}");
        self.write(server, generation, &markers, (since, longest, &text)).await?;
        let (clock, age) = (BootInstant::now(), Duration::from_millis(now - since));
        let begin = self.terms.began(&term, QuarantineBegin::before(clock, age));
        self.note(server, term, begin.left(self.terms.longest(), clock));
        self.begun.store(begin.as_nanos(), Ordering::Release);
        self.read.store(asked.as_nanos(), Ordering::Release);
        Ok(())
    }

    /// Writes the markers that do not say since when the term has had its quarantine, or how long it
    /// is. One is enough.
    async fn write(
        &self,
        server: &impl MarkedServer,
        generation: u64,
        markers: &[Marker],
        (since, longest, text): (u64, u64, &str),
    ) -> ReadResult {
        let is_outdated =
            |marker: &&Marker| marker.since != Some(since) || marker.longest != longest;
        let outdated = || markers.iter().filter(is_outdated);
        let mut is_written = outdated().count() < markers.len();
        let mut failure = None;
        if outdated().next().is_some() {
            let mut write = Pipeline::new();
            for marker in outdated() {
                write.cmd("SET").arg(&marker.key).arg(text);
            }
            for answer in send(server, generation, &write).await? {
                match answer {
                    Ok(_) => is_written = true,
                    Err(error) => failure = Some(error),
                }
            }
        }
        if is_written {
            return Ok(());
        }
        Err(failure.map_or_else(|| not_known("all its slots are being moved"), explain))
    }

    /// Logs a quarantine that this connection has not met before.
    fn note(&self, server: &impl MarkedServer, term: String, left: Duration) {
        let is_new = lock(&self.term).replace(term.clone()) != Some(term);
        if is_new && !left.is_zero() {
            let (address, ms) = (server.address(), milliseconds(left));
            events::emit(Level::WARN, move || {
                tracing::warn!(
                    target: "lock_runtime::store::redis",
                    address,
                    ms,
                    "the server may have lost locks and grants none until the quarantine ends"
                );
            });
        }
    }
}

/// Sends commands over the connection of this generation.
async fn send(
    server: &impl MarkedServer,
    generation: u64,
    commands: &Pipeline,
) -> Result<Vec<Result<MarkerReply, StoreError>>, StoreError> {
    let trace = SendTrace::default();
    let answers = server.send_about_marker(commands, &trace).await.map_err(explain)?;
    if trace.connection().map(NonZeroU64::get) != Some(generation) {
        return Err(not_known("the connection has changed"));
    }
    Ok(answers)
}

/// Identifies the time from the start or the promotion of a server to its end or to the promotion
/// of another one.
fn term(process: &MarkerReply, replication: &MarkerReply) -> Result<String, StoreError> {
    let of = |info: &MarkerReply, name: &str| match info {
        MarkerReply::Text(info) => field(info, name).map(str::to_owned),
        _ => None,
    };
    match (of(process, "run_id"), of(replication, "master_replid")) {
        (Some(run_id), Some(replication_id)) => Ok(format!("{run_id}:{replication_id}")),
        _ => {
            let problem = "the server does not tell its run id and its replication id, so its \
                           restarts and failovers are not noticed";
            Err(StoreError::Config { option: "quarantine", problem: problem.into() })
        }
    }
}

/// The request for a lock was not sent. Redirections concern the marker, and not the lock.
fn explain(error: StoreError) -> StoreError {
    match error {
        StoreError::Denied(cause) => {
            let problem = "`quarantine` needs the permissions `+info` and `~lock_quarantine:*`";
            StoreError::Denied(format!("{problem}: {cause}"))
        }
        StoreError::Refused(cause) | StoreError::Unknown(cause) => not_known(&cause),
        other => other,
    }
}

fn not_known(cause: &str) -> StoreError {
    StoreError::Refused(format!(
        "it is not known whether the server has lost locks (`quarantine`): {cause}"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A server whose marker names a quarantine that began long ago, and that answers after a while.
    #[derive(Clone, Default)]
    struct SlowServer {
        reads: Arc<AtomicUsize>,
    }

    const PAUSE: Duration = Duration::from_millis(50);

    impl MarkedServer for SlowServer {
        fn address(&self) -> String {
            "slow".to_owned()
        }

        fn quarantine_markers(&self) -> Vec<String> {
            vec!["marker".to_owned()]
        }

        fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
            tokio::spawn(task);
        }

        async fn send_about_marker(
            &self,
            _: &Pipeline,
            trace: &SendTrace,
        ) -> Result<Vec<Result<MarkerReply, StoreError>>, StoreError> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            trace.sent(1);
            tokio::time::sleep(PAUSE).await;
            let (process, replication) = ("run_id:a\r\n", "master_replid:b\r\n");
            Ok(vec![
                Ok(MarkerReply::Text(process.to_owned())),
                Ok(MarkerReply::Text(replication.to_owned())),
                Ok(MarkerReply::Time(10_000)),
                Ok(MarkerReply::Text("a:b 1 1000".to_owned())),
            ])
        }
    }

    #[tokio::test]
    async fn acquisitions_in_quick_succession_do_not_wait_for_a_read() {
        let server = SlowServer::default();
        let terms = Arc::new(QuarantineTerms::new(Duration::from_secs(1)));
        let quarantine = Arc::new(Quarantine::new(terms));
        assert!(!quarantine.is_over(&server, 1), "the marker was not read");
        quarantine.check(&server, 1, PAUSE * 20).await.expect("it is over");
        let (began, mut waits) = (BootInstant::now(), 0);
        while BootInstant::now().since(began) < READ_AGAIN_AFTER * 4 {
            if !quarantine.is_over(&server, 1) {
                waits += 1;
                quarantine.check(&server, 1, PAUSE * 20).await.expect("it is over");
            }
            tokio::time::sleep(PAUSE / 5).await;
        }
        // Otherwise, one acquisition a second would wait. A machine may stop for half a second.
        assert!(waits <= 1, "{waits} acquisitions had to wait");
        let reads = server.reads.load(Ordering::Relaxed);
        assert!((3..=12).contains(&reads), "{reads} reads");
        // Without acquisitions, nothing is read.
        tokio::time::sleep(READ_AGAIN_AFTER + PAUSE * 2).await;
        assert!(!quarantine.is_over(&server, 1), "the marker has to be read again");
    }
}
