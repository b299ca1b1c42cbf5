//! A connection to a sentinel, and the questions to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ErrorKind, FromRedisValue, PushInfo, PushKind, RedisError, Value, cmd};
use tokio::sync::Notify;

use super::super::announced::ServerAddress;
use super::answer::SentinelAnswer;
use crate::transport::endpoint::Endpoint;
use crate::transport::error;
use crate::transport::handshake::{LoggedIn, SocketGuard, log_in};
use crate::transport::outgoing::Outgoing;
use crate::transport::pipelined::{OnMessage, PipelinedSocket};
use lock_core::store::contract::StoreError;

/// The channels on which a sentinel announces that another server is the master. The leader of a
/// failover announces the promoted replica earlier.
const SWITCH_MASTER: &str = "+switch-master";
const PROMOTED_REPLICA: &str = "+promoted-slave";

/// A connection to one sentinel. The runtime that has opened it serves its socket.
pub(super) struct SentinelConnection {
    sentinel: Arc<Endpoint>,
    commands: PipelinedSocket,
    _guard: SocketGuard,
}

/// The description of a server, by field.
type Fields = HashMap<String, String>;

impl SentinelConnection {
    pub(super) async fn open(sentinel: Arc<Endpoint>) -> Result<Self, StoreError> {
        Self::open_with(sentinel, None).await
    }

    /// Opens a connection that announces a change of the master `name` to `changed`.
    pub(super) async fn open_subscribed(
        sentinel: Arc<Endpoint>,
        name: Arc<str>,
        changed: Arc<Notify>,
    ) -> Result<Self, StoreError> {
        let on_message: OnMessage = Arc::new(move |push: &PushInfo| {
            if is_change_of(push, &name) {
                changed.notify_one();
            }
        });
        let connection = Self::open_with(sentinel, Some(on_message)).await?;
        for channel in [SWITCH_MASTER, PROMOTED_REPLICA] {
            let channels = [Arc::from(channel)];
            let subscribe =
                Outgoing::Subscription { change: PushKind::Subscribe, channels: &channels };
            // A user without this permission learns of changes by asking.
            match connection.commands.send(subscribe).await {
                Err(error) if is_lost(&error) => return Err(connection.failed(&error)),
                _ => {}
            }
        }
        Ok(connection)
    }

    async fn open_with(
        sentinel: Arc<Endpoint>,
        on_message: Option<OnMessage>,
    ) -> Result<Self, StoreError> {
        let LoggedIn { commands, guard, .. } = log_in(&sentinel, on_message).await?;
        Ok(Self { sentinel, commands, _guard: guard })
    }

    /// Asks for the address of the master `name`, and for its replicas.
    pub(super) async fn master(&mut self, name: &str) -> Result<SentinelAnswer, StoreError> {
        // The epoch is asked for first, so that it is not higher than that of the address.
        let fields = match self.ask::<Fields>(&question("MASTER", name)).await {
            Ok(fields) => fields,
            Err(error) if is_lost(&error) => return Err(self.failed(&error)),
            // The name is unknown, or the user lacks the permission.
            Err(_) => Fields::new(),
        };
        let number = |name| fields.get(name).and_then(|value| value.parse().ok());
        let epoch = number("config-epoch");
        let down_after = number("down-after-milliseconds").map(Duration::from_millis);
        let address = self.ask(&question("GET-MASTER-ADDR-BY-NAME", name)).await;
        let master: Option<ServerAddress> = address.map_err(|error| self.failed(&error))?;
        let mut replicas = Vec::new();
        if master.is_some() {
            // The leader of a failover names the earlier master here until the failover has ended.
            replicas.extend(address_in(&fields));
            replicas.extend(self.replicas(name).await?);
        }
        Ok(SentinelAnswer { master, epoch, down_after, replicas })
    }

    /// Asks for the replicas of the master `name`.
    async fn replicas(&mut self, name: &str) -> Result<Vec<ServerAddress>, StoreError> {
        match self.ask::<Vec<Fields>>(&question("REPLICAS", name)).await {
            Ok(replicas) => Ok(replicas.iter().filter_map(address_in).collect()),
            Err(error) if is_lost(&error) => Err(self.failed(&error)),
            // The user lacks the permission.
            Err(_) => Ok(Vec::new()),
        }
    }

    /// Asks for the other sentinels of the master `name`. Leaves out those that do not answer this
    /// one.
    pub(super) async fn others(&mut self, name: &str) -> Result<Vec<ServerAddress>, StoreError> {
        let others = self.ask::<Vec<Fields>>(&question("SENTINELS", name)).await;
        let others = others.map_err(|error| self.failed(&error))?;
        let address = |fields: Fields| {
            let is_down = fields.get("flags")?.split(',').any(|flag| flag.ends_with("_down"));
            address_in(&fields).filter(|_| !is_down)
        };
        Ok(others.into_iter().filter_map(address).collect())
    }

    async fn ask<T: FromRedisValue>(&mut self, question: &Cmd) -> Result<T, RedisError> {
        self.commands.query(question).await
    }

    fn failed(&self, error: &RedisError) -> StoreError {
        match error::classify(error).error {
            StoreError::Denied(cause) if error::is_unknown_command(&cause) => {
                let sentinel = self.sentinel.shown();
                let problem = format!(
                    "{sentinel} is not a sentinel; for a server without sentinels, use `redis://`"
                );
                StoreError::Config { option: "url", problem }
            }
            error => error,
        }
    }
}

/// The address in the description of a server.
fn address_in(fields: &Fields) -> Option<ServerAddress> {
    Some((fields.get("ip")?.clone(), fields.get("port")?.parse().ok()?))
}

fn question(subcommand: &str, name: &str) -> Cmd {
    let mut question = cmd("SENTINEL");
    question.arg(subcommand).arg(name);
    question
}

/// Whether the connection has failed, and not only the question.
fn is_lost(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse)
}

/// Whether a message says that another server is the master `name`: `name old-host old-port
/// new-host new-port`, or `slave … @ name old-host old-port` about the promoted replica.
fn is_change_of(push: &PushInfo, name: &str) -> bool {
    let (PushKind::Message, [_, Value::BulkString(message)]) = (&push.kind, &push.data[..]) else {
        return false;
    };
    let mut words = message.split(|byte| *byte == b' ');
    words.next() == Some(name.as_bytes())
        || (words.any(|word| word == b"@") && words.next() == Some(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_of_the_own_master_count() {
        let message = |text: &str| PushInfo {
            kind: PushKind::Message,
            data: vec![
                Value::BulkString(SWITCH_MASTER.into()),
                Value::BulkString(text.as_bytes().to_vec()),
            ],
        };
        assert!(is_change_of(&message("m 127.0.0.1 1 127.0.0.1 2"), "m"));
        assert!(!is_change_of(&message("m2 127.0.0.1 1 127.0.0.1 2"), "m"));
        let promoted = "slave 127.0.0.1:2 127.0.0.1 2 @ m 127.0.0.1 1";
        assert!(is_change_of(&message(promoted), "m"));
        assert!(!is_change_of(&message(promoted), "slave2"));
        assert!(!is_change_of(&message(promoted), "127.0.0.1"));
        let other = PushInfo { kind: PushKind::Subscribe, data: message("m 1").data };
        assert!(!is_change_of(&other, "m"));
    }
}
