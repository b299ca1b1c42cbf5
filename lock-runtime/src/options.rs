//! The options of a lock, and the client's defaults for the options that a lock does not set.

use std::time::Duration;

use crate::engine::lease::Terms;
use crate::error::LockError;
use crate::lock_mode::LockMode;
use crate::permits::Permits;
use crate::release_mode::ReleaseMode;
use crate::replicas::{Replicas, RequiredReplicas};
use crate::telemetry::SiteMetrics;
use crate::timeout::Wait;
use crate::wire_format::WireFormat;

/// The shortest lease, `max_hold` and `min_hold`. Of a much shorter lease, the margin for clock
/// drift would take most.
const SHORTEST_LEASE: Duration = Duration::from_millis(10);
/// The longest lease, `max_hold` and `min_hold`.
const LONGEST_LEASE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The shortest and the longest `linger`. Locks that linger are checked at intervals of the shortest.
const SHORTEST_LINGER: Duration = Duration::from_millis(10);
const LONGEST_LINGER: Duration = Duration::from_secs(1);

/// The options of a lock, unchecked. Where an option is `None`, the client's default applies.
#[derive(Debug, Clone, Copy, Default)]
pub struct LockOptions {
    /// See [`Lock::wire_format`](crate::Lock::wire_format).
    pub wire_format: Option<WireFormat>,
    /// See [`ReadWriteLock`](crate::ReadWriteLock).
    pub mode: Option<LockMode>,
    /// See [`Semaphore`](crate::Semaphore).
    pub permits: Option<Permits>,
    /// See [`Lock::wait`](crate::Lock::wait).
    pub wait: Option<Wait>,
    /// See [`Lock::lease`](crate::Lock::lease).
    pub lease: Option<Duration>,
    /// See [`Lock::max_hold`](crate::Lock::max_hold).
    pub max_hold: Option<Duration>,
    /// See [`Lock::min_hold`](crate::Lock::min_hold).
    pub min_hold: Option<Duration>,
    /// See [`Lock::acknowledged_by`](crate::Lock::acknowledged_by).
    pub acknowledged_by: Option<Replicas>,
    /// See [`Lock::release_mode`](crate::Lock::release_mode).
    pub release: Option<ReleaseMode>,
    /// See [`Lock::linger`](crate::Lock::linger).
    pub linger: Option<Duration>,
    /// See [`Lock::fair`](crate::Lock::fair).
    pub fair: Option<bool>,
    /// See [`Lock::exclusive_within`](crate::Lock::exclusive_within).
    pub exclusive_within: bool,
    /// See [`Periodic`](crate::Periodic).
    pub every: Option<Duration>,
}

/// The checked defaults of a client.
#[derive(Debug, Clone)]
pub(crate) struct Defaults {
    pub(crate) wire_format: WireFormat,
    pub(crate) wait: Wait,
    /// The lease of renewed locks, which are renewed every third of it.
    pub(crate) lease: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) acknowledged_by: RequiredReplicas,
    pub(crate) release: ReleaseMode,
    pub(crate) linger: Duration,
    /// The largest number of keys of a set.
    pub(crate) max_keys: usize,
    /// How long a server that may have lost locks grants none. No lease is longer.
    pub(crate) quarantine: Option<Duration>,
    /// The longest outage of the store that calls tolerate.
    pub(crate) unavailable_after: Option<Duration>,
}

impl Defaults {
    /// Fails if a lock could end later than the quarantine of a server that has lost it.
    pub(crate) fn check_quarantine(
        &self,
        option: &'static str,
        span: Duration,
    ) -> Result<(), LockError> {
        check_quarantine(self.quarantine, option, span)
    }
}

impl LockOptions {
    /// No option is set.
    pub const NONE: Self = Self {
        wire_format: None,
        mode: None,
        permits: None,
        wait: None,
        lease: None,
        max_hold: None,
        min_hold: None,
        acknowledged_by: None,
        release: None,
        linger: None,
        fair: None,
        exclusive_within: false,
        every: None,
    };

    pub(crate) fn wire_format(&self, defaults: &Defaults) -> WireFormat {
        self.wire_format.unwrap_or(defaults.wire_format)
    }

    pub(crate) fn release(&self, defaults: &Defaults) -> ReleaseMode {
        self.release.unwrap_or(defaults.release)
    }

    /// The timeout of an acquisition, checked.
    pub(crate) fn wait(&self, defaults: &Defaults) -> Result<Wait, LockError> {
        self.wait.map_or(Ok(defaults.wait), Wait::check)
    }

