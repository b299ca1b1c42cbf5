//! A quorum of independent stores (Redlock,
//! <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>).
//!
//! A lock is granted when a majority of the stores has granted it, and its lease has not ended (`claims`). It is
//! renewed and released by a majority (`holds`). A store that did not answer may still have a vote, which is released
//! when it answers again (`residual_votes`). Two majorities have a store in common, so there are no two holders, as
//! long as the stores lose no locks and their clocks run at about the same speed.
//!
//! A store that has restarted may have lost locks. It does not vote until the leases of these locks have ended, which is
//! the `quarantine` of its servers. After that, holds get its vote back (`restored_votes`). Stores that are not
//! independent of each other do not vote (`membership`).

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![allow(
    missing_debug_implementations,
    clippy::must_use_candidate,
    reason = "only lock-runtime uses it"
)]

mod claims;
mod holds;
mod member;
mod membership;
mod relay;
mod reports;
mod residual_votes;
mod restored_votes;
mod round;
mod store;
mod tally;
#[cfg(test)]
mod tests;
mod tokens;

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use self::member::QuorumMember;
use self::membership::{Membership, VersionRule};
use self::round::{VoteRound, within};
use self::store::{QuorumStore, SHOWN};
use self::tally::{Failures, majority};
use lock_core::clock::BootInstant;
use lock_core::error::LockError;
use lock_core::join::join_all;
use lock_core::maybe_ready::MaybeReady;
use lock_core::questions::Answerer;
use lock_core::store::contract::{Asker, KeyInspector};
use lock_core::store::contract::{
    Backend, BackgroundRuntimes, Layout, LockStore, StoreAnswer, StoreError,
};
use lock_core::store::hold_reports::HoldReports;
use lock_core::store::key_holder::KeyHolder;

/// What to do about the layouts that it lacks.
const INSTEAD: &str = ", because its servers could disagree about their holders; use exclusive locks, or a single server, sentinels or a cluster";

/// The smallest number of stores: a quorum of fewer would tolerate no failure.
const FEWEST: usize = 3;

/// The shortest and the longest timeout of one store.
const SERVER_TIMEOUTS: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_millis(500));

/// How long a client that connects waits for a minority of the stores. Stores that answer later are checked later.
const MINORITY_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout of one store for a client with this lease: a tenth of the lease, within bounds, and at most a third.
pub fn server_timeout(lease: Duration) -> Duration {
    (lease / 10).clamp(SERVER_TIMEOUTS.0, SERVER_TIMEOUTS.1).min(lease / 3)
}

/// Describes the problem with a quorum of so many stores, if there is one.
pub fn check_size(stores: usize) -> Result<(), String> {
    let servers = match stores {
        0 => "no server".to_owned(),
        1 => "one server".to_owned(),
        stores => format!("{stores} servers"),
    };
    if stores < FEWEST {
        return Err(format!(
            "a quorum of {servers} tolerates no failure; name {FEWEST} or 5 servers that are independent \
             of each other, or use the URL of the one server"
        ));
    }
    if stores.is_multiple_of(2) {
        return Err(format!(
            "a quorum of {servers} tolerates no more failures than one of {}; name an odd number",
            stores - 1
        ));
    }
    Ok(())
}

/// A store made of several others.
pub struct QuorumBackend {
    /// The stores that vote.
    members: Arc<[Arc<QuorumMember>]>,
    membership: Arc<Membership>,
    locks: Arc<QuorumStore>,
    server_timeout: Duration,
}

impl QuorumBackend {
    /// A quorum of these stores, each with its address. Fails if one of them has no votes.
    pub fn new(
        stores: Vec<(Arc<dyn Backend>, String)>,
        server_timeout: Duration,
    ) -> Result<Self, StoreError> {
        let (backends, names): (Vec<_>, Vec<_>) = stores.into_iter().unzip();
        let membership = Arc::new(Membership::new(names));
        let members = backends.into_iter().enumerate().map(|(number, backend)| {
            let votes = backend.handle(Layout::Vote)?;
            Ok(QuorumMember::new(number, (backend, votes), Arc::clone(&membership)))
        });
        let members: Arc<[_]> = members.collect::<Result<_, StoreError>>()?;
        let locks = QuorumStore::new(Arc::clone(&members), Arc::clone(&membership), server_timeout);
        Ok(Self { members, membership, locks, server_timeout })
    }

