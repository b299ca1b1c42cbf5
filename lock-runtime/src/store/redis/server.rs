//! What a server says of itself, and whether locks can be kept there.
//!
//! Looked at once, when a client connects: what cannot work is refused then, in words, instead of
//! failing at some call later; what can go wrong one day is warned about.

use crate::error::LockError;

/// The oldest version that has all that is used: scripts with effects replication, and the third
/// protocol version with its messages.
const OLDEST: u32 = 6;

/// A server's own description, as far as locks depend on it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Server {
    version: String,
    /// `standalone`, `cluster` or `sentinel`.
    mode: String,
    /// `master` or `slave`.
    role: String,
    max_memory: u64,
    eviction: String,
}

impl Server {
    /// From the reply to `INFO`. What it does not say stays empty, and is then not judged.
    pub(super) fn parse(info: &str) -> Self {
        let mut server = Self::default();
        for (name, value) in info.lines().filter_map(|line| line.trim_end().split_once(':')) {
            match name {
                "redis_version" => value.clone_into(&mut server.version),
                // Valkey calls it so.
                "redis_mode" | "server_mode" => value.clone_into(&mut server.mode),
                "role" => value.clone_into(&mut server.role),
                "maxmemory" => server.max_memory = value.parse().unwrap_or_default(),
                "maxmemory_policy" => value.clone_into(&mut server.eviction),
                _ => {}
            }
        }
        server
    }

    /// Refuses a server on which locks would not work.
    pub(super) fn check(&self) -> Result<(), LockError> {
        let major: Option<u32> = self.version.split('.').next().and_then(|n| n.parse().ok());
        if major.is_some_and(|major| major < OLDEST) {
            return Err(too_old(&self.version));
        }
        let problem = match self.mode.as_str() {
            "cluster" => {
                "the server is a node of a Redis Cluster, which is not supported yet: renewals of \
                 several locks would fail there; use one that is not"
            }
            "sentinel" => {
                "the server is a Sentinel, which keeps no data: use the address of the master that \
                 it watches"
            }
            _ => return Ok(()),
        };
        Err(LockError::Config { option: "url", problem: problem.into() })
    }

    /// What may be wrong with it, or cost a held lock one day.
    pub(super) fn warning(&self) -> Option<String> {
        if self.role == "slave" {
            let warning = "the server is a replica, on which locks cannot be taken: use the address of \
                           its master";
            return Some(warning.into());
        }
        let evicts = self.max_memory > 0 && !matches!(self.eviction.as_str(), "" | "noeviction");
        evicts.then(|| {
            format!(
                "the server evicts keys when its {} bytes of memory are used up \
                 (`maxmemory-policy {}`), and may evict held locks: set the policy to `noeviction`, \
                 or use a server of its own for locks",
                self.max_memory, self.eviction
            )
        })
    }
}

fn too_old(version: &str) -> LockError {
    let problem = format!("the server is Redis {version}, and {OLDEST}.0 or newer is needed");
    LockError::Config { option: "url", problem }
}

/// For one that does not know the first command on every connection.
pub(super) fn without_hello() -> LockError {
    let problem = format!(
        "the server does not know the command `HELLO`: it is older than Redis {OLDEST}.0, or the \
         command is switched off there"
    );
    LockError::Config { option: "url", problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(lines: &[&str]) -> Server {
        Server::parse(&lines.join("\r\n"))
    }

    fn refusal(server: &Server) -> String {
        match server.check() {
            Err(LockError::Config { option: "url", problem }) => problem,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_ordinary_server_is_taken_without_a_word() {
        for lines in [
            ["# Server", "redis_version:6.0.16", "redis_mode:standalone", "maxmemory:0"],
            ["# Server", "redis_version:7.2.4", "server_name:valkey", "server_mode:standalone"],
            ["maxmemory:0", "maxmemory_policy:allkeys-lru", "redis_version:8.4.0", ""],
            ["maxmemory:1024", "maxmemory_policy:noeviction", "redis_version:8.4.0", ""],
            ["", "", "", "what nobody has heard of"],
        ] {
            let server = server(&lines);
            assert_eq!((server.check(), server.warning()), (Ok(()), None), "{lines:?}");
        }
    }

    #[test]
    fn a_server_that_is_too_old_is_refused() {
        for version in ["5.0.14", "2.8.4", "3"] {
            let problem = refusal(&server(&[&format!("redis_version:{version}")]));
            assert!(problem.contains(version) && problem.contains("6.0"), "{problem}");
        }
    }

    #[test]
    fn a_server_of_another_kind_is_refused() {
        for (mode, words) in [("cluster", "Redis Cluster"), ("sentinel", "master")] {
            for name in ["redis_mode", "server_mode"] {
                let problem = refusal(&server(&[&format!("{name}:{mode}")]));
                assert!(problem.contains(words), "{problem}");
            }
        }
    }

    #[test]
    fn a_replica_is_warned_about() {
        let warning = server(&["role:slave", "redis_mode:standalone"]).warning();
        assert!(warning.expect("it may become a master").contains("replica"));
        assert_eq!(server(&["role:master"]).warning(), None);
    }

    #[test]
    fn a_server_that_evicts_is_warned_about() {
        for policy in ["allkeys-lru", "volatile-ttl", "volatile-lru", "allkeys-random"] {
            let server = server(&["maxmemory:1024", &format!("maxmemory_policy:{policy}")]);
            assert_eq!(server.check(), Ok(()));
            let warning = server.warning().expect("it evicts");
            assert!(warning.contains(policy) && warning.contains("noeviction"), "{warning}");
        }
    }
}
