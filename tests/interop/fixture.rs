//! The fixture that the interop tests share.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_runtime::{Lock, LockClient, LockClientBuilder, LockError, LockGuard, WireFormat};
use lock_tests::RedisServer;
use lock_tests::support::until;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::clients::Client;
use crate::peer::Peer;

/// The lease of the tests. All other durations derive from it. It is twice the lease of the other
/// suites, because the delays of the other clients vary more.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// The tolerated delay on a busy machine. A client that polls once a second would usually be later.
pub(crate) const LATE: Duration = LEASE.checked_div(4).expect("not zero");
/// The tolerated delay of a peer that is woken. On a machine that also runs other peers it may be
/// as long as a polling interval, but not as long as the lease of the released lock.
pub(crate) const WOKEN: Duration = LEASE.saturating_mul(3).checked_div(2).expect("not zero");
/// The time within which a client of this library notices a release without a wake-up.
pub(crate) const SAFETY_POLL: Duration = Duration::from_secs(1);
/// The resolution of the clock of the server.
pub(crate) const GRAIN: Duration = Duration::from_millis(2);

/// A server, a client of this library, and the client of another language that is tested.
pub(crate) struct InteropFixture {
    pub(crate) client: &'static Client,
    pub(crate) server: RedisServer,
    pub(crate) lock_client: LockClient,
}

impl InteropFixture {
    pub(crate) async fn with(client: &'static Client) -> Self {
        let server = RedisServer::start();
        let lock_client =
            builder(&server, client.wire_format).connect().await.expect("the server is up");
        Self { client, server, lock_client }
    }

    /// A builder for another client of this library.
    pub(crate) fn builder(&self) -> LockClientBuilder {
        builder(&self.server, self.client.wire_format)
    }

    /// A peer with its default settings.
    pub(crate) async fn peer(&self) -> Peer {
        Peer::start(self.client, &self.server.url(), None).await
    }

    /// A peer that uses [`LEASE`] if it renews locks.
    pub(crate) async fn peer_with_test_lease(&self) -> Peer {
        Peer::start(self.client, &self.server.url(), Some(LEASE)).await
    }

    /// The lock of this library that has the same key as the lock `k` of the peer.
    pub(crate) fn lock(&self) -> Lock {
        self.lock_client.lock(self.client.key)
    }

    pub(crate) async fn is_free(&self) -> bool {
        self.lock().try_acquire().await.expect("the server is up").is_some()
    }

    pub(crate) async fn is_free_of(&self, key: &str) -> bool {
        self.lock_client.lock(key).try_acquire().await.expect("the server is up").is_some()
    }

    /// The value of the key.
    pub(crate) fn value(&self) -> Vec<u8> {
        self.server.command(&["DUMP", self.client.key])
    }

    /// The remaining lease of the lock.
    pub(crate) fn left(&self) -> Duration {
        if self.client.wire_format == WireFormat::Timestamp {
            let time = self.server.command(&["GET", self.client.key]);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            return Duration::from_millis(time).saturating_sub(now);
        }
        let left = self.server.pttl(self.client.key);
        Duration::from_millis(left.try_into().expect("the key has an expiry"))
    }

    /// Runs `body` under the lock of this library. Returns after the body has begun.
    pub(crate) async fn run_body<T: Send + 'static>(
        &self,
        body: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Result<T, LockError>> {
        let lock = self.lock();
        let (began, has_begun) = tokio::sync::oneshot::channel();
        let held = tokio::spawn(async move {
            let body = async {
                began.send(()).expect("the receiver waits");
                body.await
            };
            lock.run(body).await
        });
        has_begun.await.expect("free");
        held
    }

    /// Starts a waiter of this library. Its task returns the guard and the time of the grant.
    pub(crate) async fn waiter(&self) -> JoinHandle<Result<(LockGuard, Instant), LockError>> {
        let lock = self.lock();
        let waiter = tokio::spawn(async move { Ok((lock.acquire().await?, Instant::now())) });
        let channel = match self.client.wire_format {
            WireFormat::Token => None,
            WireFormat::Redisson => Some("redisson_lock__channel"),
            _ => Some("lock_wake"),
        };
        let waits = || {
            let Some(channel) = channel else { return self.server.queued(self.client.key) > 0 };
            let channel = format!("{channel}:{{{}}}", self.client.key);
            let (_, listeners): (String, u64) =
                self.server.command(&["PUBSUB", "NUMSUB", &channel]);
            listeners > 0
        };
        assert!(until(LEASE, waits).await.is_some(), "the waiter does not subscribe");
        waiter
    }

    /// Starts a waiter of the peer for the lock `k`. It will hold the lock for `lease`.
    pub(crate) async fn peer_waiter(&self, peer: &mut Peer, lease: Duration) -> PeerWaiter {
        let before = self.server.calls(self.client.tries);
        let command = format!("acquire k {} {}", ms(LEASE * 20), ms(lease));
        let answer = peer.send(&command);
        let waiter = tokio::spawn(async move { (answer.await, Instant::now()) });
        let tried = || self.server.calls(self.client.tries) > before;
        assert!(until(LEASE, tried).await.is_some(), "the peer does not wait");
        PeerWaiter(waiter)
    }

    /// Lets the peer hold `k`. If its library does not renew the lock, the test has to.
    pub(crate) async fn let_peer_hold(&self, peer: &mut Peer) {
        let lease = if self.client.renews { Duration::ZERO } else { LEASE };
        peer.tell(&format!("acquire k 0 {}", ms(lease))).await;
    }

    /// The time within which a waiter of the peer must notice that a lock is free.
    pub(crate) fn peer_delay(&self) -> Duration {
        self.client.polls.map_or(WOKEN, |polls| polls + LATE)
    }
}

pub(crate) struct PeerWaiter(JoinHandle<(String, Instant)>);

impl PeerWaiter {
    pub(crate) fn is_done(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the grant, and returns its time.
    pub(crate) async fn granted(self) -> Instant {
        let (answer, at) = self.0.await.expect("no panic");
        assert_eq!(answer, "ok");
        at
    }
}

fn builder(server: &RedisServer, wire_format: WireFormat) -> LockClientBuilder {
    LockClient::builder().url(server.url()).wire_format(wire_format).lease(LEASE).wait(LEASE * 20)
}

/// Formats a duration as an argument of a command.
pub(crate) fn ms(duration: Duration) -> u128 {
    duration.as_millis()
}
