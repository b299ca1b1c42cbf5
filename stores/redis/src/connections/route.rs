//! The way of a request to the server that has its key.
//!
//! A [`Route`] has the connections of one lane: one connection, or one for each node of a cluster.
//! The futures of requests to a cluster are boxed, so that those to a single server stay small.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::runtime;

use super::connection::{Connection, RequestOptions};
use super::nodes::NodeConnections;
use super::request::{
    BatchAnswers, KeyServer, RequestAction, RoutedAnswer, RoutedRequest, ScriptBatch,
};
use crate::hash_slot;
use crate::scripts::decode::Unexpected;
use crate::scripts::script::{Publish, Script};
use crate::topology::Redirect;
use lock_core::store::contract::{Place, SendTrace, StoreError};

/// The connections of one lane. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Route {
    One(Connection),
    Cluster(Arc<NodeConnections>),
}

impl Route {
    /// The server that has a key, as far as the client knows.
    pub(crate) async fn server_of(
        &self,
        key: &str,
        within: Duration,
    ) -> Result<KeyServer, StoreError> {
        match self {
            Self::One(connection) => Ok(KeyServer { connection: connection.clone(), node: None }),
            Self::Cluster(nodes) => nodes.server_of(hash_slot::slot(key), within).await,
        }
    }

    /// The node of a cluster that has carried a request.
    pub(crate) fn carrier(&self, connection: Option<NonZeroU64>) -> Option<KeyServer> {
        match self {
            Self::One(_) => None,
            Self::Cluster(nodes) => nodes.carrier(connection?.get()),
        }
    }

    /// The runtime that serves the connections.
    pub(crate) fn home(&self) -> runtime::Id {
        match self {
            Self::One(connection) => connection.home(),
            Self::Cluster(nodes) => nodes.home(),
        }
    }

    /// Whether that runtime still runs.
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            Self::One(connection) => connection.is_alive(),
            Self::Cluster(nodes) => nodes.is_alive(),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// How messages are published.
    pub(crate) fn publish(&self) -> Publish {
        match self {
            Self::One(_) => Publish::Everywhere,
            Self::Cluster(nodes) => nodes.publish(),
        }
    }

    /// The part of the servers that has a key.
    pub(crate) fn place(&self, key: &str) -> Place {
        match self {
            Self::One(_) => Place::ONLY,
            Self::Cluster(nodes) => nodes.place(key),
        }
    }

    /// A connection that is established, to any of the servers.
    pub(crate) async fn any(&self, within: Duration) -> Result<Connection, StoreError> {
        match self {
            Self::One(connection) => {
                connection.established(within).await?;
                Ok(connection.clone())
            }
            Self::Cluster(nodes) => nodes.any(within).await,
        }
    }

    /// Sends a command about a key, and decodes its reply with `decode`.
    pub(crate) async fn send<T>(
        &self,
        key: &str,
        command: &Cmd,
        options: &RequestOptions<'_>,
        decode: impl Fn(&Value) -> Result<T, Unexpected>,
    ) -> Result<T, StoreError> {
        match self {
            Self::One(connection) => {
                connection.send(command, options, decode).await.map_err(explain)
            }
            Self::Cluster(nodes) => {
                let action: RequestAction<'_, fn(&mut Cmd)> = RequestAction::Command(command);
                let request =
                    RoutedRequest { slot: hash_slot::slot(key), action, options: *options };
                let answer = Box::pin(nodes.request(request, decode)).await;
                answer.map(|answer| answer.value)
            }
        }
    }

    /// Runs a script on the keys of a lock, of which `key` is one. `args` adds the number of keys,
    /// the keys and the arguments.
    pub(crate) async fn run<T>(
        &self,
        (key, script): (&str, &Script),
        args: impl Fn(&mut Cmd),
        options: &RequestOptions<'_>,
        decode: impl Fn(&Value) -> Result<T, Unexpected>,
    ) -> Result<RoutedAnswer<T>, StoreError> {
        match self {
            Self::One(connection) => {
                let value = connection.run(script, args, options, decode).await.map_err(explain)?;
                Ok(RoutedAnswer { value, was_asked: false })
            }
            Self::Cluster(nodes) => {
                let action = RequestAction::Script(script, args);
                let request =
                    RoutedRequest { slot: hash_slot::slot(key), action, options: *options };
                Box::pin(nodes.request(request, decode)).await
            }
        }
    }

    /// Runs a script for several locks: once for all of them, or once for each in a cluster. `args`
    /// adds the number of keys, the keys and the arguments of some of the locks, and `decode`
    /// decodes the reply for that number of locks.
    pub(crate) async fn run_for_each<T>(
        &self,
        batch: &ScriptBatch<'_>,
        args: impl Fn(&mut Cmd, Range<usize>),
        decode: impl Fn(&Value, usize) -> Result<Vec<Result<T, StoreError>>, Unexpected>,
    ) -> BatchAnswers<T> {
        match self {
            Self::One(connection) => {
                let locks = batch.locks;
                let args = |call: &mut Cmd| args(call, 0..locks);
                let decode = |reply: &Value| decode(reply, locks);
                let own = SendTrace::default();
                let trace = batch.options.trace.or(batch.wants_carriers.then_some(&own));
                let options = RequestOptions { trace, ..batch.options };
                let answers = connection.run(batch.script, &args, &options, &decode).await;
                let have_one_error = answers.is_err();
                let answers = answers.unwrap_or_else(|error| vec_of(&explain(error), locks));
                let carriers = if batch.wants_carriers { locks } else { 0 };
                let carriers = vec![own.connection(); carriers];
                BatchAnswers { answers, have_one_error, asked: Vec::new(), carriers }
            }
            Self::Cluster(nodes) => Box::pin(nodes.run_for_each(batch, &args, &decode)).await,
        }
    }
}

fn vec_of<T>(error: &StoreError, count: usize) -> Vec<Result<T, StoreError>> {
    (0..count).map(|_| Err(error.clone())).collect()
}

/// A redirection by a server that is used as if it were the only one.
fn explain(error: StoreError) -> StoreError {
    match Redirect::of(&error) {
        None => error,
        Some(_) => {
            let problem = "the server is a node of a Redis Cluster; use `redis+cluster://` or \
                           `rediss+cluster://`";
            StoreError::Config { option: "url", problem: problem.into() }
        }
    }
}
