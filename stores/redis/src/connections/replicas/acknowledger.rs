//! A connection over which replicas acknowledge what their master has written.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use redis::Pipeline;
use tokio::time::{Instant, timeout};

use super::round::{RoundAnswer, RoundResult, Rounds};
use crate::connections::admission::RequestClass;
use crate::connections::connection::{Connection, RequestOptions};
use crate::connections::request::KeyServer;
use crate::hash_slot::{self, SLOTS};
use crate::scripts::decode::{self, ReplicationReply};
use crate::scripts::dialect::milliseconds;
use crate::topology::{Redirect, RedisCluster};
use crate::transport::error;
use crate::transport::server_info::field;
use lock_core::key;
use lock_core::replicas::RequiredReplicas;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::{SendTrace, StoreError};
use lock_core::sync::{Mutex, lock};
use lock_core::timeout::RequestTimeout;

/// How long the key stays that is written before each `WAIT`.
const WRITTEN_FOR: Duration = Duration::from_secs(1);

/// How many more slots of a node are tried if one is being moved to another node.
const MORE_SLOTS: usize = 2;

/// A connection that carries nothing but `WAIT`, for one requirement.
pub(super) struct Acknowledger {
    connection: Connection,
    /// The node of a cluster to which the connection leads.
    node: Option<(Arc<RedisCluster>, u32)>,
    required: RequiredReplicas,
    server: Mutex<KnownServer>,
    rounds: Rounds,
}

/// What is known of the server.
#[derive(Debug, Clone, Copy, Default)]
struct KnownServer {
    /// Connections that lead to the same process, which permits `WAIT`.
    verified: Option<ConnectionPair>,
    /// The number of replicas, as far as the server says it, and the acknowledging connection over
    /// which it did.
    replicas: Option<(u32, u64)>,
}

impl KnownServer {
    /// The number of replicas if all of them are required. A replica that the server does not
    /// report any more counts for as long as the connection lasts.
    fn all_over(self, connection: u64) -> Option<u32> {
        let (replicas, over) = self.replicas?;
        (over == connection).then_some(replicas)
    }
}

/// The connection of requests and the acknowledging one, by their generations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionPair {
    pub(super) requests: u64,
    pub(super) own: u64,
}

/// The answers to several commands, and the generation of the connection that has carried them.
struct Answers {
    connection: u64,
    answers: Vec<Result<ReplicationReply, StoreError>>,
}

impl Acknowledger {
    /// For the requests of a connection.
    pub(super) fn new(key_server: &KeyServer, required: RequiredReplicas) -> Self {
        let KeyServer { connection, node } = key_server;
        Self {
            connection: connection.sibling(),
            node: node.clone(),
            required,
            server: Mutex::default(),
            rounds: Rounds::default(),
        }
    }

    /// Whether the connection may still be used.
    pub(super) fn is_alive(&self) -> bool {
        !self.connection.is_obsolete()
    }

    /// Connects, and makes sure that both connections lead to the same server, and that it permits
    /// `WAIT`. Costs no round trip if this is known.
    pub(super) async fn connect(
        &self,
        requests: &Connection,
        slot: u16,
        within: Duration,
    ) -> Result<ConnectionPair, StoreError> {
        let started = Instant::now();
        let left = || within.saturating_sub(started.elapsed());
        let theirs = requests.established(within).await?.generation;
        let own = self.connection.established(left()).await?.generation;
        let pair = ConnectionPair { requests: theirs, own };
        let is_verified = lock(&self.server).verified == Some(pair);
        if !is_verified {
            // Boxed, because it is rare.
            Box::pin(self.verify(requests, pair, (slot, left()))).await?;
        }
        Ok(pair)
    }

    /// Describes the problem if the server has too few replicas.
    pub(super) fn shortage(&self) -> Option<String> {
        let (mut server, required) = (lock(&self.server), self.required);
        let (few, _) = server.replicas.filter(|(replicas, _)| *replicas < required.at_least)?;
        // The next request asks again.
        server.verified = None;
        Some(format!("the server has {}; `acknowledged_by` requires {required}", count(few)))
    }

