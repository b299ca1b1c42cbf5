//! A master with two replicas, and three sentinels that monitor it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::ports::START_TIMEOUT;
use crate::sentinel_process::{DOWN_AFTER, MASTER, NEVER_DOWN};
use crate::support::until;
use crate::tls::Certificates;
use crate::{Authority, RedisServer, SentinelProcess, Validity};

/// A master with two replicas, and three sentinels, on free ports of the loopback interface. All of
/// them are killed when this is dropped.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<RedisServer>,
    processes: Vec<SentinelProcess>,
    /// Set if all connections use TLS.
    certificates: Option<Certificates>,
}

impl Sentinels {
    /// Starts all servers and sentinels, and waits until they know each other. A master that is
    /// silent for [`DOWN_AFTER`] is replaced.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[], DOWN_AFTER, None)
    }

    /// The same, with additional options for the servers.
    #[must_use]
    pub fn with(options: &[&str]) -> Self {
        Self::start_with(options, DOWN_AFTER, None)
    }

    /// The same. Only planned failovers replace a master.
    #[must_use]
    pub fn steady(options: &[&str]) -> Self {
        Self::start_with(options, NEVER_DOWN, None)
    }

    /// The same, with TLS on all connections. A master that is silent for `down_after` is replaced,
    /// if it is set.
    #[must_use]
    pub fn with_tls(down_after: Option<Duration>) -> Self {
        let authority = Authority::new();
        let identity = authority.issue(&["127.0.0.1"], Validity::Now);
        Self::start_with(&[], down_after.unwrap_or(NEVER_DOWN), Some((authority, identity)))
    }

    fn start_with(
        options: &[&str],
        down_after: Duration,
        certificates: Option<Certificates>,
    ) -> Self {
        // The first synchronization of a replica begins at once.
        let options = [&["--repl-diskless-sync-delay", "0"], options].concat();
        let start = |more: &[&str]| {
            let mut all = [more, &options].concat();
            match &certificates {
                None => RedisServer::plain(&all),
                Some((authority, identity)) => {
                    all.extend(["--tls-replication", "yes"]);
                    RedisServer::with_tls(authority, identity, &all)
                }
            }
        };
        let master = start(&[]);
        let port = if certificates.is_some() { master.tls_port() } else { master.port() };
        let monitored = port.to_string();
        let replica = || start(&["--replicaof", "127.0.0.1", &monitored]);
        let servers = vec![master, replica(), replica()];
        let online = || {
            let info: String = servers[0].command(&["INFO", "replication"]);
            info.matches("state=online").count() == 2
        };
        wait_for("the replicas", online);
        let sentinel =
            |_| SentinelProcess::start_with(port, down_after, certificates.as_ref(), &[]);
        let processes = (0..3).map(sentinel).collect();
        let all = Self { servers, processes, certificates };
        wait_for("the sentinels", || all.processes.iter().all(SentinelProcess::knows_all));
        all
    }

    /// The URL for a client.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.processes.iter().map(SentinelProcess::address).collect();
        self.url_with(&hosts)
    }

    /// The URL with these hosts instead of the sentinels.
    #[must_use]
    pub fn url_with(&self, hosts: &[String]) -> String {
        let hosts = hosts.join(",");
        match &self.certificates {
            None => format!("redis+sentinel://{hosts}/{MASTER}"),
            Some((authority, _)) => {
                format!("rediss+sentinel://{hosts}/{MASTER}?tls_ca={}", authority.file().display())
            }
        }
    }

    /// The three servers. The first one is the master at the start.
    #[must_use]
    pub fn server(&self, index: usize) -> &RedisServer {
        &self.servers[index]
    }

    /// The three sentinels.
    #[must_use]
    pub fn sentinel(&self, index: usize) -> &SentinelProcess {
        &self.processes[index]
    }

    /// The index of the master that most sentinels name.
    #[must_use]
    pub fn master(&self) -> Option<usize> {
        let named: Vec<_> = self.processes.iter().filter_map(SentinelProcess::master).collect();
        let is_named_by_most = |server: &RedisServer| {
            let own = if self.certificates.is_some() { server.tls_port() } else { server.port() };
            named.iter().filter(|port| **port == own).count() * 2 > self.processes.len()
        };
        self.servers.iter().position(is_named_by_most)
    }

    /// Whether most sentinels name a master that has both replicas, without a delay.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        let Some(master) = self.master() else { return false };
        let info = self.servers[master].ask::<String>(&["INFO", "replication"]);
        info.is_ok_and(|info| info.matches("state=online").count() == 2)
            && self.processes.iter().all(|sentinel| sentinel.master().is_some())
    }

    /// Waits until most sentinels name another master than the server `earlier`, and returns it.
    pub async fn wait_for_another_master(&self, earlier: usize) -> usize {
        self.another_master(earlier, START_TIMEOUT * 3).await.expect("another master")
    }

    async fn another_master(&self, earlier: usize, limit: Duration) -> Option<usize> {
        let mut master = None;
        let is_another = || {
            master = self.master().filter(|master| *master != earlier);
            master.is_some()
        };
        until(limit, is_another).await;
        master
    }

    /// Kills a server with SIGKILL.
    pub fn kill(&mut self, server: usize) {
        self.servers[server].kill();
    }

    /// Suspends a server with SIGSTOP.
    pub fn freeze(&self, server: usize) {
        self.servers[server].freeze();
    }

    /// Resumes a server with SIGCONT.
    pub fn thaw(&self, server: usize) {
        self.servers[server].thaw();
    }

    /// Restarts a server on the same port. Without persistence, its data is lost.
    pub fn restart(&mut self, server: usize) {
        self.servers[server].restart();
    }

    /// Makes a planned failover from the server `earlier`, which works. The first sentinel leads it.
    /// Returns the new master.
    pub async fn fail_over(&self, earlier: usize) -> usize {
        for _ in 0..5 {
            // A sentinel that has not yet heard of good replicas refuses.
            wait_for("the failover", || {
                self.processes[0].ask::<String>(&["FAILOVER", MASTER]).is_ok()
            });
            // The sentinel gives up if the promoted replica is too slow.
            if let Some(master) = self.another_master(earlier, START_TIMEOUT).await {
                return master;
            }
        }
        panic!("the sentinel has given up five planned failovers");
    }
}

/// Waits until `condition` is true.
fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + START_TIMEOUT * 3;
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {:?}", START_TIMEOUT * 3);
        sleep(Duration::from_millis(20));
    }
}
