//! The server's description of itself, and whether the server can be used for locks.
//!
//! The description is checked when a client connects. A server on which locks cannot work is then
//! an error with an explanation, instead of a failure of some later call. A setting that may cause
//! trouble is logged as a warning.

use super::error;
use crate::error::LockError;

/// The oldest major version with effects replication of scripts, and with protocol version 3 and
/// its push messages.
const OLDEST: u32 = 6;

/// The part of a server's description that matters for locks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ServerInfo {
    version: String,
    /// `standalone`, `cluster` or `sentinel`.
    mode: String,
    /// `master` or `slave`.
    role: String,
    max_memory: u64,
    eviction: String,
}

impl ServerInfo {
    /// Parses the reply to `INFO`. Missing fields stay empty, and are not checked.
    pub(super) fn parse(info: &str) -> Self {
        let mut server = Self::default();
        for (name, value) in info.lines().filter_map(|line| line.trim_end().split_once(':')) {
            match name {
                "redis_version" => value.clone_into(&mut server.version),
                // Valkey uses the second name.
                "redis_mode" | "server_mode" => value.clone_into(&mut server.mode),
                "role" => value.clone_into(&mut server.role),
                "maxmemory" => server.max_memory = value.parse().unwrap_or_default(),
                "maxmemory_policy" => value.clone_into(&mut server.eviction),
                _ => {}
            }
        }
        server
    }

    /// Returns an error for a server on which locks would not work.
    pub(super) fn check(&self) -> Result<(), LockError> {
        let major: Option<u32> = self.version.split('.').next().and_then(|n| n.parse().ok());
        if major.is_some_and(|major| major < OLDEST) {
            return Err(too_old(&self.version));
        }
        let problem = match self.mode.as_str() {
            "cluster" => {
                "the server is a node of a Redis Cluster, which is not supported yet, because \
                 renewals of several locks would fail; use a server that is not part of a cluster"
            }
            "sentinel" => {
                "the server is a Sentinel, which stores no data; use the address of the master \
                 that it monitors"
            }
            _ => return Ok(()),
        };
        Err(LockError::Config { option: "url", problem: problem.into() })
    }

    /// Describes a setting that may prevent locks, or may lose a held lock.
    pub(super) fn warning(&self) -> Option<String> {
        if self.role == "slave" {
            let warning = "the server is a replica, where locks cannot be acquired; use the \
                           address of its master";
            return Some(warning.into());
        }
        let evicts = self.max_memory > 0 && !matches!(self.eviction.as_str(), "" | "noeviction");
        evicts.then(|| {
            format!(
                "the server evicts keys when its {} bytes of memory are used up \
                 (`maxmemory-policy {}`), and may evict held locks; set the policy to \
                 `noeviction`, or use a separate server for locks",
                self.max_memory, self.eviction
            )
        })
    }
}

fn too_old(version: &str) -> LockError {
    let problem = format!("the server is Redis {version}; version {OLDEST}.0 or newer is required");
    LockError::Config { option: "url", problem }
}

/// Explains why a server denied a request, if another user or password would not help.
pub(super) fn permanent(cause: &str) -> Option<String> {
    if error::is_too_old(cause) {
        Some(without_hello())
    } else if error::is_unknown_command(cause) {
        Some(without_scripts(cause))
    } else if cause.contains(error::NO_SUCH_DATABASE) {
        Some("the server has no database with this number".into())
    } else {
        None
    }
}

/// `HELLO` is the first command on every connection.
fn without_hello() -> String {
    format!(
        "the server does not have the command `HELLO`: it is older than Redis {OLDEST}.0, or the \
         command is disabled"
    )
}

fn without_scripts(cause: &str) -> String {
    format!(
        "the server cannot run the scripts that release and renew locks ({cause}); enable `EVAL` \
         and `EVALSHA`, or use another server"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(lines: &[&str]) -> ServerInfo {
        ServerInfo::parse(&lines.join("\r\n"))
    }

    fn problem(server: &ServerInfo) -> String {
        match server.check() {
            Err(LockError::Config { option: "url", problem }) => problem,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_ordinary_server_is_accepted_without_a_warning() {
        for lines in [
            ["# ServerInfo", "redis_version:6.0.16", "redis_mode:standalone", "maxmemory:0"],
            ["# ServerInfo", "redis_version:7.2.4", "server_name:valkey", "server_mode:standalone"],
            ["maxmemory:0", "maxmemory_policy:allkeys-lru", "redis_version:8.4.0", ""],
            ["maxmemory:1024", "maxmemory_policy:noeviction", "redis_version:8.4.0", ""],
            ["", "", "", "not a field"],
        ] {
            let server = server(&lines);
            assert_eq!((server.check(), server.warning()), (Ok(()), None), "{lines:?}");
        }
    }

    #[test]
    fn a_server_that_is_too_old_is_an_error() {
        for version in ["5.0.14", "2.8.4", "3"] {
            let problem = problem(&server(&[&format!("redis_version:{version}")]));
            assert!(problem.contains(version) && problem.contains("6.0"), "{problem}");
        }
    }

    #[test]
    fn a_server_in_another_mode_is_an_error() {
        for (mode, words) in [("cluster", "Redis Cluster"), ("sentinel", "master")] {
            for name in ["redis_mode", "server_mode"] {
                let problem = problem(&server(&[&format!("{name}:{mode}")]));
                assert!(problem.contains(words), "{problem}");
            }
        }
    }

    #[test]
    fn a_replica_is_a_warning() {
        let warning = server(&["role:slave", "redis_mode:standalone"]).warning();
        assert!(warning.expect("it may become a master").contains("replica"));
        assert_eq!(server(&["role:master"]).warning(), None);
    }

    #[test]
    fn an_eviction_policy_is_a_warning() {
        for policy in ["allkeys-lru", "volatile-ttl", "volatile-lru", "allkeys-random"] {
            let server = server(&["maxmemory:1024", &format!("maxmemory_policy:{policy}")]);
            assert_eq!(server.check(), Ok(()));
            let warning = server.warning().expect("it evicts");
            assert!(warning.contains(policy) && warning.contains("noeviction"), "{warning}");
        }
    }
}
