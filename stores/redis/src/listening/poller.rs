//! Checks the keys of waiters, in case the message of a release was lost or never sent: deleting a
//! key by hand sends none.
//!
//! One script call checks up to a hundred keys, over the connection of the subscriptions. Each key
//! is checked once a second; a claim in a queue, only if nothing else has confirmed its place. With
//! very many keys the number of calls per second stays the same, and each key is checked less often.
//! A waiter is woken if its key is free or was given to it, if it has lost its place in the queue, or
//! if the check failed.
//!
//! A call checks keys of one node of a cluster, and the calls to each node are limited separately,
//! so that a node that does not answer delays no checks of keys of other nodes.
//!
//! A check that gets no answer also detects a subscription connection that has gone silent.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::client_id::ClientId;
use crate::connections::admission::RequestClass;
use crate::connections::connection::RequestOptions;
use crate::connections::request::ScriptBatch;
use crate::connections::route::Route;
use crate::scripts::decode;
use crate::scripts::dialects;
use crate::scripts::queue::{self, EntryRest};
use crate::transport::outgoing::caching;
use lock_core::clock::BootInstant;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::{Place, StoreError};
use lock_core::store::queueing::{QueueTicket, Queueing};
use lock_core::store::subscriptions::{CheckResult, DueCheck, Listener, Subscriptions};
use lock_core::timeout::RequestTimeout;

/// How many keys one call checks: as many as one call renews.
const BATCH: usize = 100;

/// The shortest pause between two calls. It bounds the load on the server for any number of keys.
const PACE: Duration = Duration::from_millis(10);

/// How many calls to one place may be in flight, if the server is far away.
const MAX_IN_FLIGHT: usize = 16;

pub(crate) struct Poller {
    route: Route,
    subscriptions: Arc<Subscriptions>,
    response_timeout: Duration,
    /// The id of the client.
    client: ClientId,
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
    pub(crate) fn new(
        route: Route,
        subscriptions: Arc<Subscriptions>,
        response_timeout: Duration,
        client: ClientId,
    ) -> Self {
        Self { route, subscriptions, response_timeout, client }
    }

    /// Checks keys until the runtime ends.
    pub(crate) async fn run(self) {
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
                DueCheck::At(at) => {
                    tokio::select! {
                        () = sleep(at.since(BootInstant::now())) => {}
                        () = poller.subscriptions.planned() => {}
                    }
                }
                DueCheck::Never => poller.subscriptions.planned().await,
            }
        }
    }

    /// Starts checking these keys.
    fn start(self: &Arc<Self>, listeners: Vec<Arc<Listener>>, limits: &mut PlaceLimits) {
        let key = |listener: Arc<Listener>| {
            ((listener.layout(), self.route.place(listener.key())), listener)
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

    /// Asks the server to report the next changes of the keys of first claims, before the check. The
    /// check finds earlier changes.
    async fn begin_watch(&self, batch: &[Arc<Listener>]) {
        let listeners: Vec<_> = batch.iter().filter(|listener| listener.wants_watch()).collect();
        let Some(first) = listeners.first() else { return };
        let mut commands = Pipeline::new();
        // The keys may be in different slots of a cluster.
        let at_once = if self.route.is_cluster() { 1 } else { listeners.len() };
        for some in listeners.chunks(at_once) {
            let keys = commands.add_command(caching()).cmd("EXISTS");
            for listener in some {
                keys.arg(listener.key());
            }
        }
        // Before the request, because a report may come before the reply.
        for listener in &listeners {
            listener.set_watched(true);
        }
        let timeout = RequestTimeout::of(self.response_timeout);
        let options = RequestOptions::new(RequestClass::Unlimited, timeout);
        let answers = match self.route.server_of(first.key(), self.response_timeout).await {
            Ok(server) => server.connection.send_all(&commands, &options, |_| Ok(())).await,
            Err(error) => Err(error),
        };
        if !answers.is_ok_and(|answers| answers.iter().all(Result::is_ok)) {
            for listener in &listeners {
                listener.set_watched(false);
            }
        }
    }

    /// Checks some keys of one layout and one place.
    async fn check(&self, mut batch: Vec<Arc<Listener>>) {
        // The connection may have been lost during the wait for a permit. Checks are planned anew
        // when it is back.
        batch.retain(|listener| listener.is_live());
        let Some(first) = batch.first() else { return };
        self.begin_watch(&batch).await;
        let (dialect, in_cluster) = (dialects::of(first.layout()), self.route.is_cluster());
        let tickets: Vec<Option<QueueTicket>> = batch.iter().map(|one| one.ticket()).collect();
        let args = |call: &mut Cmd, some: Range<usize>| {
            let (batch, tickets) = (&batch[some.clone()], &tickets[some]);
            dialect.add_all_keys(call, batch.iter().map(|listener| listener.key()), in_cluster);
            if !dialect.queues {
                return;
            }
            for (listener, ticket) in batch.iter().zip(tickets) {
                let mut entry = self.client.owner_name(listener.owner()).to_vec();
                let queueing = Queueing::Woken;
                let rest = EntryRest::new(&self.client, queueing, listener.terms());
                entry.extend_from_slice(rest.as_bytes());
                call.arg(entry);
                match ticket {
                    Some(QueueTicket(ticket)) => call.arg(ticket),
                    None => call.arg(""),
                };
                call.arg(if in_cluster { queue::name(listener.key()) } else { String::new() });
                if dialect.has_modes() {
                    call.arg(&*queue::channels(listener.key(), in_cluster));
                }
            }
        };
        let timeout = RequestTimeout::of(self.response_timeout);
        let options = RequestOptions::new(RequestClass::Unlimited, timeout);
        let key = |index: usize| batch[index].key();
        let script = dialect.check(self.route.publish());
        let (locks, wants_carriers) = (batch.len(), false);
        let checks = ScriptBatch { script, locks, key: &key, options, wants_carriers };
        let decode = |reply: &_, locks| {
            Ok(decode::checked(reply, locks)?.into_iter().map(Ok::<_, StoreError>).collect())
        };
        let sent = BootInstant::now();
        let found = self.route.run_for_each(&checks, args, decode).await.answers;
        let found = found.into_iter().map(|found| found.unwrap_or(CheckResult::Failed));
        let checked = batch.into_iter().zip(tickets).zip(found);
        self.subscriptions
            .checked(checked.map(|((one, ticket), found)| (one, ticket, found)), sent);
    }
}
