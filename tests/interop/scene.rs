//! What the rows have in common.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_runtime::{Lock, LockClient, LockClientBuilder, LockError, LockGuard, WireFormat};
use lock_tests::RedisServer;
use lock_tests::support::until;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::clients::Client;
use crate::peer::Peer;

/// All durations derive from it. Twice that of the other suites, because it takes more to make the
/// others late.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// How late one may be on a busy machine. A client that polls once a second would mostly be later.
pub(crate) const LATE: Duration = LEASE.checked_div(4).expect("not zero");
/// How late one may be that is woken. Beside other programs of theirs it may take as long as a poll,
/// but not as long as the leases of those who release.
pub(crate) const WOKEN: Duration = LEASE.saturating_mul(3).checked_div(2).expect("not zero");
/// By when a client of ours that nobody wakes has found out.
pub(crate) const OUR_POLL: Duration = Duration::from_secs(1);
/// The grain of the server's clock.
pub(crate) const GRAIN: Duration = Duration::from_millis(2);

/// A server, a client of ours, and what there is to know of the others.
pub(crate) struct Scene {
    pub(crate) client: &'static Client,
    pub(crate) server: RedisServer,
    pub(crate) ours: LockClient,
}

impl Scene {
    pub(crate) async fn with(client: &'static Client) -> Self {
        let server = RedisServer::start();
        let ours = builder(&server, client.format).connect().await.expect("the server is up");
        Self { client, server, ours }
    }

    /// Another client of ours.
    pub(crate) fn builder(&self) -> LockClientBuilder {
        builder(&self.server, self.client.format)
    }

    /// The others, as they are.
    pub(crate) async fn theirs(&self) -> Peer {
        Peer::start(self.client, &self.server.url(), None).await
    }

    /// The others with our lease, if they renew.
    pub(crate) async fn theirs_with_our_lease(&self) -> Peer {
        Peer::start(self.client, &self.server.url(), Some(LEASE)).await
    }

    /// Our lock that is theirs on `k`.
    pub(crate) fn lock(&self) -> Lock {
        self.ours.lock(self.client.key)
    }

    pub(crate) async fn is_free(&self) -> bool {
        self.lock().try_acquire().await.expect("the server is up").is_some()
    }

    /// What the server has at the key.
    pub(crate) fn value(&self) -> Vec<u8> {
        self.server.command(&["DUMP", self.client.key])
    }

    /// How long the key stays if nobody extends it.
    pub(crate) fn left(&self) -> Duration {
        if self.client.format == WireFormat::Timestamp {
            let time = self.server.command(&["GET", self.client.key]);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            return Duration::from_millis(time).saturating_sub(now);
        }
        let left = self.server.pttl(self.client.key);
        Duration::from_millis(left.try_into().expect("it expires"))
    }

    /// One of ours that has the lock, until this is over.
    pub(crate) async fn our_body<T: Send + 'static>(
        &self,
        body: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Result<T, LockError>> {
        let lock = self.lock();
        let (began, has_begun) = tokio::sync::oneshot::channel();
        let held = tokio::spawn(async move {
            let body = async {
                began.send(()).expect("somebody waits for it");
                body.await
            };
            lock.run(body).await
        });
        has_begun.await.expect("free");
        held
    }

    /// One of ours that waits for the lock, and when it got it.
    pub(crate) async fn our_waiter(&self) -> JoinHandle<Result<(LockGuard, Instant), LockError>> {
        let lock = self.lock();
        let waiter = tokio::spawn(async move { Ok((lock.acquire().await?, Instant::now())) });
        let channel = match self.client.format {
            WireFormat::Redisson => "redisson_lock__channel",
            _ => "lock_wake",
        };
        let channel = format!("{channel}:{{{}}}", self.client.key);
        let waits = || {
            let (_, listeners): (String, u64) =
                self.server.command(&["PUBSUB", "NUMSUB", &channel]);
            listeners > 0
        };
        assert!(until(LEASE, waits).await.is_some(), "ours does not wait");
        waiter
    }

    /// One of theirs that waits for the lock on `k`, and when it got it. It holds it for so long.
    pub(crate) async fn their_waiter(&self, theirs: &mut Peer, lease: Duration) -> TheirWaiter {
        let before = self.server.calls(self.client.tries);
        let command = format!("acquire k {} {}", ms(LEASE * 20), ms(lease));
        let answer = theirs.send(&command);
        let waiter = tokio::spawn(async move { (answer.await, Instant::now()) });
        let tried = || self.server.calls(self.client.tries) > before;
        assert!(until(LEASE, tried).await.is_some(), "theirs does not wait");
        TheirWaiter(waiter)
    }

    /// Has them hold `k` for as long as they live: renewed by them, or from outside.
    pub(crate) async fn have_them_hold(&self, theirs: &mut Peer) {
        let lease = if self.client.renews { Duration::ZERO } else { LEASE };
        theirs.tell(&format!("acquire k 0 {}", ms(lease))).await;
    }

    /// How late they may be to find out that a lock is free.
    pub(crate) fn their_delay(&self) -> Duration {
        self.client.polls.map_or(WOKEN, |polls| polls + LATE)
    }
}

pub(crate) struct TheirWaiter(JoinHandle<(String, Instant)>);

impl TheirWaiter {
    pub(crate) fn is_done(&self) -> bool {
        self.0.is_finished()
    }

    /// When it was granted the lock.
    pub(crate) async fn granted(self) -> Instant {
        let (answer, at) = self.0.await.expect("no panic");
        assert_eq!(answer, "ok");
        at
    }
}

fn builder(server: &RedisServer, format: WireFormat) -> LockClientBuilder {
    LockClient::builder().url(server.url()).format(format).watchdog(LEASE).wait(LEASE * 20)
}

/// A duration as an argument of a command.
pub(crate) fn ms(duration: Duration) -> u128 {
    duration.as_millis()
}
