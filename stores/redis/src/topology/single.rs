//! One server. Its address may lead to another one at some time: a name gets another address, a virtual address moves, or a
//! balancer chooses another server. The earlier server may go on, so that nothing tells the connections that are open.
//!
//! Each process of a server has a random id (`run_id`), which each new connection reads. Another id counts as another server:
//! the connections to the earlier one are discarded, and all holds are verified. Because a client may keep its connections for
//! ever, it looks at the address again every few leases, with a new connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::Level;

use super::opened::{NewSocket, Opened};
use crate::transport::endpoint::{Address, Endpoint};
use crate::transport::handshake::log_in;
use crate::transport::pipelined::PipelinedSocket;
use lock_core::backoff::jittered;
use lock_core::clock::BootInstant;
use lock_core::events;
use lock_core::store::contract::{BackgroundRuntimes, StoreError};
use lock_core::store::hold_reports::{HoldReport, HoldReports};

/// The pause between two looks at the address, in leases, and its bounds.
const LEASES_PER_LOOK: u32 = 2;
const PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

/// The shortest time between two changes. An address that leads to several servers in turn would otherwise make connections
/// without a pause.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// How long a look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct SingleServer {
    server: Arc<Endpoint>,
    current: Arc<CurrentServer>,
}

/// The server to which the address leads.
#[derive(Default)]
struct CurrentServer {
    server: watch::Sender<NumberedServer>,
    /// The number of the server, which is read twice for each request.
    number: AtomicU64,
    /// Called after each change.
    reports: OnceLock<HoldReports>,
}

#[derive(Default)]
struct NumberedServer {
    /// Each change adds 1.
    number: u64,
    /// `None` as long as no server has told it.
    id: Option<String>,
    /// When it came into use instead of another one.
    since: Option<BootInstant>,
}

/// What a new connection has found.
#[derive(Debug, PartialEq, Eq)]
enum FoundServer {
    /// The server with this number is in use.
    InUse(u64),
    /// There was a change since the connection began, so it may lead to the earlier server.
    Outdated,
    /// Another server than the one that has just come into use.
    TooSoon,
}

impl SingleServer {
    pub(super) fn new(server: Endpoint) -> Self {
        Self { server: Arc::new(server), current: Arc::default() }
    }

    pub(super) fn shown(&self) -> &str {
        self.server.shown()
    }

    pub(super) fn has_credentials_source(&self) -> bool {
        self.server.login().has_source()
    }

    pub(super) fn is_current(&self, number: u64) -> bool {
        self.current.number() == number
    }

    pub(super) async fn replaced(&self, number: u64) {
        // The sender lives as long as `self`, so this cannot fail.
        let mut server = self.current.server.subscribe();
        let _ = server.wait_for(|server| server.number != number).await;
    }

    pub(super) async fn open(
        &self,
        new_socket: &(dyn Fn() -> NewSocket + Sync),
    ) -> Result<Opened, StoreError> {
        loop {
            let (before, NewSocket { generation, on_message }) =
                (self.current.number(), new_socket());
            let login = log_in(&self.server, on_message).await?;
            let id = run_id(&login.commands).await;
            match self.current.found(id, (before, BootInstant::now()), self.shown()) {
                FoundServer::InUse(number) => {
                    let server = Arc::clone(&self.server);
                    return Ok(Opened { server, number, generation, login });
                }
                FoundServer::Outdated => {}
                FoundServer::TooSoon => {
                    let cause = "the address leads to another server than a moment ago";
                    return Err(StoreError::Refused(cause.to_owned()));
                }
            }
        }
    }

    pub(super) fn watch(
        &self,
        runtimes: &BackgroundRuntimes,
        reports: HoldReports,
        lease: Duration,
    ) {
        // Called once.
        let _ = self.current.reports.set(reports);
        if matches!(self.server.address(), Address::Tcp { .. }) {
            let (server, current) = (Arc::clone(&self.server), Arc::downgrade(&self.current));
            // No code of the program runs on this runtime.
            runtimes.renewals.spawn(look_again(server, current, lease));
        }
    }
}