    async fn verify(
        &self,
        requests: &Connection,
        pair: ConnectionPair,
        (slot, within): (u16, Duration),
    ) -> Result<(), StoreError> {
        let mut asked = Pipeline::with_capacity(1);
        asked.cmd("INFO").arg("server");
        let theirs = send(requests, &asked, within).await?;
        let mut asked = self.round(slot, 0, Duration::ZERO);
        asked.cmd("INFO").arg("server").cmd("INFO").arg("replication");
        let own = send(&self.connection, &asked, within).await?;
        let mut answers = own.answers.into_iter();
        for answer in answers.by_ref().take(self.round_length()) {
            answer.map_or_else(|error| permitted(error, self.node.is_some()), |_| Ok(()))?;
        }
        let their_id = run_id(theirs.answers.into_iter().next())?;
        let is_same_process =
            their_id == run_id(answers.next())? || !Safeguard::OneServerAcknowledges.is_on();
        if !is_same_process {
            // Each of them may be the one that leads to the earlier server.
            self.connection.discard(own.connection);
            requests.discard(theirs.connection);
        }
        if !is_same_process || (theirs.connection, own.connection) != (pair.requests, pair.own) {
            let cause = "the connection for acknowledgements leads to another server";
            return Err(StoreError::Refused(cause.into()));
        }
        let reported = match answers.next() {
            Some(Ok(ReplicationReply::Text(info))) => replicas(&info),
            _ => None,
        };
        if reported.is_none() && self.required.all {
            let problem = "the server does not say how many replicas it has; require a number";
            let (option, problem) = ("acknowledged_by", problem.into());
            return Err(StoreError::Config { option, problem });
        }
        let mut server = lock(&self.server);
        let known = server.all_over(pair.own).filter(|_| self.required.all);
        let replicas = reported.max(known).map(|replicas| (replicas, pair.own));
        *server = KnownServer { verified: Some(pair), replicas };
        Ok(())
    }

