//! Checks the keys of waiters, in case the message of a release was lost or never sent: deleting a
//! key by hand sends none.
//!
//! One script call checks up to a hundred keys, over the connection of the subscriptions. Each key
//! is checked once a second. With very many keys the number of calls per second stays the same, and
//! each key is checked less often. A waiter is woken if its key is free, or if the check failed.
//!
//! A check that gets no answer also detects a subscription connection that has gone silent.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::connection::{Connection, RequestClass, RequestOptions};
use super::decode;
use super::dialect::Dialect;
use crate::clock::BootInstant;
use crate::safeguard::Safeguard;
use crate::store::subscriptions::{CheckResult, DueCheck, Listener, Subscriptions};
use crate::timeout::RequestTimeout;

/// How many keys one call checks: as many as one call renews.
const BATCH: usize = 100;

/// The shortest pause between two calls. It bounds the load on the server for any number of keys.
const PACE: Duration = Duration::from_millis(10);

/// How many calls may be in flight, if the server is far away.
const MAX_IN_FLIGHT: usize = 16;

pub(super) struct Poller {
    connection: Connection,
    subscriptions: Arc<Subscriptions>,
    response_timeout: Duration,
}

impl Poller {
    pub(super) fn new(
        connection: Connection,
        subscriptions: Arc<Subscriptions>,
        response_timeout: Duration,
    ) -> Self {
        Self { connection, subscriptions, response_timeout }
    }

    /// Checks keys until the runtime ends.
    pub(super) async fn run(self) {
        if !Safeguard::SafetyPoll.is_on() {
            return;
        }
        let (poller, mut checks) = (Arc::new(self), JoinSet::new());
        loop {
            match poller.subscriptions.due(BootInstant::now(), BATCH) {
                DueCheck::Now(mut batch) => {
                    batch.sort_unstable_by_key(|listener| listener.format());
                    for of_one_format in batch.chunk_by(|one, next| one.format() == next.format()) {
                        let poller = Arc::clone(&poller);
                        checks.spawn(poller.check(of_one_format.to_vec()));
                    }
                    while checks.try_join_next().is_some() {}
                    if checks.len() >= MAX_IN_FLIGHT {
                        checks.join_next().await;
                    }
                    sleep(PACE).await;
                }
                DueCheck::At(at) => sleep(at.since(BootInstant::now()).max(PACE)).await,
                DueCheck::Never => poller.subscriptions.planned().await,
            }
        }
    }

    /// Checks some keys of one format.
    async fn check(self: Arc<Self>, batch: Vec<Arc<Listener>>) {
        let Some(first) = batch.first() else { return };
        let dialect = Dialect::of(first.format());
        let args = |call: &mut Cmd| {
            call.arg(batch.len() * dialect.keys());
            for listener in &batch {
                dialect.add_keys(call, listener.key());
            }
        };
        let timeout = RequestTimeout::of(self.response_timeout);
        let options = RequestOptions { class: RequestClass::Unlimited, timeout, trace: None };
        let decode = |reply: &_| decode::checked(reply, batch.len());
        let found = match self.connection.run(&dialect.check, args, options, decode).await {
            Ok(found) => found
                .into_iter()
                .map(|left| left.map_or(CheckResult::Free, CheckResult::Busy))
                .collect(),
            Err(_) => vec![CheckResult::Failed; batch.len()],
        };
        self.subscriptions.checked(batch.into_iter().zip(found));
    }
}