    /// The terms of the lease, checked.
    pub(crate) fn terms(
        &self,
        defaults: &Defaults,
        site: &'static SiteMetrics,
    ) -> Result<Terms, LockError> {
        let min_hold = self.min_hold.unwrap_or_default();
        let min_span = Some(min_hold).filter(|min_hold| !min_hold.is_zero());
        for (option, span) in
            [("lease", self.lease), ("max_hold", self.max_hold), ("min_hold", min_span)]
        {
            span.map_or(Ok(()), |span| check_span(option, span))?;
        }
        for (option, span) in [("lease", self.lease), ("min_hold", min_span)] {
            span.map_or(Ok(()), |span| defaults.check_quarantine(option, span))?;
        }
        if self.lease.is_some() && self.max_hold.is_some() {
            let problem = "a fixed lease already limits the hold; set either `lease` or `max_hold`";
            return Err(LockError::config("max_hold", problem));
        }
        let max_hold =
            if self.lease.is_some() { None } else { self.max_hold.or(defaults.max_hold) };
        if max_hold.is_some_and(|max_hold| min_hold > max_hold) {
            let problem = format!("{min_hold:?} is longer than `max_hold`");
            return Err(LockError::config("min_hold", problem));
        }
        let acknowledged_by =
            self.acknowledged_by.map_or(Ok(defaults.acknowledged_by), Replicas::required)?;
        let term = self.lease.unwrap_or(defaults.lease);
        let is_fair = self.fair.unwrap_or_default();
        let is_read = self.mode == Some(LockMode::Read);
        let linger = match self.linger {
            None if self.lease.is_some()
                || !min_hold.is_zero()
                || is_fair
                || is_read
                || self.permits.is_some() =>
            {
                Duration::ZERO
            }
            linger => linger.unwrap_or(defaults.linger),
        };
        self.check_linger(linger, term)?;
        Ok(Terms {
            term,
            renewed: self.lease.is_none(),
            max_hold,
            min_hold,
            acknowledged_by,
            linger,
            site,
        })
    }
}

impl LockOptions {
    /// Fails if a lock with these options and of this term cannot linger for so long.
    pub(crate) fn check_linger(&self, linger: Duration, term: Duration) -> Result<(), LockError> {
        if linger.is_zero() {
            return Ok(());
        }
        let problem = if !(SHORTEST_LINGER..=LONGEST_LINGER).contains(&linger) {
            format!("{linger:?} is not in the range {SHORTEST_LINGER:?} to {LONGEST_LINGER:?}")
        } else if linger > term / 3 {
            format!("{linger:?} is longer than a third of the lease of {term:?}")
        } else if self.fair.unwrap_or_default() {
            "a fair lock goes to the call that waits for the longest time; remove `fair` or `linger`"
                .to_owned()
        } else if self.mode == Some(LockMode::Read) {
            "readers share a lock, and do not keep it for the next call; remove `linger`".to_owned()
        } else if self.permits.is_some() {
            "permits are not kept for the next call; remove `permits` or `linger`".to_owned()
        } else if self.lease.is_some() {
            "a fixed lease is not kept for the next call; remove `lease` or `linger`".to_owned()
        } else if self.min_hold.is_some_and(|min_hold| !min_hold.is_zero()) {
            "a lock with a `min_hold` is not kept for the next call; remove `min_hold` or `linger`"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(LockError::config("linger", problem))
    }
}

/// Fails if a lock could end later than the `quarantine` of a server that has lost it.
pub(crate) fn check_quarantine(
    quarantine: Option<Duration>,
    option: &'static str,
    span: Duration,
) -> Result<(), LockError> {
    let Some(quarantine) = quarantine.filter(|quarantine| *quarantine < span) else {
        return Ok(());
    };
    let problem = format!(
        "{span:?} is longer than the client's `quarantine` of {quarantine:?}, so the lock could have \
         two holders after a restart or a failover; use a longer `quarantine` (that of a quorum is the client's \
         lease and two seconds, unless it is set)"
    );
    Err(LockError::config(option, problem))
}

/// Fails if the fixed `lease` of a lock is shorter than its store allows.
pub(crate) fn check_shortest(lease: Duration, shortest: Duration) -> Result<(), LockError> {
    if lease >= shortest {
        return Ok(());
    }
    let problem = format!(
        "{lease:?} is shorter than {shortest:?}, the shortest lease of a lock in this store"
    );
    Err(LockError::config("lease", problem))
}

/// Checks a duration that has the bounds of a lease.
pub(crate) fn check_span(option: &'static str, span: Duration) -> Result<(), LockError> {
    if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&span) {
        return Ok(());
    }
    let problem = format!("{span:?} is not in the range {SHORTEST_LEASE:?} to {LONGEST_LEASE:?}");
    Err(LockError::config(option, problem))
}
