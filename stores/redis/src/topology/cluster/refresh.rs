//! Keeps what a client knows about a cluster up to date.
//!
//! In each round, all known nodes are asked at once, over connections of their own, so that a node
//! that hangs delays no other. A round ends [`PATIENCE`] after most nodes have answered. No request
//! ever waits for a round, except before the first one. Rounds begin when a request was redirected
//! or has failed, and now and then in any case; they are at least [`PACE`] apart.

use std::sync::Arc;
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::answer::{ClusterAnswer, SlotAssignment};
use super::state::{ClusterState, host_of};
use crate::transport::endpoint::Endpoint;
use crate::transport::error;
use crate::transport::handshake::log_in;
use crate::transport::outgoing::Outgoing;
use lock_core::backoff::{Backoff, jittered};
use lock_core::clock::BootInstant;
use lock_core::store::contract::StoreError;

/// The shortest time between the beginnings of two rounds, at first and while rounds that were
/// wanted find nothing new, as while many slots are being moved.
const PACE: Duration = Duration::from_millis(50);
const LONGEST_PACE: Duration = Duration::from_secs(1);

/// The longest pause between two rounds.
const INTERVAL: Duration = Duration::from_secs(30);

/// The first and the longest pause between rounds while requests fail, before jitter.
const TROUBLED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(800));

/// How long a round waits for the other nodes when most have answered.
const PATIENCE: Duration = Duration::from_millis(100);

/// The same in the first round, which also checks the URL, when one host has answered.
const FIRST_PATIENCE: Duration = Duration::from_millis(500);

/// How long one node may take.
const LONGEST_ANSWER: Duration = Duration::from_secs(2);

/// A node, and what it has answered.
type NodeReply = (Arc<Endpoint>, Result<NodeView, StoreError>);

/// What one node has answered.
struct NodeView {
    answer: ClusterAnswer,
    has_shard_channels: bool,
}

/// Runs until the runtime ends, even if a round panics. The wakers of the program's calls run on the
/// runtime `foreign`.
pub(super) async fn keep_running(state: Arc<ClusterState>, foreign: runtime::Handle) {
    loop {
        let _ = tokio::spawn(run(Arc::clone(&state), foreign.clone())).await;
        sleep(LONGEST_PACE).await;
    }
}

async fn run(state: Arc<ClusterState>, foreign: runtime::Handle) {
    let mut troubled = Backoff::new(TROUBLED.0, TROUBLED.1);
    let mut pace = PACE;
    loop {
        let (began, changes) = (BootInstant::now(), state.changes());
        round(&state, began).await;
        let announced = Arc::clone(&state);
        foreign.spawn(async move { announced.announce() });
        let is_new = state.changes() != changes;
        pace = if is_new { PACE } else { (pace * 2).min(LONGEST_PACE) };
        let pause = if state.trouble.is_recent() {
            troubled.pause()
        } else {
            troubled.reset();
            jittered(INTERVAL)
        };
        sleep(PACE.saturating_sub(BootInstant::now().since(began))).await;
        let wanted = async {
            sleep(pace.saturating_sub(BootInstant::now().since(began))).await;
            state.trouble.wanted().await;
        };
        tokio::select! {
            () = wanted => {}
            () = sleep(pause) => {}
        }
        if BootInstant::now().since(began) > LONGEST_PACE {
            pace = PACE;
        }
    }
}

/// Asks all nodes once.
async fn round(state: &Arc<ClusterState>, began: BootInstant) {
    let is_first = state.changes() == 0;
    let is_seed = |node: &Arc<Endpoint>| state.seeds().iter().any(|seed| Arc::ptr_eq(seed, node));
    let known = state.known();
    // A host of the URL may be one of the nodes under another name, so it does not count twice.
    let counts = |node: &Arc<Endpoint>| is_first || !is_seed(node);
    let nodes = known.iter().filter(|node| counts(node)).count();
    let most = if is_first { 1 } else { nodes / 2 + 1 };
    let is_by_most = |replies: &[NodeReply]| {
        replies.iter().filter(|(node, reply)| counts(node) && reply.is_ok()).count() >= most
    };
    let replies =
        ask_all(known, is_by_most, if is_first { FIRST_PATIENCE } else { PATIENCE }).await;
    let is_by_most = is_by_most(&replies);
    let mut views = Vec::new();
    let mut failures = Vec::new();
    let mut have_shard_channels = true;
    for (node, reply) in replies {
        match reply {
            Ok(NodeView { answer, has_shard_channels }) => {
                have_shard_channels &= has_shard_channels;
                views.push((node, answer));
            }
            Err(error) => failures.push((node, error)),
        }
    }
    let wrong = failures
        .iter()
        .find(|(node, error)| is_seed(node) && matches!(error, StoreError::Config { .. }));
    if let (true, Some((_, error))) = (is_first, wrong) {
        return state.failed(error.clone());
    }
    let Some((first, view)) = views.first() else {
        return state.failed(explain(failures));
    };
    let other = views.iter().find(|(_, other)| view.contradicts(other));
    if let (true, Some((other, _))) = (is_first, other) {
        let (first, other) = (first.shown(), other.shown());
        let problem = format!("{first} and {other} are nodes of different clusters");
        return state.failed(StoreError::Config { option: "url", problem });
    }
    state.set_shard_channels(have_shard_channels);
    state.ignore_foreign(&mut views);
    let mut answers: Vec<_> = views.into_iter().map(|(_, answer)| answer).collect();
    let announced = answers.iter_mut().flat_map(ClusterAnswer::addresses);
    match state.addresses.map(announced).await {
        Ok(()) => state.adopt(&SlotAssignment::of(answers, is_by_most), began),
        Err(error) => state.failed(error),
    }
}

