//! Observing who leads.

use std::fmt;
use std::time::Duration;

use tokio::time::sleep;

use crate::backoff::{Backoff, jittered};
use crate::error::LockError;
use crate::lock::Lock;
use crate::runtime;
use crate::store::contract::{Extension, Left};

/// The longest time between two questions to the store.
const INTERVAL: Duration = Duration::from_secs(1);
/// The first and the longest pause after a question without an answer.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// A leader, as it has announced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaderInfo {
    /// The [name](super::Leadership::named) of the candidate.
    pub name: String,
    /// The number of its term.
    pub term: u64,
}

#[derive(Debug, PartialEq)]
enum LastLeader {
    /// Nobody has asked yet.
    Unknown,
    Known(Option<LeaderInfo>),
}

/// Observes who leads. Created by [`Leadership::observe`](super::Leadership::observe).
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
/// let mut leaders = reports.observe();
/// assert_eq!(leaders.next().await?, None);
/// let leader = reports.campaign().await?;
/// let info = leaders.next().await?.expect("host-3 leads");
/// assert_eq!((info.name.as_str(), info.term), ("host-3", leader.term()));
/// # Ok(())
/// # }
/// ```
#[must_use = "an observer does nothing until it is asked"]
pub struct LeaderObserver {
    seat: Seat,
    /// The last result.
    last: LastLeader,
}

impl LeaderObserver {
    pub(super) fn new(seat: Seat) -> Self {
        Self { seat, last: LastLeader::Unknown }
    }

    /// The current leader, or `None` if there is none. The first call returns at once, and each later one
    /// when the leader or its name has changed. Only the latest leader is returned, not each one that
    /// has led meanwhile.
    ///
    /// Asks the store once a second, and in addition when the lease of the leader must have ended. Waits
    /// while the store cannot be reached.
    ///
    /// Cancel safe: no change is missed if the future is dropped.
    ///
    /// # Errors
    ///
    /// * [`LockError::Denied`], [`LockError::InvalidKey`], [`LockError::WrongFormat`],
    ///   [`LockError::ShutDown`]: as for [`Leadership::leader`](super::Leadership::leader).
    /// * [`LockError::Config`]: the store has no announcements of leaders, or there is no tokio runtime with timers here.
    pub async fn next(&mut self) -> Result<Option<LeaderInfo>, LockError> {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            let pause = match self.seat.leader().await {
                Ok(found) => {
                    backoff.reset();
                    let left = found.as_ref().map_or(INTERVAL, |(_, left)| *left);
                    let leader = found.map(|(leader, _)| leader);
                    let now = LastLeader::Known(leader.clone());
                    if self.last != now {
                        self.last = now;
                        return Ok(leader);
                    }
                    jittered(INTERVAL).min(left)
                }
                Err(LockError::Unavailable { .. }) => backoff.pause(),
                Err(error) => return Err(error),
            };
            sleep(pause).await;
        }
    }
}

impl fmt::Debug for LeaderObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderObserver").field("last", &self.last).finish_non_exhaustive()
    }
}

/// The lock of a leadership.
#[derive(Debug, Clone)]
pub(super) struct Seat(pub(super) Lock);

impl Seat {
    /// Asks the store who leads. Returns the rest of the leader's lease as well.
    pub(super) async fn leader(&self) -> Result<Option<(LeaderInfo, Duration)>, LockError> {
        runtime::checked()?;
        let (key, client) = (self.0.full_key()?, self.0.client());
        client.engine.admit(&key)?;
        let store = client.store_with(Extension::Announcements)?;
        let announced = store.announced(&key).await.map_err(|error| error.about(&key))?;
        Ok(announced.and_then(|(text, left)| {
            let (term, name) = text.split_once(' ')?;
            let info = LeaderInfo { name: name.to_owned(), term: term.parse().ok()? };
            let left = match left {
                // Just after its end, when the store no longer has it.
                Left::Time(left) => left + Duration::from_millis(2),
                Left::Forever | Left::Unknown => INTERVAL,
            };
            Some((info, left))
        }))
    }
}