    /// Connects to all stores at once. Fails if one must not vote, or fewer than a majority can be reached. Waits for the
    /// minority for [`MINORITY_TIMEOUT`].
    async fn connect_all(&self) -> Result<(), LockError> {
        let started = BootInstant::now();
        let mut connecting: Vec<_> =
            self.members.iter().map(|member| Some(Box::pin(connect(member)))).collect();
        let (mut connected, mut failures) = (0, Failures::default());
        let mut deadline: Option<Instant> = None;
        loop {
            let next = poll_fn(|cx| {
                for (number, attempt) in connecting.iter_mut().enumerate() {
                    let Some(pending) = attempt else { continue };
                    if let Poll::Ready(outcome) = pending.as_mut().poll(cx) {
                        *attempt = None;
                        return Poll::Ready(Some((number, outcome)));
                    }
                }
                let is_over = connecting.iter().all(Option::is_none);
                if is_over { Poll::Ready(None) } else { Poll::Pending }
            });
            let next = match deadline {
                Some(deadline) => timeout_at(deadline, next).await.unwrap_or(None),
                None => next.await,
            };
            match next {
                None => break,
                Some((_, Ok(()))) => connected += 1,
                Some((number, Err(error))) => failures.add(number, self.failure(number, error)?),
            }
            if connected >= majority(self.members.len()) {
                deadline.get_or_insert_with(|| Instant::now() + MINORITY_TIMEOUT);
            }
        }
        if connected < majority(self.members.len()) {
            let waited = BootInstant::now().since(started);
            let error = failures.into_error(self.membership.names(), "accepted a connection");
            return Err(error.without_key(waited));
        }
        for (number, member) in self.members.iter().enumerate() {
            let cause = match failures.of(number) {
                Some(error) => error.to_string(),
                None if connecting[number].is_some() => "no answer yet".to_owned(),
                None => continue,
            };
            let address = member.name();
            tracing::warn!(target: "lock_runtime::store::quorum", address, cause, "a server of the quorum cannot be used yet");
        }
        Ok(())
    }

    /// The failure of one store, or the error of the client if it is permanent.
    fn failure(&self, number: usize, error: LockError) -> Result<StoreError, LockError> {
        let name = self.members[number].name();
        match error {
            // The problem names the server.
            LockError::Config { option: "quorum", problem, .. } => {
                Err(LockError::config("quorum", problem))
            }
            // The advice for a client of that cluster alone would be wrong here.
            LockError::Config { option, problem, .. }
                if problem.contains("node of a Redis Cluster") =>
            {
                let problem = format!(
                    "the server {name} of the quorum is a node of a Redis Cluster, and the servers of a quorum are \
                     independent of each other; name servers that belong to no cluster"
                );
                Err(LockError::config(option, problem))
            }
            LockError::Config { option, problem, .. } => {
                let problem = format!(
                    "the server {name} of the quorum cannot be used: {problem}. (The servers of a quorum are \
                     independent of each other: neither nodes of one cluster nor replicas)"
                );
                Err(LockError::config(option, problem))
            }
            LockError::Denied { cause, .. } => Err(LockError::denied(format!("{name}: {cause}"))),
            LockError::Unavailable { cause, .. } => Ok(StoreError::Refused(cause)),
            error => Ok(StoreError::Refused(error.to_string())),
        }
    }

    /// Fails unless a majority is ready.
    async fn check_majority(&self) -> Result<(), StoreError> {
        let requests = self.members.iter().map(|member| {
            let member = Arc::clone(member);
            Some(within(self.server_timeout * 2, async move {
                member.admitted().await?;
                member.backend.check_readiness(Layout::Vote).await
            }))
        });
        let (mut round, mut ready) = (VoteRound::new(requests), 0);
        let mut failures = Failures::default();
        while ready < majority(self.members.len())
            && let Some((number, answer)) = round.next().await
        {
            match answer {
                Ok(()) => ready += 1,
                Err(error) => failures.add(number, error),
            }
        }
        if ready >= majority(self.members.len()) {
            return Ok(());
        }
        Err(failures.into_error(self.membership.names(), "reported that they are ready"))
    }

