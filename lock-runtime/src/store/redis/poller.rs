//! Checks the keys of waiters, in case the message of a release was lost or never sent: deleting a
//! key by hand sends none.
//!
//! One script call checks up to a hundred keys, over the connection of the subscriptions. Each key
//! is checked once a second. With very many keys the number of calls per second stays the same, and
//! each key is checked less often. A waiter is woken if its key is free, or if the check failed.
//!
//! A call checks keys of one node of a cluster, and the calls to each node are limited separately,
//! so that a node that does not answer delays no checks of keys of other nodes.
//!
//! A check that gets no answer also detects a subscription connection that has gone silent.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::connection::{RequestClass, RequestOptions};
use super::decode;
use super::dialect::Dialect;
use super::request::ScriptBatch;
use super::route::Route;
use crate::clock::BootInstant;
use crate::safeguard::Safeguard;
use crate::store::contract::{Place, StoreError};
use crate::store::subscriptions::{CheckResult, DueCheck, Listener, Subscriptions};
use crate::timeout::RequestTimeout;

/// How many keys one call checks: as many as one call renews.
const BATCH: usize = 100;

/// The shortest pause between two calls. It bounds the load on the server for any number of keys.
const PACE: Duration = Duration::from_millis(10);

/// How many calls to one place may be in flight, if the server is far away.
const MAX_IN_FLIGHT: usize = 16;

pub(super) struct Poller {
    route: Route,
    subscriptions: Arc<Subscriptions>,
    response_timeout: Duration,
}

/// The limit of calls to each place. There are few places.
#[derive(Default)]
struct PlaceLimits(Vec<(Place, Arc<Semaphore>)>);

impl PlaceLimits {
    fn of(&mut self, place: Place) -> Arc<Semaphore> {
        if let Some((_, limit)) = self.0.iter().find(|(known, _)| *known == place) {
            return Arc::clone(limit);
        }
        // Places to which nothing is sent, such as nodes that are no longer part of the cluster.
        self.0.retain(|(_, limit)| Arc::strong_count(limit) > 1);
        let limit = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
        self.0.push((place, Arc::clone(&limit)));
        limit
    }
}

impl Poller {
    pub(super) fn new(
        route: Route,
        subscriptions: Arc<Subscriptions>,
        response_timeout: Duration,
    ) -> Self {
        Self { route, subscriptions, response_timeout }
    }

    /// Checks keys until the runtime ends.
    pub(super) async fn run(self) {
        if !Safeguard::SafetyPoll.is_on() {
            return;
        }
        let (poller, mut limits) = (Arc::new(self), PlaceLimits::default());
        loop {
            match poller.subscriptions.due(BootInstant::now(), BATCH) {
                DueCheck::Now(listeners) => {
                    poller.start(listeners, &mut limits);
                    sleep(PACE).await;
                }
                DueCheck::At(at) => sleep(at.since(BootInstant::now()).max(PACE)).await,
                DueCheck::Never => poller.subscriptions.planned().await,
            }
        }
    }

    /// Starts checking these keys.
    fn start(self: &Arc<Self>, listeners: Vec<Arc<Listener>>, limits: &mut PlaceLimits) {
        let key = |listener: Arc<Listener>| {
            ((listener.format(), self.route.place(listener.key())), listener)
        };
        let mut listeners: Vec<_> = listeners.into_iter().map(key).collect();
        listeners.sort_unstable_by_key(|(key, _)| *key);
        for batch in listeners.chunk_by(|(one, _), (next, _)| one == next) {
            let ((_, place), _) = batch[0];
            let limit = limits.of(place);
            let batch = batch.iter().map(|(_, listener)| Arc::clone(listener)).collect();
            let poller = Arc::clone(self);
            drop(tokio::spawn(async move {
                // The semaphore is never closed, so this cannot fail.
                let _permit = limit.acquire().await;
                poller.check(batch).await;
            }));
        }
    }

    /// Checks some keys of one format and one place.
    async fn check(&self, mut batch: Vec<Arc<Listener>>) {
        // The connection may have been lost during the wait for a permit. Checks are planned anew
        // when it is back.
        batch.retain(|listener| listener.is_live());
        let Some(first) = batch.first() else { return };
        let dialect = Dialect::of(first.format());
        let args = |call: &mut Cmd, some: Range<usize>| {
            let batch = &batch[some];
            call.arg(batch.len() * dialect.keys());
            for listener in batch {
                dialect.add_keys(call, listener.key());
            }
        };
        let timeout = RequestTimeout::of(self.response_timeout);
        let options = RequestOptions { class: RequestClass::Unlimited, timeout, trace: None };
        let key = |index: usize| batch[index].key();
        let (script, locks, wants_carriers) = (&dialect.check, batch.len(), false);
        let checks = ScriptBatch { script, locks, key: &key, options, wants_carriers };
        let decode = |reply: &_, locks| {
            Ok(decode::checked(reply, locks)?.into_iter().map(Ok::<_, StoreError>).collect())
        };
        let sent = BootInstant::now();
        let found = self.route.run_for_each(&checks, args, decode).await.answers;
        let found: Vec<CheckResult> = found
            .into_iter()
            .map(|left| match left {
                Ok(left) => left.map_or(CheckResult::Free, CheckResult::Busy),
                Err(_) => CheckResult::Failed,
            })
            .collect();
        self.subscriptions.checked(batch.into_iter().zip(found), sent);
    }
}
