//! The connections of one lane to the nodes of a cluster.
//!
//! A connection is made when it is first used. A request that was sent to the wrong node is sent to
//! the right one at once, which its answer names. It is sent again only if nothing has run. The
//! future of the caller does so, so nothing more is sent after that future is dropped.

mod redirections;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::runtime;
use tokio::time::Instant;

use super::connection::{Connection, RequestOptions};
use super::request::{
    BatchAnswers, KeyServer, RequestAction, RoutedAnswer, RoutedRequest, ScriptBatch,
};
use super::tracking::Listening;
use crate::hash_slot;
use crate::scripts::decode::Unexpected;
use crate::scripts::script::Publish;
use crate::topology::{ClusterNode, Redirect, RedisCluster, Topology, may_be_failover};
use crate::transport::error;
use lock_core::join::join_all;
use lock_core::store::contract::{Place, SendTrace, StoreError};
use lock_core::store::home::Home;
use lock_core::sync::{Mutex, lock};
use lock_core::timeout::RequestTimeout;

/// How long one node of a cluster may take to accept the first connection, if there are others.
const NODE_PATIENCE: Duration = Duration::from_secs(1);

/// The connections of one lane to the nodes of a cluster.
pub(crate) struct NodeConnections {
    cluster: Arc<RedisCluster>,
    /// The runtime that serves the connections.
    home: Home,
    response_timeout: Duration,
    listening: Option<Listening>,
    /// In the order of the numbers of the nodes. There are few.
    connections: Mutex<Vec<NodeConnection>>,
}

struct NodeConnection {
    node: Arc<ClusterNode>,
    connection: Connection,
}

impl NodeConnections {
    /// Connections that are served on `home`.
    pub(crate) fn new(
        cluster: Arc<RedisCluster>,
        home: runtime::Handle,
        response_timeout: Duration,
        listening: Option<Listening>,
    ) -> Self {
        let (home, connections) = (Home::new(home), Mutex::default());
        Self { cluster, home, response_timeout, listening, connections }
    }

    /// The runtime that serves the connections.
    pub(crate) fn home(&self) -> runtime::Id {
        self.home.runtime().id()
    }

