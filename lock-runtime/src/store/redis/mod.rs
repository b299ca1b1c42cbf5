//! Locks in one Redis server.
//!
//! A lock is a key that names its owner and expires with the lease. How it does, its [`format`] says:
//! by default it is a string, the owner's token. That is the plain pattern of Redis's own
//! documentation, so that clients of other languages can share it: `SET key token NX PX lease` takes
//! it, and compare-and-delete frees it
//! (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>). The other formats are
//! those of other clients.
//!
//! Requests that a caller awaits go over a connection of the caller's runtime, one per runtime;
//! renewals and background releases over another; wake-ups come in on a third, over which the keys
//! that are waited for are looked at as well. So whatever those who wait cost, no renewal is late
//! for it.

mod decode;
mod endpoint;
mod format;
mod link;
mod look;
mod reply;
mod script;
mod server;
mod slot;
mod stream;
mod subscriber;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use redis::{Cmd, cmd};
use tokio::runtime;
use tracing::Level;

use self::decode::Acquired;
use self::endpoint::Endpoint;
use self::format::Format;
use self::link::{CONNECT_PATIENCE, Call, Limit, Link};
use self::look::Looker;
use self::server::Server;
use super::wake::OwnRelease;
use super::{
    Attempt, Background, Claim, Fenced, Lane, Left, LockStore, Patience, Release, Released,
    ReleasedBatch, Renewal, Renewed, StoreError, Subscription, Token, Trace, WakeUps,
};
use crate::clock::BootInstant;
use crate::error::LockError;
use crate::events;
use crate::eventually::Eventually;
use crate::format::WireFormat;
use crate::key;

/// How long the request of one who holds a lock may wait for those of others, of which a program
/// that releases very many locks at once has sent too many. Nothing is wrong then.
const HOLDERS_PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct RedisStore {
    endpoint: Arc<Endpoint>,
    response_timeout: Duration,
    /// The connections of the callers' runtimes. Few: most programs have one runtime.
    callers: Mutex<Vec<Link>>,
    /// Set once the client's own threads run.
    own: OnceLock<OwnLinks>,
    wake_ups: Arc<WakeUps>,
    /// What tells this client, its wake-ups and its owners, from others: a UUID.
    id: Arc<str>,
    /// It has been logged that releases cannot be told of.
    is_mute: AtomicBool,
}

/// The connections of the client's own threads.
struct OwnLinks {
    /// Of renewals and background releases.
    keeper: Link,
    /// Of the subscriptions.
    wake_ups: Link,
}

impl RedisStore {
    /// Checks the URL; connects later.
    pub(crate) fn new(url: &str, response_timeout: Duration) -> Result<Self, LockError> {
        let endpoint = Endpoint::parse(url)?;
        let id = uuid().map_err(|error| LockError::Unavailable {
            key: None,
            waited: Duration::ZERO,
            cause: format!("the system gave no random numbers: {error}"),
        })?;
        Ok(Self {
            endpoint: Arc::new(endpoint),
            response_timeout,
            callers: Mutex::default(),
            own: OnceLock::new(),
            wake_ups: WakeUps::remote(),
            id: id.into(),
            is_mute: AtomicBool::new(false),
        })
    }

    /// Makes all three connections and looks at the server, so that what is wrong with any of them
    /// is known at the start.
    pub(crate) async fn connect(&self) -> Result<(), LockError> {
        let started = BootInstant::now();
        let looked_at = async {
            let own = self.own()?;
            own.keeper.connection(CONNECT_PATIENCE).await?;
            own.wake_ups.connection(CONNECT_PATIENCE).await?;
            let caller = self.link(Lane::Caller)?;
            caller.connection(CONNECT_PATIENCE).await?;
            let patience = Patience { answer: CONNECT_PATIENCE, total: CONNECT_PATIENCE };
            let call = Call { limit: Limit::None, patience, trace: None };
            match caller.send(&cmd("INFO"), call, decode::info).await {
                // A user may be kept from looking, and locks all the same.
                Err(StoreError::Denied(cause) | StoreError::Refused(cause)) => {
                    tracing::debug!(%cause, "the server does not tell what it is");
                    Ok(Server::default())
                }
                info => info.map(|info| Server::parse(&info)),
            }
        };
        match looked_at.await {
            Ok(server) => {
                server.check()?;
                if let Some(warning) = server.warning() {
                    tracing::warn!(address = self.endpoint.address(), "{warning}");
                }
                Ok(())
            }
            Err(StoreError::Denied(cause)) if reply::is_too_old(&cause) => {
                Err(server::without_hello())
            }
            Err(StoreError::Denied(cause)) if cause.contains(reply::NO_SUCH_DATABASE) => {
                let problem = "the server has no database of that number".into();
                Err(LockError::Config { option: "url", problem })
            }
            Err(StoreError::Denied(cause)) => Err(LockError::Denied { cause }),
            Err(error) => Err(LockError::Unavailable {
                key: None,
                waited: BootInstant::now().since(started),
                cause: error.to_string(),
            }),
        }
    }