impl CurrentServer {
    fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// A new connection leads to the server with this id; `None` if the server does not tell it. The connection began when the
    /// server with the number `before` was in use, and has logged in `now`.
    fn found(
        &self,
        id: Option<String>,
        (before, now): (u64, BootInstant),
        address: &str,
    ) -> FoundServer {
        let mut found = FoundServer::Outdated;
        let is_other = self.server.send_if_modified(|server| {
            if server.number != before {
                return false;
            }
            let is_other = id.is_some() && server.id.is_some() && id != server.id;
            if is_other && server.since.is_some_and(|since| now.since(since) < SETTLED_AFTER) {
                found = FoundServer::TooSoon;
                return false;
            }
            if is_other {
                server.since = Some(now);
                server.number += 1;
                self.number.store(server.number, Ordering::Release);
            }
            server.id = id.or(server.id.take());
            found = FoundServer::InUse(server.number);
            is_other
        });
        if is_other {
            let address = address.to_owned();
            events::emit(Level::INFO, move || {
                tracing::info!(
                    target: "lock_runtime::store::redis",
                    address,
                    "the address leads to another server, or to one that has restarted; verifying all held locks"
                );
            });
            if let Some(reports) = self.reports.get() {
                reports.send(HoldReport::Moved);
            }
        }
        found
    }
}

/// Looks at the address every few leases, as long as the client exists.
async fn look_again(server: Arc<Endpoint>, current: Weak<CurrentServer>, lease: Duration) {
    let pause = (lease * LEASES_PER_LOOK).clamp(PAUSES.0, PAUSES.1);
    loop {
        sleep(jittered(pause)).await;
        let Some(before) = current.upgrade().map(|current| current.number()) else { return };
        // The look has a timeout of its own.
        let look = async {
            let login = log_in(&server, None).await.ok()?;
            run_id(&login.commands).await
        };
        let id = timeout(LOOK_TIMEOUT, look).await.ok().flatten();
        let Some(current) = current.upgrade() else { return };
        current.found(id, (before, BootInstant::now()), server.shown());
    }
}

/// The id of the process of a server; `None` if the server does not tell it, or the user may not ask.
async fn run_id(commands: &PipelinedSocket) -> Option<String> {
    let info: String = commands.query(redis::cmd("INFO").arg("server")).await.ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("run_id:"))?;
    Some(id.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn another_id_is_another_server_and_no_id_is_none() {
        let (current, moved) = (CurrentServer::default(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&moved);
        let reports = HoldReports::new(move |report| {
            assert_eq!(report, HoldReport::Moved);
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert!(current.reports.set(reports).is_ok());
        let at = |seconds| BootInstant::from_nanos(1).after(Duration::from_secs_f64(seconds));
        for (before, id, seconds, expected) in [
            (0, None, 0.0, FoundServer::InUse(0)),
            (0, Some("a"), 0.0, FoundServer::InUse(0)),
            (0, Some("a"), 0.0, FoundServer::InUse(0)),
            (0, None, 0.0, FoundServer::InUse(0)),
            (0, Some("b"), 5.0, FoundServer::InUse(1)),
            (1, None, 5.0, FoundServer::InUse(1)),
            (1, Some("b"), 5.0, FoundServer::InUse(1)),
            // The connection began before the change.
            (0, Some("a"), 9.0, FoundServer::Outdated),
            // The address leads to several servers in turn.
            (1, Some("a"), 5.5, FoundServer::TooSoon),
            // The server has come back, and may lack locks.
            (1, Some("a"), 6.0, FoundServer::InUse(2)),
        ] {
            let id = id.map(str::to_owned);
            let found = current.found(id.clone(), (before, at(seconds)), "localhost:6379");
            assert_eq!(found, expected, "{id:?} at {seconds}");
        }
        assert_eq!(moved.load(Ordering::Relaxed), 2);
    }
}
