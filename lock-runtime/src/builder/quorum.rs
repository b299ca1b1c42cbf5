//! Clients of several servers that vote (Redlock).

use std::time::Duration;

use super::LockClientBuilder;
use super::defaults::{DEFAULT_LEASE, LONGEST_LEASE};
use crate::client::LockClient;
use crate::error::LockError;
use crate::timeout::{LONGEST_WAIT, Wait};
use crate::wire_format::WireFormat;

/// The wait of a call, without the quarantine of new servers.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// How much longer than the lease the default quarantine is, apart from 1 % for the speeds of clocks.
const QUARANTINE_MARGIN: Duration = Duration::from_secs(2);

impl LockClient {
    /// Connects to a quorum of the stores at these URLs, with the default settings. See
    /// [`LockClientBuilder::quorum`].
    ///
    /// # Errors
    ///
    /// See [`LockClient::connect`] and [`LockClientBuilder::quorum`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # let urls = ["memory:", "memory:", "memory:"];
    /// // such as ["redis://one", "redis://two", "redis://three"]
    /// let client = LockClient::quorum(urls).await?;
    /// client.lock("report").run(async { /* … */ }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn quorum(
        urls: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, LockError> {
        Self::builder().quorum(urls).connect().await
    }
}

impl LockClientBuilder {
    /// Uses several stores that vote, instead of one [`url`](Self::url): the algorithm
    /// [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/). A lock is granted,
    /// renewed and released by a majority of them, so it survives the loss of a minority: of one server of three, or
    /// of two of five. The URL `redis+redlock://one,two,three` does the same for servers with one set of
    /// credentials.
    ///
    /// The servers have to be independent of each other: no replicas, and no nodes of one cluster. Their number is
    /// odd, and at least three. They have one major version. Other clients of these locks have to use the same servers; those
    /// in other languages that follow Redlock can share them, as in the format [`Token`](WireFormat::Token). These have no
    /// quarantine: they count the vote of a server as soon as it has restarted, and may then become a second holder.
    ///
    /// A member may be a Sentinel group or a cluster. During a failover it can vote twice, so it needs an explicit
    /// [`quarantine`](Self::quarantine).
    ///
    /// # What it gives, and what it does not
    ///
    /// There is one holder at a time if three assumptions hold: no server loses a granted lock except by a restart,
    /// the clocks of the servers run at about the same speed, and processes notice in time that their lease has ended.
    /// A server that has restarted does not vote until all leases have ended that it may have lost
    /// ([`quarantine`](Self::quarantine)). For the last one, the body of a lock is dropped at its deadline.
    ///
    /// The first assumption excludes `FLUSHALL`, eviction, `DEL` by a person, and a clock that is set forward by more than
    /// 1 % of a lease, even at one server: two of three servers have granted a lock, because the third one was suspended. It
    /// resumes, one of the two loses the lock, and these two grant it again.
    ///
    /// The two sides of the debate about Redlock:
    ///
    /// * [Martin Kleppmann](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html): the
    ///   algorithm depends on timing, so a long pause of a process or a jump of a clock can lead to two holders; it
    ///   has no fencing tokens; for efficiency a single server is enough, and for correctness a consensus system is
    ///   necessary.
    /// * [Salvatore Sanfilippo](https://antirez.com/news/101): the time is checked after the votes have come, so a pause
    ///   before that does no harm, and one after it is a problem of all leases; clocks only need about the same speed,
    ///   which a good operation provides; resources that can compare tokens could order the writers without a lock.
    ///
    /// This library issues [fencing tokens](crate::LockGuard::fencing_token) over a quorum as well. Use them where
    /// two holders would do harm. A token comes from a majority whose clocks differ by at most nine tenths of the
    /// quarantine. If there is none, the call gets [`LockError::Unavailable`] at once.
    ///
    /// # Costs
    ///
    /// Each request goes to all servers at once, and is answered as soon as a majority has decided: one round trip to
    /// acquire, to renew and to release. A call waits for a server without an answer only if a majority needs it, and at
    /// most for the timeout of a server: a tenth of the client's lease, from 50 to 500 ms, and at most a third of it. An
    /// attempt without a majority costs one more round trip, to undo it. A fencing token costs two round trips, and two
    /// more if the clocks of a minority are far ahead. A client has as many connections to each server as to a single one.
    ///
    /// A client begins to use a server with a quarantine, unless the server was used before: the first lock of a new
    /// quorum is granted after a lease and two seconds. See [`quarantine`](Self::quarantine), which is the lease
    /// and two seconds here by default. No lease may be longer. If the clients of the servers have different
    /// quarantines, the longest one that is recorded at a server counts for all. The [`wait`](Self::wait) is 30 s longer than the
    /// quarantine by default, so that the first call does not fail.
    ///
    /// A server that did not answer may still have the key of a lock that was released. The client releases this residual
    /// key when the server answers again. [`shutdown`](crate::LockClient::shutdown) tries once more. What is left then, or
    /// when the client is dropped without a shutdown, expires at the end of its lease.
    ///
    /// The lease of a call is at least 100 ms, as that of the client. A shorter one is [`LockError::Config`].
    ///
    /// # What a quorum does not have
    ///
    /// Read-write locks, semaphores, periodic runs, fair calls and other formats than `Token` are errors. Locks of
    /// several keys are taken one after the other. Waiting calls are woken, but stand in no queue, so a process may
    /// be passed over. Administrators connect to one of the servers. [`tracking`](Self::tracking) is off.
    ///
    /// # Errors
    ///
    /// [`connect`](Self::connect) returns [`LockError::Config`] if the number of servers is even or less than
    /// three, if a server is named twice, also by another name, or is a replica, if two are parts of one cluster, if
    /// their major versions differ, if the client has another format than `Token`, or if a member is a Sentinel group or a cluster
    /// and no quarantine is set. A minority of the servers may be down: they are checked when they answer, for which
    /// `connect` waits up to 5 s. Without a majority, it returns [`LockError::Unavailable`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_runtime::{LockClient, LockError};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::builder()
    ///     .quorum(["redis://:secret@one", "redis://:other@two", "redis://three:7000"])
    ///     .lease(Duration::from_secs(10))
    ///     .connect()
    ///     .await?;
    /// client.lock("report").run(async { /* … */ }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn quorum(mut self, urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.quorum = Some(urls.into_iter().map(Into::into).collect());
        self
    }

    /// Gives a client of a quorum the settings that it needs.
    pub(super) fn prepare_votes(&mut self) -> Result<(), LockError> {
        let format = self.options.wire_format.unwrap_or_default();
        if format != WireFormat::Token {
            let problem = format!(
                "a quorum has locks in the format `Token`, which Redlock has in other languages as well, and none in \
                 {format:?}"
            );
            return Err(LockError::config("wire_format", problem));
        }
        // A lease that is too long is an error of its own.
        let lease = self.options.lease.unwrap_or(DEFAULT_LEASE).min(LONGEST_LEASE);
        let groups = self.quorum.iter().flatten().chain(&self.url);
        let is_group = |url: &String| {
            let scheme = url.trim().split(':').next().unwrap_or_default();
            scheme.ends_with("+sentinel") || scheme.ends_with("+cluster")
        };
        if self.quarantine.is_none() && groups.into_iter().any(is_group) {
            let problem = "a Sentinel group or a cluster in a quorum needs an explicit quarantine: after a failover, its \
                           earlier master may still vote for clients that it is cut off with, so set the longest lease, \
                           two seconds, and the longest time for which that lasts (`min-replicas-max-lag`, \
                           `cluster-node-timeout`)";
            return Err(LockError::config("quarantine", problem));
        }
        let quarantine = *self.quarantine.get_or_insert(lease + lease / 100 + QUARANTINE_MARGIN);
        // The first call on new servers waits for their quarantine.
        let wait = quarantine.saturating_add(DEFAULT_WAIT).min(LONGEST_WAIT);
        self.options.wait.get_or_insert(Wait::For(wait));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(builder: LockClientBuilder) -> Result<LockClientBuilder, LockError> {
        let mut builder = builder;
        builder.prepare_votes().map(|()| builder)
    }

    #[test]
    fn the_default_wait_is_longer_than_the_quarantine_of_new_servers() {
        let builder = prepared(LockClient::builder()).expect("valid");
        let (quarantine, wait) = (builder.quarantine.expect("set"), builder.options.wait);
        assert!(quarantine > DEFAULT_LEASE);
        assert_eq!(wait, Some(Wait::For(quarantine + DEFAULT_WAIT)));
        let own = prepared(LockClient::builder().wait(DEFAULT_LEASE)).expect("valid").options.wait;
        assert_eq!(own, Some(Wait::For(DEFAULT_LEASE)));
    }

    #[test]
    fn the_longest_duration_as_a_lease_is_an_error_about_the_lease() {
        let builder = LockClient::builder().quorum(["memory:"; 3]).lease(Duration::MAX);
        let outcome = builder.connect_lazy().map(drop);
        assert!(matches!(outcome, Err(LockError::Config { option: "lease", .. })), "{outcome:?}");
    }

    #[tokio::test]
    async fn a_lease_of_a_call_that_is_shorter_than_that_of_a_client_is_an_error() {
        let client = LockClient::quorum(["memory:"; 3]).await.expect("in memory");
        let shortest = Duration::from_millis(100);
        let lock = client.lock("k").lease(shortest / 2);
        match lock.acquire().await {
            Err(LockError::Config { option: "lease", problem, .. }) => {
                assert!(problem.contains("100ms"), "{problem}");
            }
            other => panic!("{other:?}"),
        }
        let guard = client.lock("k").lease(shortest * 100).acquire().await.expect("long enough");
        let extended = guard.extend(shortest / 2).await;
        assert!(matches!(extended, Err(LockError::Config { option: "lease", .. })), "{extended:?}");
        // A single store has no such limit.
        drop(LockClient::memory().lock("k").lease(shortest / 2).acquire().await.expect("free"));
    }

    #[test]
    fn groups_of_servers_need_an_explicit_quarantine() {
        for group in ["redis+sentinel://one/locks", "rediss+cluster://one"] {
            let builder = LockClient::builder().quorum(["redis://one", "redis://two", group]);
            match prepared(builder.clone()) {
                Err(LockError::Config { option: "quarantine", problem, .. }) => {
                    assert!(problem.contains("explicit quarantine"), "{problem}");
                }
                other => panic!("{:?}", other.map(drop)),
            }
            drop(prepared(builder.quarantine(DEFAULT_LEASE * 2)).expect("valid"));
        }
    }
}
