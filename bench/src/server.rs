//! The Redis server of the benchmark, and its counters.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use lock_tests::{Authority, Cluster, Proxy, RedisServer, Validity};

use crate::contestant::ServerKind;
use crate::figures::Durations;

/// The number of round trips of which the median is taken.
const PINGS: usize = 300;

/// The server, or the nodes of a cluster, with connections to inspect them.
pub(crate) struct Server {
    processes: Processes,
    /// One to each master.
    connections: Vec<redis::Connection>,
    /// Keeps the certificates of a server with TLS.
    authority: Option<Authority>,
}

enum Processes {
    One(Box<RedisServer>),
    Cluster(Cluster),
}

/// The masters of a cluster.
const MASTERS: usize = 3;

/// Counts of commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) by_clients: u64,
    pub(crate) by_scripts: u64,
}

/// Counts of connected clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clients {
    pub(crate) connections: usize,
    /// The connections that subscribe to a channel.
    pub(crate) subscribers: usize,
}

impl Server {
    pub(crate) fn start(kind: ServerKind) -> Self {
        let options = ["--maxclients", "30000"];
        let authority = (kind == ServerKind::Tls).then(Authority::new);
        let processes = match (kind, &authority) {
            (ServerKind::Cluster, _) => Processes::Cluster(Cluster::with(&options)),
            (_, Some(authority)) => {
                let identity = authority.issue(&["localhost"], Validity::Now);
                Processes::One(RedisServer::with_tls(authority, &identity, &options).into())
            }
            (_, None) => Processes::One(RedisServer::with(&options).into()),
        };
        let connections = processes.masters().iter().map(|master| master.connection()).collect();
        Self { processes, connections, authority }
    }

    pub(crate) fn url(&self) -> String {
        match &self.processes {
            Processes::One(server) if self.authority.is_some() => server.trusted_tls_url(),
            Processes::One(server) => server.url(),
            Processes::Cluster(cluster) => cluster.url(),
        }
    }

    /// A proxy in front of a server without TLS.
    pub(crate) fn behind_proxy(&self) -> Option<Proxy> {
        match &self.processes {
            Processes::One(server) if self.authority.is_none() => Some(Proxy::to(server.port())),
            Processes::One(_) | Processes::Cluster(_) => None,
        }
    }

    pub(crate) fn version(&mut self) -> Result<String> {
        let info: String = redis::cmd("INFO").arg("server").query(&mut self.connections[0])?;
        Ok(field(&info, "redis_version").context("no version")?.to_owned())
    }

    /// Deletes all keys. Requests in flight may still create keys.
    pub(crate) fn clear(&mut self) -> Result<()> {
        for connection in &mut self.connections {
            redis::cmd("FLUSHALL").exec(connection)?;
        }
        Ok(())
    }

    /// The median round trip of a PING, in nanoseconds.
    pub(crate) fn round_trip(&mut self) -> Result<f64> {
        let mut ping = || {
            let start = Instant::now();
            redis::cmd("PING").exec(&mut self.connections[0])?;
            Ok(start.elapsed().as_nanos() as u64)
        };
        let trips: Durations = (0..PINGS).map(|_| ping()).collect::<Result<_>>()?;
        Ok(trips.median().unwrap_or_default() as f64)
    }

    /// The number of commands since the start, including those of scripts. Each call adds one for
    /// each master.
    pub(crate) fn commands(&mut self) -> Result<u64> {
        let mut commands = 0;
        for connection in &mut self.connections {
            let info: String = redis::cmd("INFO").arg("stats").query(connection)?;
            let count = field(&info, "total_commands_processed").context("no count of commands")?;
            commands += count.parse::<u64>()?;
        }
        Ok(commands)
    }

    /// The number of commands since an earlier count, without the counting itself.
    pub(crate) fn commands_since(&mut self, earlier: u64) -> Result<u64> {
        Ok(self.commands()? - earlier - self.connections.len() as u64)
    }

    /// The connected clients, without this connection.
    pub(crate) fn clients(&mut self) -> Result<Clients> {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut self.connections[0])?;
        let is_subscriber = |line: &&str| !line.contains(" sub=0 psub=0 ssub=0 ");
        Ok(Clients {
            connections: list.lines().count() - 1,
            subscribers: list.lines().filter(is_subscriber).count(),
        })
    }

    pub(crate) fn keys(&mut self) -> Result<usize> {
        Ok(redis::cmd("DBSIZE").query(&mut self.connections[0])?)
    }

    /// The names of all keys that expire.
    pub(crate) fn expiring(&mut self) -> Result<Vec<String>> {
        let names: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut self.connections[0])?;
        let left = self.left(&names)?;
        Ok(names
            .into_iter()
            .zip(left)
            .filter(|(_, left)| *left > 0)
            .map(|(name, _)| name)
            .collect())
    }

    /// The time to live of each of these keys in milliseconds; negative if the key does not exist.
    pub(crate) fn left(&mut self, names: &[String]) -> Result<Vec<i64>> {
        let mut left = Vec::with_capacity(names.len());
        for some in names.chunks(500) {
            let mut pipeline = redis::pipe();
            for name in some {
                pipeline.cmd("PTTL").arg(name);
            }
            left.append(&mut pipeline.query(&mut self.connections[0])?);
        }
        Ok(left)
    }
}