    /// Waits until the replicas have everything that the server has written so far. `own` is the
    /// generation of the connection that has to carry the acknowledgement.
    ///
    /// Cancel safe.
    pub(super) async fn acknowledge(
        self: &Arc<Self>,
        own: u64,
        slot: u16,
        within: Duration,
    ) -> Result<(), StoreError> {
        let started = Instant::now();
        let (mut result, must_start) = self.rounds.join(slot);
        if must_start {
            let acknowledger = Arc::clone(self);
            self.connection.spawn(async move { acknowledger.run().await });
        }
        // Enough for the round that is under way, and for the next one.
        let patience = within.min(self.connection.response_timeout() * 2);
        let result = match timeout(patience, result.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => result.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        let problem = match result {
            Some(Ok(round)) if round.acknowledged < round.required => {
                self.missing(round.acknowledged, round.patience)
            }
            Some(Ok(round))
                if round.connection == own || !Safeguard::OneServerAcknowledges.is_on() =>
            {
                return Ok(());
            }
            Some(Ok(_)) => "the connection for acknowledgements was lost, so it is not known \
                            whether replicas have the lock"
                .into(),
            Some(Err(error)) => format!("replicas have not acknowledged the lock: {error}"),
            None => {
                let waited = started.elapsed().as_millis();
                let required = self.required;
                format!(
                    "no answer to `WAIT` within {waited} ms, so it is not known whether replicas \
                     have the lock; `acknowledged_by` requires {required}"
                )
            }
        };
        lock(&self.server).verified = None;
        Err(StoreError::Unknown(problem))
    }

    /// Says which replicas are missing.
    fn missing(&self, acknowledged: u32, waited: Duration) -> String {
        let all = lock(&self.server).replicas.map(|(all, _)| all.max(acknowledged));
        let of = match all {
            Some(all) => format!("{acknowledged} of {}", count(all)),
            None => count(acknowledged),
        };
        let has = if acknowledged == 1 || all == Some(1) { "has" } else { "have" };
        let (waited, required) = (waited.as_millis(), self.required);
        format!(
            "{of} {has} acknowledged the lock within {waited} ms; `acknowledged_by` requires \
             {required}"
        )
    }

    /// Sends rounds for as long as they are asked for.
    async fn run(&self) {
        let mut turn = self.rounds.turn();
        while let Some(next) = turn.next() {
            let result = self.send_round(next.slot).await;
            next.result.send_replace(Some(result));
        }
    }

    async fn send_round(&self, slot: u16) -> RoundResult {
        let response_timeout = self.connection.response_timeout();
        let patience = response_timeout / 2;
        let known = lock(&self.server).replicas.filter(|_| self.required.all);
        let mut required = self.required.at_least.max(known.map_or(0, |(replicas, _)| replicas));
        let mut slots = self.slots_from(slot);
        loop {
            let mut asked = self.round(slots.next().unwrap_or(slot), required, patience);
            if self.required.all {
                asked.cmd("INFO").arg("replication");
            }
            let sent = send(&self.connection, &asked, patience + response_timeout).await?;
            let mut answers = sent.answers.into_iter().skip(self.round_length() - 2);
            match answers.next() {
                // The slot has left the node, or is about to.
                Some(Err(error)) if Redirect::of(&error).is_some() && slots.len() > 0 => continue,
                Some(Err(error)) => return Err(error),
                Some(Ok(_)) | None => {}
            }
            let acknowledged = match answers.next() {
                Some(Ok(ReplicationReply::Count(acknowledged))) => acknowledged,
                Some(Err(error)) => return Err(error),
                Some(Ok(_)) | None => 0,
            };
            // Replicas may have been added.
            if let Some(Ok(ReplicationReply::Text(info))) = answers.next()
                && let Some(now) = replicas(&info).filter(|now| *now > required)
            {
                required = now;
                lock(&self.server).replicas = Some((now, sent.connection));
            }
            let connection = sent.connection;
            return Ok(RoundAnswer { connection, acknowledged, required, patience });
        }
    }

    fn round(&self, slot: u16, replicas: u32, patience: Duration) -> Pipeline {
        round(slot, replicas, patience, self.node.is_some())
    }

    /// The number of replies to a round. The last two are those to `SET` and `WAIT`.
    fn round_length(&self) -> usize {
        if self.node.is_some() { 3 } else { 2 }
    }

    /// Slots of the node: this one first, and a few more.
    fn slots_from(&self, slot: u16) -> std::vec::IntoIter<u16> {
        let mut slots = vec![slot];
        if let Some((cluster, node)) = &self.node {
            let others = (1..SLOTS).map(|distance| (slot + distance) % SLOTS);
            let of_node = others.filter(|slot| cluster.owner(*slot) == Some(*node));
            slots.extend(of_node.take(MORE_SLOTS));
        }
        slots.into_iter()
    }
}

/// A write to a key in this slot, and a `WAIT` for it. With `asking`, a node to which the slot is
/// being moved serves it as well.
fn round(slot: u16, replicas: u32, patience: Duration, asking: bool) -> Pipeline {
    let written = format!("{}{{{}}}", key::ACKNOWLEDGEMENTS, hash_slot::tag_of(slot));
    let mut round = Pipeline::with_capacity(5);
    if asking {
        round.cmd("ASKING");
    }
    round.cmd("SET").arg(written).arg(1).arg("PX").arg(milliseconds(WRITTEN_FOR));
    // Zero would wait for ever.
    round.cmd("WAIT").arg(replicas).arg(milliseconds(patience).max(1));
    round
}

/// Sends commands at once.
async fn send(
    connection: &Connection,
    commands: &Pipeline,
    within: Duration,
) -> Result<Answers, StoreError> {
    let trace = SendTrace::default();
    let options =
        RequestOptions::new(RequestClass::Unlimited, RequestTimeout::of(within)).traced(&trace);
    let answers = connection.send_all(commands, &options, decode::replication).await?;
    let connection = trace.connection().map_or(0, NonZeroU64::get);
    Ok(Answers { connection, answers })
}

/// Fails if the error means that the server does not permit acknowledgements.
fn permitted(error: StoreError, is_node: bool) -> Result<(), StoreError> {
    match error {
        // Another slot of the node may do.
        error if Redirect::of(&error).is_some() => Ok(()),
        StoreError::Denied(cause) if error::is_unknown_command(&cause) => {
            let problem = "the server does not have the command `WAIT`".into();
            Err(StoreError::Config { option: "acknowledged_by", problem })
        }
        StoreError::Denied(cause) => {
            let commands = if is_node { "`+wait`, `+asking`" } else { "`+wait`" };
            let problem = format!("`acknowledged_by` needs {commands} and `~lock_ack:*`");
            Err(StoreError::Denied(format!("{problem}: {cause}")))
        }
        error => Err(error),
    }
}

/// The run id in the answer to `INFO server`.
fn run_id(answer: Option<Result<ReplicationReply, StoreError>>) -> Result<String, StoreError> {
    match answer {
        Some(Ok(ReplicationReply::Text(info))) => {
            field(&info, "run_id").map(str::to_owned).ok_or_else(|| {
                let problem = "the server does not tell its run id, so another server could \
                               acknowledge the lock";
                StoreError::Config { option: "acknowledged_by", problem: problem.into() }
            })
        }
        Some(Err(StoreError::Denied(cause))) => {
            let problem = "`acknowledged_by` needs the permission `+info`";
            Err(StoreError::Denied(format!("{problem}: {cause}")))
        }
        Some(Err(error)) => Err(error),
        Some(Ok(_)) | None => Err(StoreError::Refused("no answer to `INFO`".into())),
    }
}

/// The number of replicas in the reply to `INFO replication`.
fn replicas(info: &str) -> Option<u32> {
    field(info, "connected_slaves")?.parse().ok()
}

fn count(replicas: u32) -> String {
    format!("{replicas} {}", if replicas == 1 { "replica" } else { "replicas" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_writes_a_key_of_its_slot() {
        for slot in [0, 1, 9_999, SLOTS - 1] {
            let round = round(slot, 1, Duration::ZERO, false);
            let packed = String::from_utf8(round.get_packed_pipeline()).expect("text");
            let key = packed.lines().find(|line| line.starts_with("lock_ack:"));
            assert_eq!(hash_slot::slot(key.expect("a key")), slot);
            assert!(!packed.contains("$1\r\n0\r\n"), "zero would wait for ever");
        }
    }

    #[test]
    fn the_description_of_a_server_names_its_process_and_its_replicas() {
        let info = "# Replication\r\nrole:master\r\nrun_id:5f\r\nconnected_slaves:2\r\n";
        assert_eq!((field(info, "run_id"), replicas(info)), (Some("5f"), Some(2)));
        assert_eq!((field("", "run_id"), replicas("connected_slaves:\r\n")), (None, None));
    }

    #[test]
    fn only_missing_permissions_and_commands_are_permanent() {
        let denied = |cause: &str| permitted(StoreError::Denied(cause.into()), false);
        match denied("NOPERM this user has no permissions to access one of the keys") {
            Err(StoreError::Denied(cause)) => assert!(cause.contains("`~lock_ack:*`"), "{cause}"),
            other => panic!("{other:?}"),
        }
        match denied("ERR unknown command 'WAIT'") {
            Err(StoreError::Config { option: "acknowledged_by", .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(permitted(StoreError::Refused("MOVED 5 127.0.0.1:7000".into()), true), Ok(()));
        let full = StoreError::Refused("OOM command not allowed".into());
        assert_eq!(permitted(full.clone(), false), Err(full));
    }
}
