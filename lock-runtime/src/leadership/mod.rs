//! Leadership: a lock that one of several candidates holds for a long time.

mod leader;
mod observer;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

pub use self::leader::Leader;
use self::leader::{Announcer, LeaderRecord, check_name};
use self::observer::Seat;
pub use self::observer::{LeaderInfo, LeaderObserver};
use crate::acquiring::Acquiring;
use crate::backoff::jittered;
use crate::body::{self, BodyEnd, OnLost};
use crate::connected::Connected;
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::key::LockKey;
use crate::lock::Lock;
use crate::release_mode::ReleaseMode;
use crate::store::contract::Extension;
use crate::timeout::Wait;
use crate::wire_format::WireFormat;

/// The pause before a candidate campaigns again.
const PAUSE: Duration = Duration::from_millis(200);

/// A leadership, for which candidates campaign. Created by
/// [`LockClient::leadership`](crate::LockClient::leadership).
///
/// One candidate at a time is the leader, in all processes that use the same key. The leader holds the
/// lock of the key, in the wire format [`Token`](WireFormat::Token), and renews it. The other
/// candidates wait in the queue of that lock. The next leader is the candidate of another process that
/// has waited longest, or else the next one of the same process.
///
/// * If the leader [resigns](Leader::resign), or its body ends, the store gives the lock to the next
///   candidate in the same step. It leads one round trip later, when it has its term.
/// * If the leader's process dies or hangs, or if the network is cut, the next candidate leads when the
///   lease of the client ([`lease`](crate::LockClientBuilder::lease), 30 s unless configured) is over.
///   The body of the former leader was dropped before that; see [`run`](Self::run).
///
/// Each term has a number, which is the [fencing token](crate::LockGuard::fencing_token) of the lock: it
/// is higher than those of all earlier terms. A lease cannot stop a write that is already in flight, so
/// send the term with every write, and let the resource reject each term that is lower than the highest
/// one that it has received.
///
/// The client's [`max_hold`](crate::LockClientBuilder::max_hold) and
/// [`acknowledged_by`](crate::LockClientBuilder::acknowledged_by) apply to a leadership as well. A
/// leader announces itself once per lease, in a task of the runtime on which it was elected.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// let reports = client.leadership("reports").named("host-3");
/// let term = reports
///     .run(|term| async move {
///         // Only the leader is here. If the leadership is lost, this future is dropped, and the
///         // closure is called again in the next term.
///         term
///     })
///     .await?;
/// assert!(term > 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a leadership does nothing until a candidate campaigns"]
pub struct Leadership {
    seat: Seat,
    name: Arc<str>,
}

impl Leadership {
    pub(crate) fn new(client: Arc<Connected>, key: LockKey) -> Self {
        let name = client.name().into();
        let lock = Lock::new(client, key);
        let lock = lock.wire_format(WireFormat::Token).wait(Wait::Forever).linger(Duration::ZERO);
        Self { seat: Seat(lock), name }
    }

