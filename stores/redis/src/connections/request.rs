//! Requests that may have to be sent to another server than the first one.

use std::num::NonZeroU64;
use std::sync::Arc;

use redis::{Cmd, Value};

use super::connection::{Connection, RequestOptions};
use crate::scripts::decode::Unexpected;
use crate::scripts::script::Script;
use crate::topology::RedisCluster;
use lock_core::store::contract::StoreError;
use lock_core::timeout::RequestTimeout;

/// A script that is run once for each of several locks.
pub(crate) struct ScriptBatch<'a> {
    pub(crate) script: &'a Script,
    /// The number of locks.
    pub(crate) locks: usize,
    /// One key of each lock.
    pub(crate) key: &'a (dyn Fn(usize) -> &'a str + Sync),
    pub(crate) options: RequestOptions<'a>,
    /// Whether the answers include the connections that have carried the requests. The options then
    /// have no trace.
    pub(crate) wants_carriers: bool,
}

/// The server that has a key.
pub(crate) struct KeyServer {
    /// The connection that carries requests about the key.
    pub(crate) connection: Connection,
    /// The number of the server in a cluster.
    pub(crate) node: Option<(Arc<RedisCluster>, u32)>,
}

/// The answer to a request.
pub(crate) struct RoutedAnswer<T> {
    pub(crate) value: T,
    /// Whether the slot of the key is being moved, and another node than its owner has answered.
    pub(crate) was_asked: bool,
}

/// The answers to the requests of a batch.
pub(crate) struct BatchAnswers<T> {
    /// One for each lock.
    pub(crate) answers: Vec<Result<T, StoreError>>,
    /// Whether one error is the answer for all of them, because their request has failed.
    pub(crate) have_one_error: bool,
    /// The locks whose slots are being moved, and about which another node than the owner of the
    /// slot has answered.
    pub(crate) asked: Vec<usize>,
    /// The connection that has carried the request for each lock; empty unless the batch wants it.
    pub(crate) carriers: Vec<Option<NonZeroU64>>,
}

impl<T> RoutedAnswer<T> {
    pub(crate) fn direct(value: T) -> Self {
        Self { value, was_asked: false }
    }
}

/// What a request does.
pub(crate) enum RequestAction<'a, A> {
    Command(&'a Cmd),
    Script(&'a Script, A),
}

/// A request about the keys of one slot.
pub(crate) struct RoutedRequest<'a, A> {
    pub(crate) slot: u16,
    pub(crate) action: RequestAction<'a, A>,
    pub(crate) options: RequestOptions<'a>,
}

impl<A: Fn(&mut Cmd)> RoutedRequest<'_, A> {
    pub(crate) async fn send<T>(
        &self,
        connection: &Connection,
        timeout: RequestTimeout,
        decode: &impl Fn(&Value) -> Result<T, Unexpected>,
    ) -> Result<T, StoreError> {
        let options = RequestOptions { timeout, ..self.options };
        match &self.action {
            RequestAction::Command(command) => connection.send(command, &options, decode).await,
            RequestAction::Script(script, args) => {
                let is_noted = script.notes_asking && connection.asking;
                let args = |call: &mut Cmd| {
                    args(call);
                    if is_noted {
                        call.arg("ASKING");
                    }
                };
                connection.run(script, args, &options, decode).await
            }
        }
    }
}
