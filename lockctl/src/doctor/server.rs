//! What the server says about itself.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, RedisResult};

use super::Finding;
use crate::span;

/// How long the server may take for each answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A difference of clocks that nobody notices.
const CLOSE: Duration = Duration::from_secs(1);

/// What a server should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerRole {
    Master,
    /// It may become the master.
    Replica,
    /// Either of both.
    Any,
}

/// A connection to the server itself, besides those of the library.
pub(super) struct ServerConnection {
    connection: MultiplexedConnection,
    client: Client,
}

impl ServerConnection {
    /// Connects.
    pub(super) async fn open(client: Client) -> RedisResult<Self> {
        Ok(Self { connection: connected(&client).await?, client })
    }

    /// The number of the database of the URL.
    pub(super) fn database(&self) -> i64 {
        self.client.get_connection_info().redis_settings().db()
    }

    /// Sends a command.
    pub(super) async fn ask<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> RedisResult<T> {
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut self.connection).await
    }

    /// Sends a command after which a connection has no other use, on one of its own.
    pub(super) async fn ask_apart(&self, words: &[&str]) -> RedisResult<()> {
        let mut connection = connected(&self.client).await?;
        redis::cmd(words[0]).arg(&words[1..]).exec_async(&mut connection).await
    }

    /// Checks what `INFO` and `TIME` say.
    pub(super) async fn examine(&mut self, role: ServerRole) -> Vec<Finding> {
        let info = match self.ask::<String>(&["INFO"]).await {
            Ok(text) => Info::new(&text),
            Err(error) => {
                let change = "grant +info, or check these settings yourself";
                return vec![Finding::warn("settings", error.to_string(), change)];
            }
        };
        let settings = [info.version(), info.role(role), info.persistence(), info.eviction()];
        settings.into_iter().chain([self.clock().await]).collect()
    }

    async fn clock(&mut self) -> Finding {
        let before = SystemTime::now();
        let asked = self.ask::<(u64, u64)>(&["TIME"]).await;
        let taken = before.elapsed().unwrap_or_default();
        let (seconds, micros) = match asked {
            Ok(time) => time,
            Err(error) => return Finding::warn("clock", error.to_string(), "grant +time"),
        };
        let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
        // The server has read its clock somewhere in between.
        let ours = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + taken / 2;
        clock(theirs, ours)
    }
}

async fn connected(client: &Client) -> RedisResult<MultiplexedConnection> {
    let limits = AsyncConnectionConfig::new().set_connection_timeout(Some(ANSWER_LIMIT));
    let limits = limits.set_response_timeout(Some(ANSWER_LIMIT));
    client.get_multiplexed_async_connection_with_config(&limits).await
}

fn clock(theirs: Duration, ours: Duration) -> Finding {
    let difference = theirs.abs_diff(ours);
    let side = if theirs > ours { "ahead of" } else { "behind" };
    let found = format!("the server is {} {side} this machine", span::show(difference));
    if difference < CLOSE {
        return Finding::ok("clock", found);
    }
    let change = "use a time service on both; ages of locks are wrong by this difference, and locks in the format \
                  Timestamp";
    Finding::warn("clock", found, change)
}

/// The fields of `INFO`.
struct Info(HashMap<String, String>);