impl Processes {
    fn masters(&self) -> Vec<&RedisServer> {
        match self {
            Self::One(server) => vec![server],
            Self::Cluster(cluster) => (0..MASTERS).map(|node| cluster.node(node)).collect(),
        }
    }
}

/// Counts the commands of clients and of scripts separately. No counter of the server does so, but
/// `MONITOR` shows `lua` instead of the address of a client.
pub(crate) struct Monitor {
    stop: Arc<AtomicBool>,
    counting: JoinHandle<Result<Seen>>,
}

impl Monitor {
    pub(crate) fn start(server: &Server) -> Result<Self> {
        // The shares at the other masters are the same.
        let port = server.processes.masters()[0].port();
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.write_all(b"MONITOR\r\n")?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let counting = std::thread::spawn(move || count(socket, &stopped));
        Ok(Self { stop, counting })
    }

    pub(crate) fn stop(self) -> Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.counting.join().map_err(|_| anyhow!("the monitor panicked"))?
    }
}

impl Seen {
    /// The share of the commands that clients have sent.
    pub(crate) fn share(&self) -> f64 {
        let all = self.by_clients + self.by_scripts;
        if all == 0 { 1.0 } else { self.by_clients as f64 / all as f64 }
    }

    fn add(&mut self, line: &[u8]) {
        let Some(at) = line.iter().position(|byte| *byte == b'[') else { return };
        let line = &line[at..];
        let bracket = line.iter().position(|byte| *byte == b']').unwrap_or(line.len());
        if line[..bracket].ends_with(b" lua") {
            self.by_scripts += 1;
        } else if !DRIVER_COMMANDS.iter().any(|own| line[bracket..].starts_with(own)) {
            self.by_clients += 1;
        }
    }
}

/// The commands that the driver sends while a monitor runs.
const DRIVER_COMMANDS: [&[u8]; 5] =
    [b"] \"PTTL\"", b"] \"INFO\"", b"] \"PING\"", b"] \"CLIENT\" \"LIST\"", b"] \"DBSIZE\""];

fn count(mut socket: TcpStream, stop: &AtomicBool) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut buffer = vec![0; 1 << 18];
    let mut kept = 0;
    while !stop.load(Ordering::Relaxed) {
        let read = match socket.read(&mut buffer[kept..]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        };
        let end = kept + read;
        let mut start = 0;
        while let Some(length) = buffer[start..end].iter().position(|byte| *byte == b'\n') {
            seen.add(&buffer[start..start + length]);
            start += length + 1;
        }
        buffer.copy_within(start..end, 0);
        kept = end - start;
        if kept == buffer.len() {
            // Discards the beginning of a line that is longer than the buffer.
            kept = 0;
        }
    }
    Ok(seen)
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(lines: &[&str]) -> Seen {
        let mut seen = Seen::default();
        for line in lines {
            seen.add(line.as_bytes());
        }
        seen
    }

    #[test]
    fn a_script_and_the_commands_that_it_calls_are_distinguished() {
        let lines = [
            r#"+1.5 [0 127.0.0.1:5] "evalsha" "a" "1" "lua]""#,
            r#"+1.5 [0 lua] "get" "k""#,
            r#"+1.5 [0 lua] "del" "[0 127.0.0.1:5]""#,
        ];
        assert_eq!(seen(&lines), Seen { by_clients: 1, by_scripts: 2 });
    }

    #[test]
    fn contestants_connect_with_tls_to_a_server_with_tls() {
        assert!(Server::start(ServerKind::Tls).url().starts_with("rediss://"));
    }

    #[test]
    fn the_commands_of_the_driver_do_not_count() {
        assert_eq!(seen(&["+OK", r#"+1.5 [0 127.0.0.1:5] "INFO" "stats""#]), Seen::default());
    }

    #[test]
    fn without_commands_the_share_of_clients_is_one() {
        assert!((seen(&[]).share() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        assert_eq!(field("total_commands:1\ntotal:2", "total"), Some("2"));
    }
}