    /// The holder at most of the stores.
    async fn holder_of_most(&self, key: &str) -> Result<Option<KeyHolder>, StoreError> {
        let key: Arc<str> = key.into();
        let requests = self.members.iter().map(|member| {
            let (member, key) = (Arc::clone(member), Arc::clone(&key));
            // One request for the lock, and one for its holder.
            Some(within(self.server_timeout * 2, async move { member.backend.holder(&key).await }))
        });
        let (mut round, mut named) = (VoteRound::new(requests), Vec::<(KeyHolder, usize)>::new());
        let (mut failures, mut answered) = (Failures::default(), 0);
        while let Some((number, answer)) = round.next().await {
            let holder = match answer {
                Ok(holder) => holder,
                Err(error) => {
                    failures.add(number, error);
                    continue;
                }
            };
            answered += 1;
            let Some(holder) = holder else { continue };
            // A client has another id at each store.
            match named.iter_mut().find(|(other, _)| other.began == holder.began) {
                Some((_, count)) => *count += 1,
                None => named.push((holder, 1)),
            }
            if named.iter().any(|(_, count)| *count >= majority(self.members.len())) {
                break;
            }
        }
        match named.into_iter().max_by_key(|(_, count)| *count) {
            Some((holder, _)) => Ok(Some(holder)),
            None if answered > 0 => Ok(None),
            None => Err(failures.into_error(self.membership.names(), "named the holder")),
        }
    }
}

/// Connects to a store, and checks that it may vote.
async fn connect(member: &Arc<QuorumMember>) -> Result<(), LockError> {
    let started = BootInstant::now();
    member.backend.connect().await?;
    let admitted = member.check(VersionRule::One).await;
    admitted.map_err(|error| error.without_key(BootInstant::now().since(started)))
}

impl Backend for QuorumBackend {
    fn adopt(&self, runtimes: &BackgroundRuntimes, reports: HoldReports) {
        for member in self.members.iter() {
            member.backend.adopt(runtimes, reports.clone());
            let residual_votes = Arc::clone(&member.residual_votes);
            // The store has a timeout of its own.
            let limit = self.server_timeout * 2;
            runtimes.renewals.spawn(residual_votes.run(Arc::clone(&member.store), limit));
        }
        self.locks.wake_on(runtimes.wake_ups.clone());
    }

    fn connect(&self) -> MaybeReady<'_, Result<(), LockError>> {
        MaybeReady::pending(self.connect_all())
    }

    fn check_readiness(&self, _: Layout) -> StoreAnswer<'_, ()> {
        MaybeReady::pending(self.check_majority())
    }

    fn holder<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<KeyHolder>> {
        MaybeReady::pending(self.holder_of_most(key))
    }

    /// Clients that ask have to use one of the servers.
    fn answer_with(&self, answerer: Weak<dyn Answerer>) {
        for member in self.members.iter() {
            member.backend.answer_with(Weak::clone(&answerer));
        }
    }

    fn finish(&self) -> MaybeReady<'_, ()> {
        MaybeReady::pending(async {
            join_all(self.members.iter().map(|member| member.residual_votes.finish())).await;
        })
    }
    fn inspector(&self) -> Result<&dyn KeyInspector, StoreError> {
        Err(no_operators())
    }
    fn asker(&self, _: &str) -> Result<Box<dyn Asker>, StoreError> {
        Err(no_operators())
    }

    fn handle(&self, layout: Layout) -> Result<Arc<dyn LockStore>, StoreError> {
        layout.plain_only(SHOWN).map_err(|lacking| match lacking {
            StoreError::Config { option, problem } => {
                StoreError::Config { option, problem: problem + INSTEAD }
            }
            other => other,
        })?;
        Ok(Arc::clone(&self.locks) as Arc<dyn LockStore>)
    }
}
fn no_operators() -> StoreError {
    let problem = "a quorum cannot be inspected, because each of its servers has keys of its own; connect to one of \
                   the servers, which also reaches the clients of the quorum";
    StoreError::Config { option: "url", problem: problem.to_owned() }
}