    fn own(&self) -> Result<&OwnLinks, StoreError> {
        self.own.get().ok_or_else(|| StoreError::Refused("there is no keeper thread".into()))
    }

    fn link(&self, lane: Lane) -> Result<Link, StoreError> {
        let missing = |what: &str| StoreError::Refused(format!("there is no {what}"));
        match lane {
            Lane::Keeper => Ok(self.own()?.keeper.clone()),
            Lane::Caller => {
                let here = crate::runtime::here().map_err(|problem| {
                    let cause = "requests are awaited inside a tokio runtime, and";
                    StoreError::Refused(format!("{cause} {problem}"))
                })?;
                let mut links = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
                let own = |link: &&Link| link.home() == here.id() && link.is_alive();
                if let Some(link) = links.iter().find(own) {
                    return Ok(link.clone());
                }
                links.retain(Link::is_alive);
                let link = Link::new(Arc::clone(&self.endpoint), here, self.response_timeout, None);
                links.push(link.clone());
                Ok(link)
            }
            Lane::Runtime(id) => {
                let links = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
                let link = links.iter().find(|link| link.home() == id && link.is_alive());
                link.cloned().ok_or_else(|| missing("such runtime any more"))
            }
        }
    }

    /// The request of one who has, or had, a lock; or of so many.
    fn holders(&self) -> Call<'static> {
        let answer = self.response_timeout;
        let patience = Patience { answer, total: answer + HOLDERS_PATIENCE };
        Call { limit: Limit::Holders, patience, trace: None }
    }

    async fn acquire(
        &self,
        claim: Claim<'_>,
        patience: Patience,
        trace: &Trace,
    ) -> Result<Attempt, StoreError> {
        let link = self.link(Lane::Caller)?;
        let format = Format::of(claim.token.format());
        let call = Call { limit: Limit::Acquires, patience, trace: Some(trace) };
        let acquired = if let (true, Some(take)) = (claim.fresh, format.take) {
            // Cheaper for the server than a script, and all that most locks ever need.
            link.send(&take(&claim), call, decode::taken).await?
        } else {
            let args = |call: &mut Cmd| {
                call.arg(format.keys());
                format.add_keys(call, claim.key);
                call.arg(format.owner(claim.token, &self.id)).arg(milliseconds(claim.lease));
            };
            link.run(&format.acquire, args, call, decode::acquired).await?
        };
        match acquired {
            Acquired::Granted => Ok(Attempt::Granted),
            Acquired::Busy(left) => Ok(Attempt::Busy(left)),
            Acquired::WrongFormat(found) => Err(StoreError::WrongFormat {
                key: claim.key.to_owned(),
                expected: claim.token.format().value(),
                found,
            }),
        }
    }

    async fn renew(
        &self,
        batch: &[Renewal<'_>],
        lane: Lane,
    ) -> Result<Vec<Result<Renewed, StoreError>>, StoreError> {
        let Some(first) = batch.first() else { return Ok(Vec::new()) };
        let format = Format::of(first.token.format());
        let args = |call: &mut Cmd| {
            call.arg(batch.len() * format.keys());
            for renewal in batch {
                format.add_keys(call, renewal.key);
            }
            for renewal in batch {
                let owner = format.owner(renewal.token, &self.id);
                call.arg(owner).arg(milliseconds(renewal.lease));
            }
        };
        // They wait for nobody.
        let patience = Patience { answer: self.response_timeout, total: self.response_timeout };
        let call = Call { limit: Limit::None, patience, trace: None };
        let decode = |reply| decode::renewed(reply, batch.len());
        self.link(lane)?.run(&format.renew, args, call, decode).await
    }

    async fn free(&self, release: Release<'_>, lane: Lane) -> Result<Released, StoreError> {
        let format = Format::of(release.token.format());
        let channel = format.channel(release.key);
        let args = |call: &mut Cmd| {
            call.arg(format.keys());
            format.add_keys(call, release.key);
            self.add_release(call, &release, &channel);
            call.arg(format.message(&self.id));
        };
        let own = format.is_anonymous().then(|| self.wake_ups.own_release(&channel));
        let (link, call) = (self.link(lane)?, self.holders());
        let reply = link.run(&format.release, args, call, decode::released).await?;
        Ok(self.freed(&reply, &channel, own))
    }

    /// Frees several with one script.
    async fn free_all(
        &self,
        batch: &[Release<'_>],
        lane: Lane,
        trace: &Trace,
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        let Some(first) = batch.first() else { return Ok(Vec::new()) };
        let format = Format::of(first.token.format());
        let channels: Vec<String> =
            batch.iter().map(|release| format.channel(release.key)).collect();
        let args = |call: &mut Cmd| {
            call.arg(batch.len() * format.keys());
            for release in batch {
                format.add_keys(call, release.key);
            }
            for (release, channel) in batch.iter().zip(&channels) {
                self.add_release(call, release, channel);
            }
            call.arg(format.message(&self.id));
        };
        let own = |channel| format.is_anonymous().then(|| self.wake_ups.own_release(channel));
        let own: Vec<_> = channels.iter().map(|channel| own(channel)).collect();
        let link = self.link(lane)?;
        // Few of these are under way at a time, and whoever sends them sees to that. A permit that
        // is given back wakes callers, which is nothing for the thread that these come from.
        let call = Call { trace: Some(trace), limit: Limit::None, ..self.holders() };
        let decode = |reply| decode::released_all(reply, batch.len());
        let replies = link.run(&format.release_all, args, call, decode).await?;
        let answers = replies.into_iter().zip(&channels).zip(own);
        let freed = |((reply, channel), own): ((Result<_, _>, &String), _)| {
            reply.map(|reply| self.freed(&reply, channel, own))
        };
        Ok(answers.map(freed).collect())
    }

    /// Adds the arguments of one release.
    fn add_release(&self, call: &mut Cmd, release: &Release<'_>, channel: &str) {
        let format = Format::of(release.token.format());
        call.arg(format.owner(release.token, &self.id)).arg(channel);
        call.arg(milliseconds(release.keep));
    }

    fn freed(
        &self,
        reply: &decode::Released,
        channel: &str,
        own: Option<OwnRelease<'_>>,
    ) -> Released {
        let (told, others) = match reply {
            decode::Released::Gone => return Released::Gone,
            decode::Released::Taken => return Released::Taken,
            decode::Released::Freed { told } => (*told, self.others_of(channel, *told)),
            // Those who were told cannot have it yet.
            decode::Released::Stays { told } => (*told, 0),
            decode::Released::Untold(cause) => {
                self.could_not_tell(channel, cause);
                (0, 0)
            }
        };
        if let Some(own) = own.filter(|_| told > 0) {
            own.told();
        }
        Released::Freed { others }
    }

    /// Says so once.
    fn could_not_tell(&self, channel: &str, cause: &str) {
        if !self.is_mute.swap(true, Ordering::Relaxed) {
            let (channel, cause) = (channel.to_owned(), cause.to_owned());
            events::emit(Level::WARN, move || {
                tracing::warn!(
                    channel,
                    cause,
                    "may not tell others of releases: clients of this kind look for themselves \
                     once a second, others may sleep until the lease that they know of is over"
                );
            });
        }
    }

    async fn subscribers(&self, key: &str, format: WireFormat) -> Result<usize, StoreError> {
        let channel = Format::of(format).channel(key);
        let mut count = cmd("PUBSUB");
        count.arg("NUMSUB").arg(&channel);
        let link = self.link(Lane::Caller)?;
        let all = link.send(&count, self.holders(), decode::subscribers).await?;
        Ok(self.others_of(&channel, all))
    }

    /// How many of a channel's subscribers are other clients.
    fn others_of(&self, channel: &str, all: i64) -> usize {
        let all = usize::try_from(all).unwrap_or_default();
        if all == 0 { 0 } else { all - usize::from(self.wake_ups.is_live(channel)) }
    }

    async fn fencing_token(&self, key: &str, token: &Token) -> Result<Fenced, StoreError> {
        let format = Format::of(token.format());
        let last = format!("{}{{{}}}", key::FENCES, slot::tag(key));
        let args = |call: &mut Cmd| {
            call.arg(format.keys() + 1);
            format.add_keys(call, key);
            call.arg(&last).arg(format.owner(token, &self.id));
        };
        let link = self.link(Lane::Caller)?;
        match link.run(&format.fence, args, self.holders(), decode::fenced).await? {
            decode::Fenced::With(fence) => Ok(Fenced::With(fence)),
            decode::Fenced::Gone => Ok(Fenced::Gone),
            decode::Fenced::Taken => Ok(Fenced::Taken),
            decode::Fenced::NoLastToken => Err(StoreError::WrongFormat {
                key: last,
                expected: "fencing token",
                found: "other value".into(),
            }),
        }
    }
}

impl LockStore for RedisStore {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        patience: Patience,
        trace: &'a Trace,
    ) -> Eventually<'a, Result<Attempt, StoreError>> {
        Eventually::pending(self.acquire(claim, patience, trace))
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        lane: Lane,
    ) -> Eventually<'a, Vec<Result<Renewed, StoreError>>> {
        Eventually::pending(async move {
            let renewed = RedisStore::renew(self, batch, lane).await;
            renewed.unwrap_or_else(|error| vec![Err(error); batch.len()])
        })
    }

    fn release<'a>(
        &'a self,
        key: &'a str,
        token: &'a Token,
        keep: Duration,
        lane: Lane,
    ) -> Eventually<'a, Result<Released, StoreError>> {
        Eventually::pending(self.free(Release { key, token, keep }, lane))
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> Eventually<'a, ReleasedBatch> {
        Eventually::pending(async move {
            let trace = Trace::default();
            let answers = self.free_all(batch, lane, &trace).await;
            let answers = answers.unwrap_or_else(|error| vec![Err(error); batch.len()]);
            ReleasedBatch { connection: trace.connection(), answers }
        })
    }

    fn fence<'a>(
        &'a self,
        key: &'a str,
        token: &'a Token,
    ) -> Eventually<'a, Result<Fenced, StoreError>> {
        Eventually::pending(self.fencing_token(key, token))
    }

    fn others<'a>(
        &'a self,
        key: &'a str,
        format: WireFormat,
    ) -> Eventually<'a, Result<usize, StoreError>> {
        Eventually::pending(self.subscribers(key, format))
    }

    fn subscribe(&self, key: &str, format: WireFormat) -> Subscription {
        self.wake_ups.listen(&Format::of(format).channel(key), key, format)
    }

    fn seen(&self, key: &str, format: WireFormat) -> Option<(Left, BootInstant)> {
        self.wake_ups.seen(&Format::of(format).channel(key), key)
    }

    fn adopt(&self, background: &Background) {
        let link = |home: &runtime::Handle, on_message| {
            let endpoint = Arc::clone(&self.endpoint);
            Link::new(endpoint, home.clone(), self.response_timeout, on_message)
        };
        let on_message = subscriber::on_message(&self.wake_ups, &self.id);
        let keeper = link(&background.renewals, None);
        let wake_ups = link(&background.wake_ups, Some(on_message));
        if self.own.set(OwnLinks { keeper, wake_ups: wake_ups.clone() }).is_ok() {
            let home = &background.wake_ups;
            let looker =
                Looker::new(wake_ups.clone(), Arc::clone(&self.wake_ups), self.response_timeout);
            home.spawn(looker.run());
            let subscribed = Arc::clone(&self.wake_ups);
            home.spawn(subscriber::run(wake_ups, subscribed, self.response_timeout));
        }
    }
}

/// A random UUID.
fn uuid() -> Result<String, getrandom::Error> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random)?;
    let mut number = u128::from_be_bytes(random);
    // Version 4, and the variant that has versions.
    number = number & !(0xf << 76) | 4 << 76;
    number = number & !(0b11 << 62) | 0b10 << 62;
    let digits = format!("{number:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    Ok(parts.join("-"))
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_uuid_of_its_own() {
        let (one, two) = (uuid().expect("randomness"), uuid().expect("randomness"));
        assert_ne!(one, two);
        for uuid in [one, two] {
            let parts: Vec<&str> = uuid.split('-').collect();
            assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
            assert!(parts[2].starts_with('4') && parts[3].starts_with(['8', '9', 'a', 'b']));
        }
    }
}
