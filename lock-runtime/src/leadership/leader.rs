//! A candidate that leads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::connected::LONGEST_NAME;
use crate::engine::Engine;
use crate::engine::handoff::Hold;
use crate::error::{LockError, LostReason};
use crate::guard::LockGuard;
use crate::runtime;
use crate::store::announcements::{Announced, Announcement};
use crate::store::contract::Extension;

/// The store keeps an announcement for this number of leases, and the leader repeats it once per lease.
const KEPT_LEASES: u32 = 3;

/// The leader of a [`Leadership`](super::Leadership). Dropping it resigns in the background.
///
/// When the leadership is lost, the code that uses this value has to stop: it has to check
/// [`is_leader`](Self::is_leader), or wait for [`lost`](Self::lost).
/// [`Leadership::run`](super::Leadership::run) stops its body.
#[must_use = "the candidate resigns when this is dropped"]
pub struct Leader {
    // Before the guard, so that the announcements end before the leadership.
    announcer: Option<Announcer>,
    guard: LockGuard,
    term: u64,
    record: LeaderRecord,
}

impl Leader {
    pub(super) fn new(guard: LockGuard, term: u64, record: LeaderRecord) -> Self {
        let announcer = Announcer::start(record.clone());
        Self { announcer, guard, term, record }
    }

    /// The number of the term, which is higher than those of all earlier terms.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Whether this candidate is still the leader, as far as this process knows; see
    /// [`LockGuard::is_held`].
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.guard.is_held()
    }

    /// The time until the leadership is lost unless its lease is renewed; see
    /// [`LockGuard::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Resolves with the reason when the leadership is lost, and never otherwise.
    ///
    /// Cancel safe: dropping the future has no effect on the leadership.
    pub async fn lost(&self) -> LostReason {
        self.guard.lost().await
    }

    /// Changes the name by which this leader is known, of at most 256 bytes. Observers learn of it
    /// within about a second. Costs one round trip.
    ///
    /// # Errors
    ///
    /// * [`LockError::Config`]: the name is too long, or the store has no announcements.
    /// * [`LockError::Lost`]: this candidate is no longer the leader.
    /// * [`LockError::Unavailable`]: the store has not answered. It is announced again later,
    ///   while this candidate leads.
    /// * [`LockError::Denied`]: the user lacks a permission.
    /// * [`LockError::WrongFormat`]: the key of the record of a leader holds a value of another kind, which
    ///   was not changed. This candidate still leads.
    pub async fn announce(&self, name: impl Into<String>) -> Result<(), LockError> {
        let name = name.into();
        check_name(&name)?;
        self.record.require_announcements()?;
        *self.record.name.lock().await = name.into();
        self.record.announce().await
    }

    /// Gives the leadership up, and waits for the store's confirmation. In the same step, the store gives
    /// the lock to the next candidate, which then requests its term: one round trip more.
    ///
    /// Cancel safe: if the future is dropped, the candidate resigns in the background.
    ///
    /// # Errors
    ///
    /// As for [`LockGuard::release`].
    pub async fn resign(self) -> Result<(), LockError> {
        drop(self.announcer);
        self.guard.release().await
    }
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leader")
            .field("key", &self.guard.key())
            .field("term", &self.term)
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}

/// What is announced about a leader.
#[derive(Clone)]
pub(super) struct LeaderRecord {
    engine: Arc<Engine>,
    hold: Hold,
    term: u64,
    /// Locked during a request, so that an earlier name does not replace a later one. A request without
    /// an answer may still arrive later; the next announcement then brings the later name back.
    name: Arc<Mutex<Arc<str>>>,
    /// The pause before the next announcement.
    next: Duration,
    is_logged: bool,
}

impl LeaderRecord {
    pub(super) fn new(guard: &LockGuard, term: u64, name: &Arc<str>) -> Self {
        let name = Arc::new(Mutex::new(Arc::clone(name)));
        let (engine, hold) = (Arc::clone(guard.engine()), guard.hold().clone());
        Self { engine, hold, term, name, next: Duration::ZERO, is_logged: false }
    }

    /// Announces the leader for the first time. Fails if it no longer leads; otherwise, it goes on without an announcement.
    pub(super) async fn announce_first(&mut self) -> Result<(), LockError> {
        if self.require_announcements().is_err() {
            return Ok(());
        }
        let announced = self.announce().await;
        self.next = self.pause_after(&announced);
        match announced {
            Err(lost @ LockError::Lost { .. }) => Err(lost),
            _ => Ok(()),
        }
    }

    /// Fails if the store has no announcements.
    fn require_announcements(&self) -> Result<(), LockError> {
        let locked = self.hold.lease().locked();
        locked.store.require(Extension::Announcements).map_err(|error| error.about(&locked.key))
    }

    /// The pause after an attempt to announce it.
    fn pause_after(&mut self, announced: &Result<(), LockError>) -> Duration {
        let lease = self.hold.lease().term();
        match announced {
            // Observers wait for the first one.
            Err(LockError::Unavailable { .. }) => lease / 10,
            Err(error) if !matches!(error, LockError::Lost { .. }) => {
                if !std::mem::replace(&mut self.is_logged, true) {
                    let key = &**self.hold.key();
                    tracing::warn!(key, %error, "a leader cannot announce itself");
                }
                lease
            }
            Ok(()) | Err(_) => lease,
        }
    }

    /// Announces the leader once.
    async fn announce(&self) -> Result<(), LockError> {
        let lease = self.hold.lease();
        let locked = lease.locked();
        if let Some(loss) = self.hold.loss() {
            return Err(loss);
        }
        let name = self.name.lock().await;
        let text = format!("{} {name}", self.term);
        let announcement = Announcement {
            key: &locked.key,
            owner: locked.owner,
            text: &text,
            keep: lease.term() * KEPT_LEASES,
        };
        match locked.store.announce(announcement).await {
            Ok(Announced::Done) => Ok(()),
            Ok(Announced::Gone) => Err(self.engine.end_lost(&self.hold, LostReason::Gone)),
            Ok(Announced::Taken) => Err(self.engine.end_lost(&self.hold, LostReason::Taken)),
            Err(error) => Err(error.about(&locked.key)),
        }
    }
}

/// The task that announces a leader again and again, after the first time. It ends when this is dropped.
pub(super) struct Announcer(JoinHandle<()>);

impl Announcer {
    /// Starts the task; `None` without a runtime, or if the store has no announcements.
    pub(super) fn start(mut record: LeaderRecord) -> Option<Self> {
        record.require_announcements().ok()?;
        let here = runtime::here().ok()?;
        Some(Self(here.spawn(async move {
            loop {
                sleep(record.next).await;
                let announced = record.announce().await;
                if let Err(LockError::Lost { .. }) = announced {
                    return;
                }
                record.next = record.pause_after(&announced);
            }
        })))
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Fails if a leader cannot have this name.
pub(super) fn check_name(name: &str) -> Result<(), LockError> {
    if name.len() <= LONGEST_NAME {
        return Ok(());
    }
    let problem = format!("the name has {} bytes; the limit is {LONGEST_NAME}", name.len());
    Err(LockError::config("name", problem))
}
