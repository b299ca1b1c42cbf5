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
//! those of the keeper over the keeper's, which the wake-ups come in on as well.

mod endpoint;
mod format;
mod link;
mod reply;
mod script;
mod server;
mod slot;
mod stream;
mod subscriber;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value, cmd};
use tokio::runtime;

use self::endpoint::Endpoint;
use self::format::Format;
use self::link::{CONNECT_PATIENCE, Link};
use self::server::Server;
use super::{
    Attempt, Background, Claim, Fenced, Lane, Left, LockStore, Patience, Release, Released,
    ReleasedBatch, Renewal, Renewed, StoreError, Subscription, Token, Trace, WakeUps,
};
use crate::clock::BootInstant;
use crate::error::LockError;
use crate::eventually::Eventually;
use crate::format::WireFormat;
use crate::key;

pub(crate) struct RedisStore {
    endpoint: Arc<Endpoint>,
    response_timeout: Duration,
    /// The connections of the callers' runtimes. Few: most programs have one runtime.
    callers: Mutex<Vec<Link>>,
    /// Set once the keeper's thread runs.
    keeper: OnceLock<Link>,
    wake_ups: Arc<WakeUps>,
    /// What tells this client, its wake-ups and its owners, from others: a UUID.
    id: Arc<str>,
    /// It has been logged that releases cannot be told of.
    is_mute: AtomicBool,
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
            keeper: OnceLock::new(),
            wake_ups: WakeUps::remote(),
            id: id.into(),
            is_mute: AtomicBool::new(false),
        })
    }

    /// Makes both connections and looks at the server, so that what is wrong with any of them is
    /// known at the start.
    pub(crate) async fn connect(&self) -> Result<(), LockError> {
        let started = BootInstant::now();
        let (caller, keeper) = (self.link(Lane::Caller), self.link(Lane::Keeper));
        let looked_at = async {
            keeper?.connection(CONNECT_PATIENCE).await?;
            let caller = caller?;
            caller.connection(CONNECT_PATIENCE).await?;
            match caller.send(&cmd("INFO"), CONNECT_PATIENCE).await {
                // A user may be kept from looking, and locks all the same.
                Err(StoreError::Denied(cause) | StoreError::Refused(cause)) => {
                    tracing::debug!(%cause, "the server does not tell what it is");
                    Ok(Server::default())
                }
                info => info.map(|info: String| Server::parse(&info)),
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

    fn link(&self, lane: Lane) -> Result<Link, StoreError> {
        let missing = |what: &str| StoreError::Refused(format!("there is no {what}"));
        match lane {
            Lane::Keeper => self.keeper.get().cloned().ok_or_else(|| missing("keeper thread")),
            Lane::Caller => {
                let here = runtime::Handle::try_current().map_err(|_| missing("tokio runtime"))?;
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

    async fn acquire(&self, claim: Claim<'_>, within: Duration) -> Result<Attempt, StoreError> {
        let link = self.link(Lane::Caller)?;
        let format = Format::of(claim.token.format());
        if let (true, Some(take)) = (claim.fresh, format.take) {
            // Cheaper for the server than a script, and all that most locks ever need.
            return Ok(match link.send::<Value>(&take(&claim), within).await? {
                Value::Nil => Attempt::Busy(Left::Unknown),
                _ => Attempt::Granted,
            });
        }
        let args = |call: &mut Cmd| {
            call.arg(format.keys());
            format.add_keys(call, claim.key);
            call.arg(format.owner(claim.token, &self.id)).arg(milliseconds(claim.lease));
        };
        match link.run::<Value>(&format.acquire, args, within).await? {
            Value::Nil => Ok(Attempt::Granted),
            Value::Int(left) => Ok(Attempt::Busy(match u64::try_from(left) {
                Ok(left) => Left::Time(Duration::from_millis(left)),
                Err(_) => Left::Forever,
            })),
            kind => Err(StoreError::WrongFormat {
                key: claim.key.to_owned(),
                expected: claim.token.format().value(),
                found: redis::from_redis_value(kind).unwrap_or_else(|_| "unknown".into()),
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
        let link = self.link(lane)?;
        let replies: Vec<i64> = link.run(&format.renew, args, self.response_timeout).await?;
        let renewed = |reply| match reply {
            1 => Renewed::Extended,
            0 => Renewed::Gone,
            _ => Renewed::Taken,
        };
        Ok(replies.into_iter().map(|reply| Ok(renewed(reply))).collect())
    }

    async fn free(
        &self,
        key: &str,
        token: &Token,
        keep: Duration,
        lane: Lane,
    ) -> Result<Released, StoreError> {
        let format = Format::of(token.format());
        let channel = format.channel(key);
        let args = |call: &mut Cmd| {
            call.arg(format.keys());
            format.add_keys(call, key);
            call.arg(format.owner(token, &self.id)).arg(&channel).arg(milliseconds(keep));
            call.arg(format.message(&self.id));
        };
        let own = format.is_anonymous().then(|| self.wake_ups.own_release(&channel));
        let link = self.link(lane)?;
        let reply = link.run::<Value>(&format.release, args, self.response_timeout).await?;
        let (told, others) = match reply {
            Value::Int(0) => return Ok(Released::Gone),
            Value::Int(-1) => return Ok(Released::Taken),
            Value::Int(freed @ 1..) => (freed - 1, self.others_of(&channel, freed - 1)),
            // Those who were told cannot have it yet.
            Value::Int(kept) => (-2 - kept, 0),
            cause => {
                self.could_not_tell(key, cause);
                (0, 0)
            }
        };
        if let Some(own) = own.filter(|_| told > 0) {
            own.told();
        }
        Ok(Released::Freed { others })
    }

    /// Says so once.
    fn could_not_tell(&self, key: &str, cause: Value) {
        if !self.is_mute.swap(true, Ordering::Relaxed) {
            let cause: String = redis::from_redis_value(cause).unwrap_or_default();
            tracing::warn!(
                key,
                %cause,
                "may not tell others of releases: clients of this kind look for themselves once a second, others \
                 may sleep until the lease that they know of is over"
            );
        }
    }

    async fn subscribers(&self, key: &str, format: WireFormat) -> Result<usize, StoreError> {
        let channel = Format::of(format).channel(key);
        let mut count = cmd("PUBSUB");
        count.arg("NUMSUB").arg(&channel);
        let link = self.link(Lane::Caller)?;
        let (_, all): (Value, i64) = link.send(&count, self.response_timeout).await?;
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
        let reply = link.run::<Value>(&format.fence, args, self.response_timeout).await?;
        let not_a_token = |key| StoreError::WrongFormat {
            key,
            expected: "fencing token",
            found: "other value".into(),
        };
        match reply {
            Value::Int(0) => Ok(Fenced::Gone),
            Value::Int(-1) => Ok(Fenced::Taken),
            Value::Int(_) => Err(not_a_token(last)),
            text => match redis::from_redis_value(text) {
                Ok(fence) => Ok(Fenced::With(fence)),
                Err(_) => Err(not_a_token(last)),
            },
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
        Eventually::pending(async move {
            trace.sent(1);
            self.acquire(claim, patience.answer.min(patience.total)).await
        })
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        lane: Lane,
    ) -> Eventually<'a, Vec<Result<Renewed, StoreError>>> {
        Eventually::pending(async move {
            match RedisStore::renew(self, batch, lane).await {
                Ok(replies) if replies.len() == batch.len() => replies,
                Ok(_) => {
                    let short = StoreError::Unknown("fewer answers than renewals".into());
                    vec![Err(short); batch.len()]
                }
                Err(error) => vec![Err(error); batch.len()],
            }
        })
    }

    fn release<'a>(
        &'a self,
        key: &'a str,
        token: &'a Token,
        keep: Duration,
        lane: Lane,
    ) -> Eventually<'a, Result<Released, StoreError>> {
        Eventually::pending(self.free(key, token, keep, lane))
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> Eventually<'a, ReleasedBatch> {
        Eventually::pending(async move {
            let mut answers = Vec::with_capacity(batch.len());
            for release in batch {
                answers.push(self.free(release.key, release.token, release.keep, lane).await);
            }
            ReleasedBatch { connection: None, answers }
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
        self.wake_ups.listen(&Format::of(format).channel(key))
    }

    fn adopt(&self, background: &Background) {
        let keeper = &background.renewals;
        let on_message = subscriber::on_message(&self.wake_ups, &self.id);
        let endpoint = Arc::clone(&self.endpoint);
        let link = Link::new(endpoint, keeper.clone(), self.response_timeout, Some(on_message));
        if self.keeper.set(link.clone()).is_ok() {
            let wake_ups = Arc::clone(&self.wake_ups);
            keeper.spawn(subscriber::run(link, wake_ups, self.response_timeout));
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