/// Asks these nodes at once. Waits for the others for `patience` when the replies are `enough`.
async fn ask_all(
    nodes: Vec<Arc<Endpoint>>,
    enough: impl Fn(&[NodeReply]) -> bool,
    patience: Duration,
) -> Vec<NodeReply> {
    let mut asked = JoinSet::new();
    for node in nodes {
        asked.spawn(async move { reply_of(Arc::clone(&node), ask(&node)).await });
    }
    let mut replies: Vec<NodeReply> = Vec::new();
    let mut end = None;
    loop {
        let next = async {
            match end {
                Some(end) => timeout_at(end, asked.join_next()).await.unwrap_or_default(),
                None => asked.join_next().await,
            }
        };
        let Some(reply) = next.await else { break };
        replies.extend(reply.ok());
        if enough(&replies) {
            end.get_or_insert_with(|| Instant::now() + patience);
        }
    }
    replies
}

async fn reply_of(
    node: Arc<Endpoint>,
    answer: impl Future<Output = Result<NodeView, StoreError>>,
) -> NodeReply {
    let reply = timeout(LONGEST_ANSWER, answer).await.unwrap_or_else(|_| Err(no_answer()));
    (node, reply)
}

fn no_answer() -> StoreError {
    StoreError::Refused(format!("no answer within {LONGEST_ANSWER:?}"))
}

/// Asks one node, over a connection of its own.
async fn ask(node: &Endpoint) -> Result<NodeView, StoreError> {
    let login = log_in(node, None).await?;
    let mut questions = Pipeline::new();
    questions.cmd("CLUSTER").arg("SLOTS");
    questions.cmd("CLUSTER").arg("NODES");
    questions.cmd("PUBSUB").arg("SHARDNUMSUB").arg("x");
    let replies = login.commands.send(Outgoing::Commands(&questions)).await;
    let replies = replies.map_err(|error| error::classify(&error).error)?;
    let [slots, nodes, channels] = replies.as_sequence().unwrap_or_default() else {
        return Err(StoreError::Refused("too few replies".into()));
    };
    let shown = node.shown();
    if let Value::ServerError(error) = slots {
        return Err(match error::classify(&error.clone().into()).error {
            StoreError::Refused(text) if text.contains("cluster support disabled") => {
                let problem = format!(
                    "{shown} is not a node of a cluster; use `redis://` or `rediss://` for it"
                );
                StoreError::Config { option: "url", problem }
            }
            error => error,
        });
    }
    let nodes: Option<String> = redis::from_redis_value_ref(nodes).ok();
    let answer = ClusterAnswer::parse(slots, nodes.as_deref(), host_of(node));
    let answer = answer.ok_or_else(|| {
        StoreError::Refused(format!("{shown} gives an unexpected reply to `CLUSTER SLOTS`"))
    })?;
    // A user without the permission is no reason to use other channels than all other clients.
    let is_missing = |error: &redis::ServerError| {
        error.details().is_some_and(|text| text.to_ascii_lowercase().contains("unknown"))
    };
    let has_shard_channels = !matches!(channels, Value::ServerError(error) if is_missing(error));
    Ok(NodeView { answer, has_shard_channels })
}

/// Explains why no node has answered.
fn explain(failures: Vec<(Arc<Endpoint>, StoreError)>) -> StoreError {
    let is_permanent =
        |error: &StoreError| matches!(error, StoreError::Denied(_) | StoreError::Config { .. });
    let all_permanent = failures.iter().all(|(_, error)| is_permanent(error));
    let mut causes = Vec::new();
    for (node, error) in failures {
        if all_permanent {
            return error;
        }
        causes.push(format!("{}: {error}", node.shown()));
    }
    StoreError::Refused(format!("no node of the cluster answers ({})", causes.join("; ")))
}
