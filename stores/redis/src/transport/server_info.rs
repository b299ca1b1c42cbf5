//! The server's description of itself, and whether the server can be used for locks.
//!
//! The description is checked when a client connects. A server on which locks cannot work is then
//! an error with an explanation, instead of a failure of some later call. A setting that may cause
//! trouble is logged as a warning.

use super::error;
use lock_core::error::LockError;
use lock_core::replicas::RequiredReplicas;
use lock_core::store::profile::StoreProfile;

/// The oldest major version with effects replication of scripts, and with protocol version 3 and
/// its push messages.
const OLDEST: u32 = 6;

/// The part of a server's description that matters for locks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    version: String,
    /// The name of the server and its own version, if it is not Redis.
    name: String,
    own_version: String,
    run_id: String,
    /// `standalone`, `cluster` or `sentinel`.
    mode: String,
    /// `master` or `slave`.
    role: String,
    max_memory: u64,
    eviction: String,
    replicas: u64,
    /// Whether the server refuses writes while too few replicas are connected
    /// (`min-replicas-to-write`).
    needs_replicas: bool,
    /// Whether the server writes an append-only file; `None` if it does not tell.
    appends: Option<bool>,
}

impl ServerInfo {
    /// Parses the reply to `INFO`. Missing fields stay empty, and are not checked.
    pub(crate) fn parse(info: &str) -> Self {
        let mut server = Self::default();
        for (name, value) in info.lines().filter_map(|line| line.trim_end().split_once(':')) {
            match name {
                "redis_version" => value.clone_into(&mut server.version),
                "valkey_version" => value.clone_into(&mut server.own_version),
                "server_name" => value.clone_into(&mut server.name),
                "run_id" => value.clone_into(&mut server.run_id),
                // Valkey uses the second name.
                "redis_mode" | "server_mode" => value.clone_into(&mut server.mode),
                "role" => value.clone_into(&mut server.role),
                "maxmemory" => server.max_memory = value.parse().unwrap_or_default(),
                "maxmemory_policy" => value.clone_into(&mut server.eviction),
                "connected_slaves" => server.replicas = value.parse().unwrap_or_default(),
                // The field exists only if the option is set.
                "min_slaves_good_slaves" => server.needs_replicas = true,
                "aof_enabled" => server.appends = Some(value == "1"),
                _ => {}
            }
        }
        server
    }

    /// Returns an error for a server on which locks would not work. `in_cluster` says whether the
    /// URL names a cluster.
    pub(crate) fn check(&self, in_cluster: bool) -> Result<(), LockError> {
        let major: Option<u32> = self.version.split('.').next().and_then(|n| n.parse().ok());
        if major.is_some_and(|major| major < OLDEST) {
            return Err(too_old(&self.version));
        }
        let problem = match self.mode.as_str() {
            "cluster" if !in_cluster => {
                "the server is a node of a Redis Cluster; use `redis+cluster://host:port` or \
                 `rediss+cluster://host:port`"
            }
            "sentinel" => {
                "the server is a sentinel, which stores no data; use \
                 `redis+sentinel://host:port/master-name`"
            }
            _ => return Ok(()),
        };
        Err(LockError::config("url", problem))
    }

    /// What identifies the server among those of a quorum.
    pub(crate) fn profile(&self) -> StoreProfile {
        let version = if self.own_version.is_empty() { &self.version } else { &self.own_version };
        let major = version.split('.').next().filter(|major| !major.is_empty());
        let name = if self.name.is_empty() { "redis" } else { &self.name };
        StoreProfile {
            servers: Some(self.run_id.clone()).filter(|id| !id.is_empty()).into_iter().collect(),
            is_replica: self.role == "slave",
            version: major.map(|major| format!("{name} {major}")),
        }
    }