    /// Sets the name by which this candidate is known as the leader, of at most 256 bytes. By default, what the client
    /// tells about itself ([`Identity`](crate::Identity)). Names need not differ.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into().into();
        self
    }

    /// Sets the template of the key under which the leadership is measured; see
    /// [`Lock::template`](crate::Lock::template).
    pub fn template(mut self, template: &'static str) -> Self {
        self.seat.0 = self.seat.0.template(template);
        self
    }

    /// Waits until this candidate is the leader, and has announced itself: [`leader`](Self::leader) names it from then on. (A
    /// store without announcements, such as etcd, does not tell who leads.) Costs three round trips if there is no leader.
    ///
    /// The wait has no limit, and continues while the store cannot be reached.
    ///
    /// Cancel safe, like [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Errors
    ///
    /// * [`LockError::Config`]: the name is too long, an enclosing body holds the same lock, the store issues no fencing tokens,
    ///   or there is no tokio runtime with timers here.
    /// * [`LockError::Lost`]: the call was made in a body whose own lock on this key is lost.
    /// * [`LockError::InvalidKey`], [`LockError::WrongFormat`], [`LockError::Denied`],
    ///   [`LockError::ShutDown`]: as for [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let leader = client.leadership("reports").campaign().await?;
    /// let first = leader.term();
    /// leader.resign().await?;
    /// let next = client.leadership("reports").campaign().await?;
    /// assert!(next.term() > first);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn campaign(&self) -> Result<Leader, LockError> {
        let (guard, term, record) = self.elected().await?;
        Ok(Leader::new(guard, term, record))
    }

    /// Campaigns, and runs `body` in each term of this candidate until a body completes. The
    /// argument is the number of the term.
    ///
    /// The body is polled only while this candidate is provably the leader. If the leadership is lost,
    /// the body is dropped immediately, and the candidate campaigns again after a pause of 100 to
    /// 200 ms. (Tasks that the body has spawned continue.) When the body completes, the candidate
    /// resigns, and its output is returned.
    ///
    /// Cancel safe: if the future is dropped, the body is dropped first, and the candidate then
    /// resigns.
    ///
    /// # Errors
    ///
    /// As for [`campaign`](Self::campaign).
    pub async fn run<F: Future>(
        &self,
        mut body: impl FnMut(u64) -> F,
    ) -> Result<F::Output, LockError> {
        loop {
            let (guard, term, record) = self.elected().await?;
            let _announcer = Announcer::start(record);
            let body = pin!(Some(body(term)));
            let end = BodyEnd { on_lost: OnLost::Abort, release: ReleaseMode::Awaited };
            match body::run(Acquiring::known(Ok(guard)), end, None, body).await {
                Err(LockError::Lost { .. }) => sleep(jittered(PAUSE)).await,
                outcome => return outcome,
            }
        }
    }

    /// The current leader; `None` if there is none, or if it could not announce itself yet. The answer may be
    /// outdated immediately. Costs one round trip.
    ///
    /// A lock that a client in another language holds on the key counts as no leader, although it
    /// excludes all candidates.
    ///
    /// # Errors
    ///
    /// * [`LockError::Unavailable`]: the store has not answered.
    /// * [`LockError::Denied`]: the user lacks a permission.
    /// * [`LockError::Config`]: the store, such as etcd, has no announcements of leaders.
    /// * [`LockError::WrongFormat`]: the key of the record of a leader holds a value of another kind. The
    ///   candidates campaign and lead nevertheless.
    /// * [`LockError::InvalidKey`], [`LockError::ShutDown`].
    pub async fn leader(&self) -> Result<Option<LeaderInfo>, LockError> {
        Ok(self.seat.leader().await?.map(|(leader, _)| leader))
    }

    /// Observes who leads. The first call of [`next`](LeaderObserver::next) returns the current leader,
    /// and each later one waits until there is another leader, another name, or none.
    pub fn observe(&self) -> LeaderObserver {
        LeaderObserver::new(self.seat.clone())
    }

    /// Waits until this candidate is elected, and has tried to announce itself. Returns its lock, the number of the term, and what
    /// is announced.
    async fn elected(&self) -> Result<(LockGuard, u64, LeaderRecord), LockError> {
        check_name(&self.name)?;
        self.seat.0.client().store_with(Extension::Tokens)?;
        loop {
            let guard = self.seat.0.acquire().await?;
            if guard.is_reentrant() {
                let problem = "the enclosing body already holds the lock of this leadership; campaign \
                               outside of it, or in a spawned task";
                return Err(LockError::config("leadership", problem));
            }
            // Each term has an owner id of its own, which the announcement names.
            let guard = guard.without_hand_off();
            match guard.fencing_token().await {
                Ok(term) => {
                    let mut record = LeaderRecord::new(&guard, term, &self.name);
                    if record.announce_first().await.is_ok() {
                        return Ok((guard, term, record));
                    }
                }
                // Another candidate may be able to reach the store.
                Err(LockError::Lost { .. } | LockError::Unavailable { .. }) => {}
                Err(error) => return Err(error),
            }
            drop(guard);
            sleep(jittered(PAUSE)).await;
        }
    }
}