impl Info {
    fn new(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.trim().split_once(':'));
        Self(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn field(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn version(&self) -> Finding {
        if let Some(valkey) = self.0.get("valkey_version") {
            return Finding::ok("version", format!("Valkey {valkey}"));
        }
        let text = self.field("redis_version");
        let mut numbers = text.split('.').map(|part| part.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        let version: (u32, u32, u32) = (next(), next(), next());
        let found = format!("Redis {text}");
        // Its tracking table may crash the server when it is full.
        let crashes = [(6, 2, 7)..=(6, 2, 10), (7, 0, 0)..=(7, 0, 8)];
        let may_crash = crashes.iter().any(|versions| versions.contains(&version));
        match version {
            _ if version < (6, 0, 0) => Finding::fail("version", found, "use Redis 6.0 or newer"),
            _ if may_crash => {
                let change = "update to the last patch: with many long holds, this version may crash (or use \
                              `tracking(false)`)";
                Finding::warn("version", found, change)
            }
            _ => Finding::ok("version", found),
        }
    }

    fn role(&self, expected: ServerRole) -> Finding {
        match (self.field("role"), expected) {
            ("master", ServerRole::Master | ServerRole::Any) => Finding::ok("role", "master"),
            ("slave", ServerRole::Replica | ServerRole::Any) => {
                match self.field("master_link_status") {
                    "up" => Finding::ok("role", "replica"),
                    link => {
                        let found = format!("replica, whose link to its master is {link}");
                        Finding::warn("role", found, "it cannot replace its master now")
                    }
                }
            }
            ("master", ServerRole::Replica) => {
                Finding::warn("role", "master", "repeat in a moment: it should be a replica")
            }
            (role, _) => {
                Finding::fail("role", role, "use the URL of the master, or `redis+sentinel://`")
            }
        }
    }

    fn persistence(&self) -> Finding {
        let check = "persistence";
        if self.field("aof_enabled") == "1" {
            return Finding::ok(check, "append-only file");
        }
        let change = "set `appendonly yes`, so that a restart does not lose the locks; or use fencing tokens";
        Finding::warn(check, "no append-only file", change)
    }

    fn eviction(&self) -> Finding {
        let (limit, policy) = (self.field("maxmemory"), self.field("maxmemory_policy"));
        let found = format!("maxmemory {limit}, {policy}");
        if limit == "0" || policy == "noeviction" {
            return Finding::ok("eviction", found);
        }
        let change = "set `maxmemory-policy noeviction`: the server may evict locks that are held";
        Finding::fail("eviction", found, change)
    }
}

/// Whether the server has refused a command because of missing permissions.
pub(super) fn is_denied(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn verdicts(text: &str) -> [Verdict; 4] {
        let info = Info::new(text);
        let role = info.role(ServerRole::Master);
        [info.version(), role, info.persistence(), info.eviction()].map(|it| it.result)
    }

    #[test]
    fn settings_are_judged() {
        use Verdict::{Fail, Ok, Warn};

        let good = "redis_version:7.2.5\r\nrole:master\r\naof_enabled:1\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert_eq!(verdicts(good), [Ok, Ok, Ok, Ok]);
        let bad = "redis_version:5.0.14\nrole:slave\naof_enabled:0\nmaxmemory:100\nmaxmemory_policy:volatile-lru\n";
        assert_eq!(verdicts(bad), [Fail, Fail, Warn, Fail]);
        let other =
            "redis_version:7.0.8\nvalkey_version:\nmaxmemory:100\nmaxmemory_policy:noeviction";
        assert_eq!(verdicts(other), [Ok, Fail, Warn, Ok]);
        assert_eq!(verdicts("redis_version:7.0.8")[0], Warn);
    }

    #[test]
    fn replicas_are_judged_by_their_links() {
        let role = |text: &str, expected| Info::new(text).role(expected).result;
        let (up, down) =
            ("role:slave\nmaster_link_status:up", "role:slave\nmaster_link_status:down");
        for expected in [ServerRole::Replica, ServerRole::Any] {
            assert_eq!(role(up, expected), Verdict::Ok);
            assert_eq!(role(down, expected), Verdict::Warn);
        }
        assert_eq!(role(up, ServerRole::Master), Verdict::Fail);
        assert_eq!(role("role:master", ServerRole::Replica), Verdict::Warn);
    }

    #[test]
    fn clocks_may_differ_by_less_than_a_second() {
        let now = Duration::from_secs(1_700_000_000);
        let verdict = |theirs| clock(theirs, now).result;
        let near = Duration::from_millis(900);
        assert_eq!(verdict(now + near), Verdict::Ok);
        assert_eq!(verdict(now + near * 2), Verdict::Warn);
        assert!(clock(now, now + near * 9).found.contains("8.1s behind"));
    }
}