    /// Describes the settings that may prevent locks, or may lose a held lock. The client's locks
    /// count only if these replicas have them.
    pub(crate) fn warnings(&self, acknowledged_by: RequiredReplicas) -> Vec<String> {
        if self.role == "slave" {
            let warning = "the server is a replica, where locks cannot be acquired; use the \
                           address of its master";
            return vec![warning.into()];
        }
        let mut warnings = Vec::new();
        if self.max_memory > 0 && !matches!(self.eviction.as_str(), "" | "noeviction") {
            warnings.push(format!(
                "the server evicts keys when its {} bytes of memory are used up \
                 (`maxmemory-policy {}`), and may evict held locks; set the policy to \
                 `noeviction`, or use a separate server for locks",
                self.max_memory, self.eviction
            ));
        }
        if self.replicas > 0 && !self.needs_replicas && acknowledged_by.is_none() {
            warnings.push(
                "the server accepts writes that no replica has received, so a failover may lose \
                 locks that have just been acquired; set `acknowledged_by`, or the server's \
                 `min-replicas-to-write`, which limits this, and use fencing tokens where an \
                 overlap matters"
                    .into(),
            );
        }
        if self.replicas > 0 && self.appends == Some(false) {
            warnings.push(
                "the server has replicas and no append-only file: if it restarts without a \
                 failover, it comes back without its latest data, and its replicas follow, so held \
                 locks may be lost; set `appendonly yes`"
                    .into(),
            );
        }
        warnings
    }
}

/// A field of the reply to `INFO`.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
    fields.into_iter().find(|(field, _)| *field == name).map(|(_, value)| value)
}

fn too_old(version: &str) -> LockError {
    let problem = format!("the server is Redis {version}; version {OLDEST}.0 or newer is required");
    LockError::config("url", problem)
}

/// Explains why a server denied a request, if another user or password would not help.
pub(crate) fn permanent(cause: &str) -> Option<String> {
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
    use lock_core::replicas::Replicas;

    fn server(lines: &[&str]) -> ServerInfo {
        ServerInfo::parse(&lines.join("\r\n"))
    }

    fn problem(server: &ServerInfo) -> String {
        match server.check(false) {
            Err(LockError::Config { option: "url", problem, .. }) => problem,
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
            assert_eq!(
                (server.check(false), server.warnings(RequiredReplicas::NONE)),
                (Ok(()), vec![]),
                "{lines:?}"
            );
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
        for (mode, words) in [("cluster", "Redis Cluster"), ("sentinel", "`redis+sentinel://")] {
            for name in ["redis_mode", "server_mode"] {
                let problem = problem(&server(&[&format!("{name}:{mode}")]));
                assert!(problem.contains(words), "{problem}");
            }
        }
    }

    #[test]
    fn a_replica_is_a_warning() {
        let warnings =
            server(&["role:slave", "redis_mode:standalone"]).warnings(RequiredReplicas::NONE);
        assert!(warnings.len() == 1 && warnings[0].contains("is a replica"), "{warnings:?}");
        assert_eq!(server(&["role:master"]).warnings(RequiredReplicas::NONE), [""; 0]);
    }

    #[test]
    fn settings_with_which_a_failover_loses_locks_are_warnings() {
        let of = |lines: &[&str]| {
            server(&[&["role:master"], lines].concat()).warnings(RequiredReplicas::NONE)
        };
        let warnings = of(&["connected_slaves:1", "aof_enabled:0"]);
        assert_eq!(warnings.len(), 2);
        assert!(warnings[0].contains("min-replicas-to-write"), "{warnings:?}");
        assert!(warnings[1].contains("appendonly yes"), "{warnings:?}");
        for lines in [
            ["connected_slaves:0", "aof_enabled:0", ""],
            ["connected_slaves:2", "min_slaves_good_slaves:2", "aof_enabled:1"],
            ["connected_slaves:2", "min_slaves_good_slaves:0", ""],
        ] {
            assert_eq!(of(&lines), [""; 0], "{lines:?}");
        }
        // Locks that replicas have to acknowledge are no locks before.
        let required = Replicas::All.required().expect("valid");
        let warnings = server(&["role:master", "connected_slaves:1"]).warnings(required);
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn an_eviction_policy_is_a_warning() {
        for policy in ["allkeys-lru", "volatile-ttl", "volatile-lru", "allkeys-random"] {
            let server = server(&["maxmemory:1024", &format!("maxmemory_policy:{policy}")]);
            assert_eq!(server.check(false), Ok(()));
            let warnings = server.warnings(RequiredReplicas::NONE);
            assert!(warnings[0].contains(policy) && warnings[0].contains("noeviction"));
        }
    }
}
