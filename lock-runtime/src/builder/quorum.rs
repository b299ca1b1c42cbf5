//! Clients of several servers that vote (Redlock).

use std::time::Duration;

use super::LockClientBuilder;
use super::defaults::{DEFAULT_LEASE, LONGEST_LEASE};
use crate::client::LockClient;
use crate::error::LockError;
use crate::wire_format::WireFormat;

/// How much longer than its lease a lock is remembered: a request may arrive late.
const LATE: Duration = Duration::from_secs(2);

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
    /// odd, and at least three. They have one version. Other clients of these locks have to use the same servers; those
    /// in other languages that follow Redlock can share them, as in the format [`Token`](WireFormat::Token).
    ///
    /// # What it gives, and what it does not
    ///
    /// There is one holder at a time if three assumptions hold: fewer than half of the servers lose their data while
    /// a lease runs, the clocks of the servers run at about the same speed, and processes notice in time that their
    /// lease has ended. The first is helped by a delay: a server that has restarted does not vote until all leases
    /// have ended that it may have forgotten ([`quarantine`](Self::quarantine)). For the last one, the body of a
    /// lock is dropped at its deadline.
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
    /// two holders would do harm.
    ///
    /// # Costs
    ///
    /// Each request goes to all servers at once, and is answered as soon as a majority has decided: one round trip to
    /// acquire, to renew and to release. A server that does not answer is not waited for, unless it is needed for a
    /// majority, and then for a tenth of the lease, from 50 to 500 ms. An attempt that gets no majority costs one
    /// more round trip, to undo it. A fencing token costs two round trips. A client has as many connections to each
    /// server as to a single one.
    ///
    /// A client begins to use a server with a quarantine, unless the server was used before: the first lock of a new
    /// quorum is granted after a lease and two seconds. See [`quarantine`](Self::quarantine), which is the lease
    /// and two seconds here by default. No lease may be longer.
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
    /// their versions differ, or if the client has another format than `Token`. A minority of the servers may be down:
    /// they are checked when they answer, for which `connect` waits up to 5 s. [`LockError::Unavailable`] means that there is no majority.
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
            return Err(LockError::Config { option: "wire_format", problem });
        }
        // A lease that is too long is an error of its own.
        let lease = self.options.lease.unwrap_or(DEFAULT_LEASE).min(LONGEST_LEASE);
        self.quarantine.get_or_insert(lease + lease / 100 + LATE);
        Ok(())
    }
}