    /// Whether that runtime still runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.home.is_alive()
    }

    pub(crate) fn publish(&self) -> Publish {
        self.cluster.publish()
    }

    /// The part of the cluster that has a key.
    pub(crate) fn place(&self, key: &str) -> Place {
        place(&self.cluster, key)
    }

    /// The connection to a node.
    fn to(&self, node: &Arc<ClusterNode>) -> Connection {
        let mut connections = lock(&self.connections);
        if let Ok(known) = position(&connections, node.number()) {
            return connections[known].connection.clone();
        }
        connections.retain(|known| known.node.is_current());
        let topology = Arc::new(Topology::of_node(Arc::clone(node), self.cluster.quarantine()));
        let home = self.home.runtime().clone();
        let listening = self.listening.clone();
        let connection = Connection::new(topology, home, self.response_timeout, listening);
        let new = NodeConnection { node: Arc::clone(node), connection: connection.clone() };
        let at = position(&connections, node.number()).unwrap_or_else(|at| at);
        connections.insert(at, new);
        connection
    }

    /// The node that has a slot, as far as the client knows, and the connection to it.
    fn owner(&self, slot: u16) -> Option<(Arc<ClusterNode>, Connection)> {
        let number = self.cluster.owner(slot)?;
        {
            let connections = lock(&self.connections);
            if let Ok(known) = position(&connections, number) {
                let NodeConnection { node, connection } = &connections[known];
                return Some((Arc::clone(node), connection.clone()));
            }
        }
        let node = self.cluster.node(number)?;
        let connection = self.to(&node);
        Some((node, connection))
    }

    /// The node that has a slot.
    pub(crate) async fn server_of(
        &self,
        slot: u16,
        within: Duration,
    ) -> Result<KeyServer, StoreError> {
        let (node, connection) = match self.owner(slot) {
            Some(owner) => owner,
            None => self.owner_within(slot, within).await?,
        };
        Ok(KeyServer { connection, node: Some((Arc::clone(&self.cluster), node.number())) })
    }

    /// The node to which the connection of this generation leads.
    pub(crate) fn carrier(&self, generation: u64) -> Option<KeyServer> {
        let node = self.cluster.node(Topology::node_of(generation)?)?;
        let (connection, number) = (self.to(&node), node.number());
        Some(KeyServer { connection, node: Some((Arc::clone(&self.cluster), number)) })
    }

    /// The same as `owner`, after the nodes were asked.
    async fn owner_within(
        &self,
        slot: u16,
        within: Duration,
    ) -> Result<(Arc<ClusterNode>, Connection), StoreError> {
        self.cluster.wait_for_owner(slot, within).await?;
        let replaced = || StoreError::Refused(format!("the master of slot {slot} has changed"));
        self.owner(slot).ok_or_else(replaced)
    }

    /// A connection that is established, to any of the nodes.
    pub(crate) async fn any(&self, within: Duration) -> Result<Connection, StoreError> {
        self.cluster.wait_for_any(within).await?;
        let mut failure = None;
        let mut nodes = self.cluster.nodes();
        fastrand::shuffle(&mut nodes);
        let patience = if nodes.len() > 1 { within.min(NODE_PATIENCE) } else { within };
        for node in nodes {
            let connection = self.to(&node);
            match connection.established(patience).await {
                Ok(_) => return Ok(connection),
                Err(error) => failure = Some(error),
            }
        }
        // There is at least one node.
        Err(failure.unwrap_or_else(|| StoreError::Refused("the cluster has no nodes".into())))
    }

    /// Sends a request to the node that has its slot.
    pub(crate) async fn request<T, A: Fn(&mut Cmd)>(
        &self,
        request: RoutedRequest<'_, A>,
        decode: impl Fn(&Value) -> Result<T, Unexpected>,
    ) -> Result<RoutedAnswer<T>, StoreError> {
        let mut timeout = request.options.timeout;
        let started = Instant::now();
        let (node, connection) = match self.owner(request.slot) {
            Some(owner) => owner,
            None => {
                let within = timeout.answer.min(timeout.total);
                let owner = Box::pin(self.owner_within(request.slot, within)).await?;
                let left = timeout.total.saturating_sub(started.elapsed());
                timeout = RequestTimeout { answer: timeout.answer.min(left), total: left };
                owner
            }
        };
        match request.send(&connection, timeout, &decode).await {
            Ok(value) => Ok(RoutedAnswer::direct(value)),
            // Boxed, because it is rare.
            Err(error) => {
                let failed = FailedRequest { request, node, error, started };
                Box::pin(self.follow(failed, decode)).await
            }
        }
    }

    /// A request has failed, and is not sent again.
    fn failed(&self, error: &StoreError) {
        if may_be_failover(error) {
            self.cluster.suspect();
        }
    }

    /// Sends the requests for the locks of each node together. Those that fail because they have
    /// not run are then sent separately.
    pub(crate) async fn run_for_each<T>(
        &self,
        batch: &ScriptBatch<'_>,
        args: &impl Fn(&mut Cmd, Range<usize>),
        decode: &impl Fn(&Value, usize) -> Result<Vec<Result<T, StoreError>>, Unexpected>,
    ) -> BatchAnswers<T> {
        let decode_one = |reply: &Value| -> Result<Result<T, StoreError>, Unexpected> {
            decode(reply, 1)?.pop().ok_or_else(|| Unexpected::new(reply))
        };
        let slots: Vec<u16> =
            (0..batch.locks).map(|lock| hash_slot::slot((batch.key)(lock))).collect();
        let slots = &slots;
        let mut groups: HashMap<Option<u32>, Vec<usize>> = HashMap::new();
        for (lock, slot) in slots.iter().enumerate() {
            groups.entry(self.cluster.owner(*slot)).or_default().push(lock);
        }
        let groups: Vec<_> = groups.into_values().collect();
        // A trace names one connection.
        let trace = batch.options.trace.filter(|_| groups.len() == 1);
        let options = RequestOptions { trace, ..batch.options };
        let together = groups.iter().map(|group| async move {
            let (_, connection) = self.owner(slots[group[0]])?;
            let mut calls = Pipeline::with_capacity(group.len());
            for lock in group {
                let mut call = batch.script.by_hash();
                args(&mut call, *lock..*lock + 1);
                calls.add_command(call);
            }
            let own = SendTrace::default();
            let trace = options.trace.or(batch.wants_carriers.then_some(&own));
            let options = RequestOptions { trace, ..options };
            let sent = connection.send_all(&calls, &options, decode_one).await;
            Some((sent, own.connection()))
        });
        let mut answers: Vec<_> = (0..batch.locks).map(|_| None).collect();
        let carriers = if batch.wants_carriers { batch.locks } else { 0 };
        let mut carriers = vec![None; carriers];
        for (group, sent) in groups.iter().zip(join_all(together).await) {
            let carrier = sent.as_ref().and_then(|(_, carrier)| *carrier);
            for lock in group {
                carriers.get_mut(*lock).into_iter().for_each(|it| *it = carrier);
            }
            match sent.map(|(sent, _)| sent) {
                None => {}
                Some(Ok(sent)) => {
                    for (lock, answer) in group.iter().zip(sent) {
                        match answer {
                            Err(error) if is_sent_again(&error) => {}
                            answer => answers[*lock] = Some(answer.and_then(|one| one)),
                        }
                    }
                }
                Some(Err(error)) => {
                    for lock in group {
                        answers[*lock] = Some(Err(error.clone()));
                    }
                }
            }
        }
        // The node of a trace has served all earlier requests before it sends others elsewhere. The
        // other locks wait for the slowest answer.
        let RequestTimeout { answer, total } = batch.options.timeout;
        let timeout = RequestTimeout { answer, total: total.min(answer) / 2 };
        let options = RequestOptions { timeout, trace: None, ..batch.options };
        let again = (0..batch.locks).filter(|lock| answers[*lock].is_none());
        let separately = again.map(|lock| async move {
            let args = move |call: &mut Cmd| args(call, lock..lock + 1);
            let action = RequestAction::Script(batch.script, args);
            let own = SendTrace::default();
            let trace = batch.wants_carriers.then_some(&own);
            let options = RequestOptions { trace, ..options };
            let request = RoutedRequest { slot: slots[lock], action, options };
            let answer = self.request(request, |reply| decode_one(reply)).await;
            (lock, answer, own.connection())
        });
        let mut asked = Vec::new();
        for (lock, answer, carrier) in join_all(separately).await {
            carriers.get_mut(lock).into_iter().for_each(|it| *it = carrier);
            answers[lock] = Some(answer.and_then(|answer| {
                asked.extend(answer.was_asked.then_some(lock));
                answer.value
            }));
        }
        let missing = || Err(StoreError::Unknown("no answer".into()));
        let answers: Vec<_> =
            answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect();
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            self.failed(error);
        }
        BatchAnswers { answers, have_one_error: false, asked, carriers }
    }
}

