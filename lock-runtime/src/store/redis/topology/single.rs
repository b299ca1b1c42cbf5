//! One server. Its address may lead to another one at some time: a name gets another address, a virtual address moves, or a
//! balancer chooses another server. The earlier server may go on, so that nothing tells the connections that are open.
//!
//! Each process of a server has a random id (`run_id`), which each new connection reads. Another id counts as another server:
//! the connections to the earlier one are discarded, and all holds are verified. Because a client may keep its connections for
//! ever, it looks at the address again every few leases, with a new connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::Level;

use super::opened::{NewSocket, Opened};
use crate::backoff::jittered;
use crate::events;
use crate::safeguard::Safeguard;
use crate::store::contract::{BackgroundRuntimes, StoreError};
use crate::store::hold_reports::{HoldReport, HoldReports};
use crate::store::redis::endpoint::{Address, Endpoint};
use crate::store::redis::handshake::log_in;

/// The pause between two looks at the address, in leases, and its bounds.
const LEASES_PER_LOOK: u32 = 2;
const PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

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
        self.current.number.load(Ordering::Acquire) == number
    }

    pub(super) async fn replaced(&self, number: u64) {
        // The sender lives as long as `self`, so this cannot fail.
        let mut server = self.current.server.subscribe();
        let _ = server.wait_for(|server| server.number != number).await;
    }

    pub(super) async fn open(&self, socket: NewSocket) -> Result<Opened, StoreError> {
        let mut login = log_in(&self.server, &socket.config).await?;
        let id = run_id(&mut login.commands).await;
        let number = self.current.found(id, self.shown());
        let (server, generation) = (Arc::clone(&self.server), socket.generation);
        Ok(Opened { server, number, generation, login })
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
    /// A new connection leads to the server with this id; `None` if the server does not tell it. Returns its number.
    fn found(&self, id: Option<String>, address: &str) -> u64 {
        let id = id.filter(|_| Safeguard::MovedServersAreNoticed.is_on());
        let (mut number, mut is_other) = (0, false);
        self.server.send_if_modified(|server| {
            if id.is_some() {
                let earlier = std::mem::replace(&mut server.id, id);
                is_other = earlier.is_some() && earlier != server.id;
            }
            server.number += u64::from(is_other);
            number = server.number;
            self.number.store(number, Ordering::Release);
            is_other
        });
        if is_other {
            let address = address.to_owned();
            events::emit(Level::INFO, move || {
                tracing::info!(
                    address,
                    "the address leads to another server, or to one that has restarted; verifying all held locks"
                );
            });
            if let Some(reports) = self.reports.get() {
                reports.send(HoldReport::Moved);
            }
        }
        number
    }
}

/// Looks at the address every few leases, as long as the client exists.
async fn look_again(server: Arc<Endpoint>, current: Weak<CurrentServer>, lease: Duration) {
    let pause = (lease * LEASES_PER_LOOK).clamp(PAUSES.0, PAUSES.1);
    loop {
        sleep(jittered(pause)).await;
        let config = AsyncConnectionConfig::new();
        let look = async {
            let mut login = log_in(&server, &config).await.ok()?;
            run_id(&mut login.commands).await
        };
        let id = timeout(LOOK_TIMEOUT, look).await.ok().flatten();
        let Some(current) = current.upgrade() else { return };
        current.found(id, server.shown());
    }
}

/// The id of the process of a server; `None` if the server does not tell it, or the user may not ask.
async fn run_id(commands: &mut MultiplexedConnection) -> Option<String> {
    let info: String = redis::cmd("INFO").arg("server").query_async(commands).await.ok()?;
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
        let found = |id: Option<&str>| current.found(id.map(str::to_owned), "localhost:6379");
        assert_eq!([found(None), found(Some("a")), found(Some("a")), found(None)], [0; 4]);
        assert_eq!([found(Some("b")), found(None), found(Some("b"))], [1; 3]);
        assert_eq!(moved.load(Ordering::Relaxed), 1);
        assert_eq!(found(Some("a")), 2, "it has come back, and may lack locks of the other one");
    }
}
