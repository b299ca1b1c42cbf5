//! The benchmark's own Redis, and what it counts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use lock_tests::RedisServer;

use crate::figures::percentile;

/// How many round trips are taken for the median.
const PINGS: usize = 300;

/// A server with a connection to look at it.
pub(crate) struct Server {
    redis: RedisServer,
    connection: redis::Connection,
}

/// Commands seen in a while.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) by_clients: u64,
    pub(crate) by_scripts: u64,
}

/// Who is connected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clients {
    pub(crate) connections: usize,
    /// Of these, how many listen to a channel.
    pub(crate) subscribers: usize,
}

impl Server {
    pub(crate) fn start() -> Self {
        let redis = RedisServer::with(&["--maxclients", "30000"]);
        let connection = redis.connection();
        Self { redis, connection }
    }

    pub(crate) fn url(&self) -> String {
        self.redis.url()
    }

    pub(crate) fn version(&mut self) -> Result<String> {
        let info: String = redis::cmd("INFO").arg("server").query(&mut self.connection)?;
        Ok(field(&info, "redis_version").context("no version")?.to_owned())
    }

    /// Forgets all keys. What is under way may still make some.
    pub(crate) fn clear(&mut self) -> Result<()> {
        Ok(redis::cmd("FLUSHALL").exec(&mut self.connection)?)
    }

    /// The median round trip of a PING, in nanoseconds.
    pub(crate) fn round_trip(&mut self) -> Result<f64> {
        let mut trips = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let start = Instant::now();
            redis::cmd("PING").exec(&mut self.connection)?;
            trips.push(start.elapsed().as_nanos() as u64);
        }
        Ok(percentile(&mut trips, 0.5).unwrap_or_default() as f64)
    }

    /// All commands since the start, those inside scripts included. Each look is
    /// one more.
    pub(crate) fn commands(&mut self) -> Result<u64> {
        let info: String = redis::cmd("INFO").arg("stats").query(&mut self.connection)?;
        let count = field(&info, "total_commands_processed").context("no count of commands")?;
        Ok(count.parse()?)
    }

    /// Who is connected besides us.
    pub(crate) fn clients(&mut self) -> Result<Clients> {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut self.connection)?;
        let listens = |line: &&str| !line.contains(" sub=0 psub=0 ssub=0 ");
        Ok(Clients {
            connections: list.lines().count() - 1,
            subscribers: list.lines().filter(listens).count(),
        })
    }

    pub(crate) fn keys(&mut self) -> Result<usize> {
        Ok(redis::cmd("DBSIZE").query(&mut self.connection)?)
    }

    /// The names of all keys that expire.
    pub(crate) fn expiring(&mut self) -> Result<Vec<String>> {
        let names: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut self.connection)?;
        let left = self.left(&names)?;
        Ok(names
            .into_iter()
            .zip(left)
            .filter(|(_, left)| *left > 0)
            .map(|(name, _)| name)
            .collect())
    }

    /// How many milliseconds each of these keys has left; negative if it is gone.
    pub(crate) fn left(&mut self, names: &[String]) -> Result<Vec<i64>> {
        let mut left = Vec::with_capacity(names.len());
        for some in names.chunks(500) {
            let mut pipeline = redis::pipe();
            for name in some {
                pipeline.cmd("PTTL").arg(name);
            }
            left.append(&mut pipeline.query(&mut self.connection)?);
        }
        Ok(left)
    }
}

/// Counts commands by who sent them, which no counter of the server does: `MONITOR` says `lua`
/// where a client's address would be.
pub(crate) struct Monitor {
    stop: Arc<AtomicBool>,
    counting: JoinHandle<Result<Seen>>,
}

impl Monitor {
    pub(crate) fn start(server: &Server) -> Result<Self> {
        let mut socket = TcpStream::connect(("127.0.0.1", server.redis.port()))?;
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
    /// How many of all commands clients sent themselves.
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
        } else if !OURS.iter().any(|ours| line[bracket..].starts_with(ours)) {
            self.by_clients += 1;
        }
    }
}

/// What the driver itself sends while somebody counts.
const OURS: [&[u8]; 5] =
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
            // A line of that length is one command all the same.
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
    fn a_script_and_what_it_calls_are_told_apart() {
        let lines = [
            r#"+1.5 [0 127.0.0.1:5] "evalsha" "a" "1" "lua]""#,
            r#"+1.5 [0 lua] "get" "k""#,
            r#"+1.5 [0 lua] "del" "[0 127.0.0.1:5]""#,
        ];
        assert_eq!(seen(&lines), Seen { by_clients: 1, by_scripts: 2 });
    }

    #[test]
    fn the_drivers_own_looks_do_not_count() {
        assert_eq!(seen(&["+OK", r#"+1.5 [0 127.0.0.1:5] "INFO" "stats""#]), Seen::default());
    }

    #[test]
    fn who_sent_nothing_sent_nothing_through_scripts() {
        assert!((seen(&[]).share() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        assert_eq!(field("total_commands:1\ntotal:2", "total"), Some("2"));
    }
}
