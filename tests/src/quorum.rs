//! Several servers that do not know of each other, for clients that need a majority of them.

use crate::RedisServer;

/// An odd number of servers on free ports of the loopback interface. All of them are killed when this is dropped.
#[derive(Debug)]
pub struct Quorum {
    servers: Vec<RedisServer>,
}

impl Quorum {
    /// Starts this number of servers, which clients use at once, as if they had used them for long.
    #[must_use]
    pub fn start(servers: usize) -> Self {
        let quorum = Self::new(servers);
        quorum.servers.iter().for_each(mark_as_used);
        quorum
    }

    /// Starts this number of servers. Clients do not know whether they have lost locks.
    #[must_use]
    pub fn new(servers: usize) -> Self {
        Self { servers: (0..servers).map(|_| RedisServer::plain(&[])).collect() }
    }

    /// Starts servers with these options.
    #[must_use]
    pub fn with(options: &[&[&str]]) -> Self {
        Self { servers: options.iter().map(|options| RedisServer::plain(options)).collect() }
    }

    /// Starts this number of servers whose wall clocks can be set. Linux only.
    #[must_use]
    pub fn with_own_clocks(servers: usize) -> Self {
        let servers: Vec<_> = (0..servers).map(|_| RedisServer::with_own_clock(&[])).collect();
        servers.iter().for_each(mark_as_used);
        Self { servers }
    }

    /// The number of servers.
    #[must_use]
    pub fn size(&self) -> usize {
        self.servers.len()
    }

    /// The URL for a client.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(RedisServer::address).collect();
        format!("redis+redlock://{}", hosts.join(","))
    }

    /// The URLs of the servers.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(RedisServer::plain_url).collect()
    }

    /// One of the servers.
    #[must_use]
    pub fn server(&self, index: usize) -> &RedisServer {
        &self.servers[index]
    }

    /// Kills a server with SIGKILL. Its data is lost.
    pub fn kill(&mut self, index: usize) {
        self.servers[index].kill();
    }

    /// Restarts a server, which comes back without its data.
    pub fn restart(&mut self, index: usize) {
        self.servers[index].restart();
    }

    /// The same, for clients that do not notice that it has lost its data.
    pub fn restart_unnoticed(&mut self, index: usize) {
        self.restart(index);
        mark_as_used(&self.servers[index]);
    }

    /// Suspends a server. It keeps its connections and does not reply.
    pub fn freeze(&self, index: usize) {
        self.servers[index].freeze();
    }

    /// Resumes a server.
    pub fn thaw(&self, index: usize) {
        self.servers[index].thaw();
    }

    /// The running servers at which this key exists.
    #[must_use]
    pub fn having(&self, key: &str) -> Vec<usize> {
        let servers = self.servers.iter().enumerate();
        let having = servers.filter(|(_, server)| server.is_running() && server.exists(key));
        having.map(|(index, _)| index).collect()
    }
}

/// Writes that the server has had its quarantine long ago.
fn mark_as_used(server: &RedisServer) {
    let field = |section: &str, name: &str| {
        let info: String = server.command(&["INFO", section]);
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.expect("every server tells it").to_owned()
    };
    let term = format!("{}:{}", field("server", "run_id"), field("replication", "master_replid"));
    server.tell(&["SET", "lock_quarantine:", &format!("{term} 1")]);
}