/// The part of a cluster that has a key.
pub(crate) fn place(cluster: &RedisCluster, key: &str) -> Place {
    let owner = cluster.owner(hash_slot::slot(key)).unwrap_or_default();
    Place::numbered(owner.into())
}

/// The position of the connection to a node, or where it belongs.
fn position(connections: &[NodeConnection], number: u32) -> Result<usize, usize> {
    connections.binary_search_by_key(&number, |known| known.node.number())
}

/// A request that has failed at a node.
struct FailedRequest<'a, A> {
    request: RoutedRequest<'a, A>,
    node: Arc<ClusterNode>,
    error: StoreError,
    started: Instant,
}

/// Whether a request that has failed in a batch is sent again on its own.
fn is_sent_again(error: &StoreError) -> bool {
    let has_no_script = |cause: &String| cause.starts_with(error::NO_SCRIPT);
    Redirect::of(error).is_some()
        || matches!(error, StoreError::Refused(cause) if has_no_script(cause))
}

#[cfg(test)]
mod tests {
    use redis::cmd;

    use super::*;
    use crate::connections::admission::RequestClass;
    use crate::url::{self, UrlTarget};
    use lock_core::store::settings::Settings;

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_an_owner_counts_towards_the_timeout() {
        // Nothing asks the nodes.
        let target = url::parse("redis+cluster://localhost", &Settings::default());
        let Ok(UrlTarget::Cluster(cluster)) = target else { panic!("a cluster") };
        let answer = Duration::from_secs(2);
        let home = runtime::Handle::current();
        let nodes =
            NodeConnections::new(Arc::new(RedisCluster::new(cluster, None)), home, answer, None);
        let timeout = RequestTimeout { answer, total: answer / 10 };
        let options = RequestOptions::new(RequestClass::Unlimited, timeout);
        let command = cmd("PING");
        let action: RequestAction<'_, fn(&mut Cmd)> = RequestAction::Command(&command);
        let began = Instant::now();
        let request = RoutedRequest { slot: 0, action, options };
        let answered = nodes.request(request, |_| Ok(())).await;
        assert!(matches!(answered, Err(StoreError::Refused(_))));
        assert!(began.elapsed() < answer / 5, "{:?}", began.elapsed());
    }
}
