//! The options of a lock, and the client's defaults for the options that a lock does not set.

use std::time::Duration;

use crate::engine::lease::Terms;
use crate::error::LockError;
use crate::release_mode::ReleaseMode;
use crate::replicas::{Replicas, RequiredReplicas};
use crate::timeout::Wait;
use crate::wire_format::WireFormat;

/// The shortest lease, `max_hold` and `min_hold`. Of a much shorter lease, the margin for clock
/// drift would take most.
const SHORTEST_LEASE: Duration = Duration::from_millis(10);
/// The longest lease, `max_hold` and `min_hold`.
const LONGEST_LEASE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The options of a lock, unchecked. Where an option is `None`, the client's default applies.
#[derive(Debug, Clone, Copy, Default)]
pub struct LockOptions {
    /// See [`Lock::wire_format`](crate::Lock::wire_format).
    pub wire_format: Option<WireFormat>,
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
    /// See [`Lock::release`](crate::Lock::release).
    pub release: Option<ReleaseMode>,
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
    /// How long a server that may have lost locks grants none. No lease is longer.
    pub(crate) quarantine: Option<Duration>,
}

impl Defaults {
    /// Fails if a lock could end later than the quarantine of a server that has lost it.
    pub(crate) fn check_quarantine(
        &self,
        option: &'static str,
        span: Duration,
    ) -> Result<(), LockError> {
        let Some(quarantine) = self.quarantine.filter(|quarantine| *quarantine < span) else {
            return Ok(());
        };
        let problem = format!(
            "{span:?} is longer than the client's `quarantine` of {quarantine:?}, so the lock could \
             have two holders after a failover; use a longer `quarantine`"
        );
        Err(LockError::Config { option, problem })
    }
}

impl LockOptions {
    /// No option is set.
    pub const NONE: Self = Self {
        wire_format: None,
        wait: None,
        lease: None,
        max_hold: None,
        min_hold: None,
        acknowledged_by: None,
        release: None,
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
    pub(crate) fn terms(&self, defaults: &Defaults) -> Result<Terms, LockError> {
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
            return Err(LockError::Config { option: "max_hold", problem: problem.into() });
        }
        let max_hold =
            if self.lease.is_some() { None } else { self.max_hold.or(defaults.max_hold) };
        if max_hold.is_some_and(|max_hold| min_hold > max_hold) {
            let problem = format!("{min_hold:?} is longer than `max_hold`");
            return Err(LockError::Config { option: "min_hold", problem });
        }
        let acknowledged_by =
            self.acknowledged_by.map_or(Ok(defaults.acknowledged_by), Replicas::required)?;
        Ok(Terms {
            term: self.lease.unwrap_or(defaults.lease),
            renewed: self.lease.is_none(),
            max_hold,
            min_hold,
            acknowledged_by,
        })
    }
}

/// Checks a duration that has the bounds of a lease.
pub(crate) fn check_span(option: &'static str, span: Duration) -> Result<(), LockError> {
    if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&span) {
        return Ok(());
    }
    let problem = format!("{span:?} is not in the range {SHORTEST_LEASE:?} to {LONGEST_LEASE:?}");
    Err(LockError::Config { option, problem })
}
